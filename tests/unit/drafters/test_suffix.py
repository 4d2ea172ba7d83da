"""Suffix lookup: what is drafted, against a search through all texts, and what is kept."""

from __future__ import annotations

import pickle
from collections import Counter
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider import HybridDrafter, NgramDrafter, SamplingParams, SuffixDrafter
from outrider.drafters.suffix.drafter import Limits, best_draft
from outrider.errors import InvalidConfigError
from outrider.runtimes.tabular import mock_pair
from outrider.types.records import DraftTree, Prefix

from ...support.draft_context import chain_after, plan_of, pooled, proposed, rows_of

texts = st.lists(st.integers(0, 2), min_size=1, max_size=40)
orders = st.integers(1, 5)
limits = st.builds(
    Limits,
    depth=st.integers(1, 5),
    tokens=st.integers(1, 8),
    branches=st.booleans(),
    factor=st.sampled_from([0.5, 1.0, 2.0]),
    offset=st.sampled_from([0.0, 1.0]),
    least=st.sampled_from([0.05, 0.1, 0.4, 1.0]),
    shortest=st.integers(1, 3),
)


class Search:
    """What followed each context, found by looking at every place of every text."""

    def __init__(self, texts: list[list[int]], ended: int) -> None:
        self._followed: dict[tuple[int, ...], Counter[int]] = {}
        self._ended: Counter[tuple[int, ...]] = Counter()
        self._latest: dict[tuple[tuple[int, ...], int], tuple[int, int]] = {}
        for number, text in enumerate(texts):
            for end in range(len(text) + 1):
                for length in range(end + 1):
                    context = tuple(text[end - length : end])
                    if end < len(text):
                        self._followed.setdefault(context, Counter())[text[end]] += 1
                        self._latest[context, text[end]] = number, end
                    elif number < ended:
                        self._ended[context] += 1

    def context(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        """The longest suffix that something followed, or the end of a text."""
        while tokens and not (self._followed.get(tokens) or self._ended[tokens]):
            tokens = tokens[1:]
        return tokens

    def shares(self, tokens: tuple[int, ...]) -> dict[int, float]:
        """The share of each token, the commonest first, of equals the latest."""
        context = self.context(tokens)
        if not context:
            return {}
        counts = self._followed.get(context, Counter())
        total = sum(counts.values()) + self._ended[context]
        order = sorted(counts, key=lambda t: (counts[t], self._latest[context, t]), reverse=True)
        return {token: counts[token] / total for token in order}

    def expected(self, match: tuple[int, ...], limits: Limits) -> float:
        """How many tokens of the draft after one match are expected to be kept."""
        most = int(min(limits.tokens, limits.factor * len(match) + limits.offset))
        found, level = [], [(match, 1.0)]
        for place in range(len(match), len(match) + limits.depth):
            level = [
                ((*path, token), reach * share * place / (place + 1))
                for path, reach in level
                for token, share in list(self.shares(path).items())[
                    : None if limits.branches else 1
                ]
            ]
            level = [each for each in level if each[1] >= limits.least]
            found += [reach for _, reach in level]
        return sum(sorted(found, reverse=True)[:most])

    def require(self, match: tuple[int, ...], limits: Limits, draft: Any) -> None:
        """The draft is the best of all suffixes of a match, and its confidences are its tokens'."""
        expected, candidate = draft
        starts = [match[cut:] for cut in range(len(match)) if len(match) - cut >= limits.shortest]
        best = max((self.expected(start, limits) for start in starts), default=0.0)
        assert expected == pytest.approx(best, abs=1e-12)
        reach = candidate.reach(candidate.confidence)
        assert reach.sum() == pytest.approx(expected, abs=1e-12)
        assert len(candidate) <= limits.tokens
        assert not len(candidate) or any(self._fits(start, candidate) for start in starts)

    def _fits(self, start: tuple[int, ...], candidate: Any) -> bool:
        """Whether each token followed the path that leads to it as often as is said."""
        paths = [start]
        rows = zip(candidate.tokens, candidate.structure, candidate.confidence, strict=True)
        for token, parent, confidence in rows:
            share = self.shares(paths[parent]).get(int(token), 0.0)
            place = len(paths[parent])
            if abs(share * place / (place + 1) - confidence) > 1e-12:
                return False
            paths.append((*paths[parent], int(token)))
        return len(set(paths)) == len(paths)


@settings(max_examples=200, deadline=None)
@given(st.lists(texts, max_size=4), texts, orders, limits)
def test_drafts_are_the_best_there_are(
    others: list[list[int]], text: list[int], order: int, limits: Limits
) -> None:
    """Of the text itself, and of others."""
    last = text[-order:]
    own = best_draft(np.array(text), np.array(last), limits)
    search = Search([text], 0)
    search.require(search.context(tuple(last)), limits, own)
    pool = np.array([token for other in others for token in (*other, -1)], dtype=np.int64)
    search = Search(others, len(others))
    found = best_draft(pool, np.array(last), limits)
    search.require(search.context(tuple(last)), limits, found)


def test_a_chain_follows_the_commonest_continuation_the_latest_of_equals() -> None:
    text = np.array([1, 2, 5, 1, 2, 6, 1, 2])
    limits = Limits(depth=2, tokens=2, branches=False)
    expected, candidate = best_draft(text, text[-4:], limits)
    # "1 2" was followed by 5 and by 6 once each; "6" by 1 always. A match of two tokens lasts one
    # more with probability 2/3, two more with 2/4.
    assert candidate.tokens.tolist() == [6, 1]
    assert candidate.confidence.tolist() == pytest.approx([1 / 2 * 2 / 3, 3 / 4])
    assert expected == pytest.approx(1 / 2 * 2 / 3 + 1 / 2 * 2 / 4)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 2), min_size=1, max_size=80), st.lists(texts, max_size=2))
def test_a_draft_is_the_beginning_of_any_deeper_one(text: list[int], others: Any) -> None:
    """A replay plans no deeper than the run that it repeats has drafted."""
    suffix = SuffixDrafter(min_token_prob=0.01, max_spec_offset=4.0)
    for other in others:
        suffix.learn(other)
    drafter = HybridDrafter(mock_pair(3)[1], suffix, NgramDrafter(), min_expected=0)
    deepest = proposed(drafter, [text], plan_of(20))
    for depth in range(1, 20):
        shorter = proposed(drafter, [text], plan_of(depth))
        if deepest.row_sources[0] != "model":
            assert rows_of(shorter)[0] == rows_of(deepest)[0][:depth]
            assert shorter.row_sources == deepest.row_sources


def test_a_tree_keeps_to_its_budget_and_branches() -> None:
    text = [1, 2, 3, 1, 2, 4, 1, 2, 5, 1, 2]
    plan = plan_of(2, tree=DraftTree((3, 3)))
    proposal = proposed(SuffixDrafter(max_spec_factor=4), [text], plan)
    assert proposal.lengths.tolist() == [6]
    assert sorted(proposal.tokens[0].tolist()) == [1, 1, 1, 3, 4, 5]
    assert proposal.parents is not None
    assert (proposal.parents[0] == 0).sum() == 3


def test_a_finished_output_helps_the_next_request_but_its_prompt_does_not() -> None:
    text = Prefix(1, (9, 8, 7, 1, 2, 3, 4, 5))
    for pool_prompts, kept in ((False, 5), (True, 8)):
        drafter = SuffixDrafter(max_spec_factor=4, pool_prompts=pool_prompts)
        chain_after(drafter, text, 3)
        assert pooled(drafter) == 0
        drafter.observe_output([text])
        drafter.release([1, 77])
        assert pooled(drafter) == kept
        assert chain_after(drafter, Prefix(2, (6, 1, 2))) == [3, 4, 5]
        assert chain_after(drafter, Prefix(3, (9, 8))) == ([7, 1, 2, 3] if pool_prompts else [])
        assert chain_after(drafter, Prefix(4, (6, 1, 2)), params=SamplingParams(seed=1)) == []


def test_the_tokens_of_the_last_round_are_learnt_too() -> None:
    drafter = SuffixDrafter()
    prefix = Prefix(1, (1, 2, 3))
    chain_after(drafter, prefix, 1)
    drafter.observe_output([prefix.extended([4, 5]), Prefix(9, (1,))])
    drafter.release([1])
    assert pooled(drafter) == 4


def test_what_is_discarded_or_not_to_be_learnt_is_not() -> None:
    drafter = SuffixDrafter()
    chain_after(drafter, Prefix(1, (1, 2, 3)))
    drafter.release([1], discard=True)
    chain_after(drafter, Prefix(2, (1, 2, 3)), learning=False)
    drafter.observe_output([Prefix(2, (1, 2, 3, 4))])
    drafter.release([2])
    assert pooled(drafter) == 0
    chain_after(drafter, Prefix(3, (1, 2, 3)))
    drafter.release([3])  # It was cancelled, or gave way to others.
    drafter.observe_output([Prefix(3, (1, 2, 3, 4))])
    assert pooled(drafter) == 0


def test_drafts_are_a_function_of_the_prefix() -> None:
    """The same id may come back longer, shorter, or as another text."""
    rng = np.random.default_rng(4)
    used = SuffixDrafter(max_pool_tokens=0)
    prefix = Prefix(1, (0,))
    for _ in range(50):
        if rng.random() < 0.2:
            cut = int(rng.integers(1, len(prefix) + 1))
            prefix = Prefix(1, prefix.tokens[:cut].tolist())
        prefix = prefix.extended(rng.integers(0, 2, int(rng.integers(0, 5))).tolist())
        assert chain_after(used, prefix) == chain_after(SuffixDrafter(max_pool_tokens=0), prefix)


def test_a_text_that_fits_is_kept_whole_and_the_oldest_tokens_go_first() -> None:
    drafter = SuffixDrafter(max_pool_tokens=80)
    drafter.learn(range(50))
    drafter.learn([])
    assert pooled(drafter) == 50
    assert chain_after(drafter, Prefix(1, (0, 1))) == [2, 3, 4, 5]
    drafter.learn(range(100, 130))
    assert pooled(drafter) == 80
    assert chain_after(drafter, Prefix(1, (0, 1))) == [2, 3, 4, 5]
    drafter.learn([200, 201, 202])
    assert pooled(drafter) == 80
    assert chain_after(drafter, Prefix(2, (1, 2))) == []
    assert chain_after(drafter, Prefix(3, (100, 101)), depth=1) == [102]
    drafter.learn(range(300, 500))
    assert pooled(drafter) == 80
    assert chain_after(drafter, Prefix(4, (498,)), depth=1) == [499]


def test_the_longer_match_wins_between_the_request_and_the_pool() -> None:
    for learnt, expected in ((range(5, 14), [8, 9]), ([1, 7, 8, 9], [4, 6])):
        drafter = SuffixDrafter()
        drafter.learn(learnt)
        assert chain_after(drafter, Prefix(1, (6, 7, 4, 6, 5, 6, 7)), depth=2) == expected


def test_rows_of_a_batch_are_drafted_as_they_are_alone() -> None:
    drafted = [[0, 1, 0, 1], [3, 3], [2, 4, 2]]
    together = rows_of(proposed(SuffixDrafter(), drafted, plan_of(3, 0, 2)))
    alone = [
        rows_of(proposed(SuffixDrafter(), [text], plan_of(depth)))[0]
        for text, depth in zip(drafted, (3, 0, 2), strict=True)
    ]
    assert together == alone


@pytest.mark.parametrize("copied", [deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
def test_copies_know_what_the_drafter_knew_and_learn_by_themselves(copied: Any) -> None:
    drafter = SuffixDrafter()
    drafter.learn([1, 2, 3])
    other = copied(drafter)
    other.learn([7, 8, 9])
    assert chain_after(other, Prefix(1, (1, 2)), depth=1) == [3]
    assert chain_after(drafter, Prefix(1, (7, 8)), depth=1) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_match", 0),
        ("max_match", True),
        ("min_match", 33),
        ("max_spec_factor", 0),
        ("max_spec_factor", float("nan")),
        ("max_spec_factor", "1"),
        ("max_spec_offset", -1),
        ("min_token_prob", 0.0),
        ("min_token_prob", 1.5),
        ("min_token_prob", None),
        ("max_pool_tokens", -1),
        ("max_pool_tokens", 1.5),
        ("pool", None),
    ],
)
def test_bad_arguments_are_named(name: str, value: Any) -> None:
    wrong = TypeError if name == "pool" else InvalidConfigError
    with pytest.raises(wrong, match=name):
        SuffixDrafter(**{name: value})


@pytest.mark.parametrize("bad", [3, [[1]], [1.5], [-1], [2**31], ["a"], None])
def test_a_text_to_learn_from_is_token_ids(bad: Any) -> None:
    with pytest.raises(InvalidConfigError, match="a flat sequence of token ids"):
        SuffixDrafter().learn(bad)
