"""Tokens that are looked up: candidates, prompt lookup, predictions, and where drafts end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outrider import DraftShapeError, NgramDrafter, PredictionDrafter, SuffixDrafter
from outrider.drafters.base import DraftContext
from outrider.drafters.lookup import Candidate, LookupDrafter, matches, token_ids
from outrider.errors import InvalidConfigError
from outrider.types.records import DraftPlan, DraftTree, Prefix

from ...support.draft_context import Stop, plan_of, proposed, rows_of

TREE = Candidate(
    np.array([5, 6, 7, 8, 9]), np.array([0.5, 0.4, 0.8, 0.5, 1.0]), np.array([0, 0, 1, 1, 2])
)


class Given(LookupDrafter):
    """Proposes what it was made with, for every row."""

    def __init__(self, candidate: Candidate) -> None:
        self._candidate = candidate

    def candidates(
        self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: DraftContext
    ) -> list[Candidate]:
        return [self._candidate] * len(prefixes)


def test_reach_is_the_product_along_each_path() -> None:
    assert TREE.reach(TREE.confidence).tolist() == pytest.approx([0.5, 0.4, 0.4, 0.25, 0.4])
    chain = Candidate(np.arange(3), np.array([0.5, 0.5, 1.0]))
    assert chain.reach(chain.confidence).tolist() == pytest.approx([0.5, 0.25, 0.25])


@pytest.mark.parametrize("count", range(6))
def test_the_likeliest_tokens_come_with_all_that_lead_to_them(count: int) -> None:
    reach = TREE.reach(TREE.confidence)
    part = TREE.likeliest(reach, count)
    assert len(part) == count
    assert part.reach(part.confidence).sum() == pytest.approx(np.sort(reach)[::-1][:count].sum())
    follows = {8: 5, 7: 5, 9: 6, 5: None, 6: None}
    for token, parent in zip(part.tokens.tolist(), part.structure.tolist(), strict=True):
        assert follows[token] == (part.tokens[parent - 1] if parent else None)


@given(st.lists(st.integers(0, 3), max_size=12), st.lists(st.integers(0, 3), max_size=5))
def test_suffixes_are_found_at_all_their_places(text: list[int], last: list[int]) -> None:
    """The longest first; of those at the same places the longest alone."""

    def ends(length: int) -> list[int]:
        suffix = last[len(last) - length :]
        return [e for e in range(length, len(text) + 1) if text[e - length : e] == suffix]

    lengths = range(1, len(last) + 1)
    expected = [
        (ends(length), length)
        for length in reversed(lengths)
        if ends(length) and (length == len(last) or len(ends(length + 1)) < len(ends(length)))
    ]
    found = matches(np.array(text, dtype=np.int64), np.array(last, dtype=np.int64))
    assert [(places.tolist(), length) for places, length in found] == expected


@pytest.mark.parametrize(
    "drafter", [NgramDrafter(), SuffixDrafter(), PredictionDrafter([1, 2, 3, 1])]
)
@pytest.mark.parametrize("tree", [None, DraftTree((2, 2, 2, 2))])
def test_a_draft_ends_at_the_first_token_that_would_end_the_request(
    drafter: Any, tree: Any
) -> None:
    """The token is proposed, and nothing behind it."""
    text = [9, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1]
    ids = {"prompt_length": 10}
    assert rows_of(proposed(drafter, [text], plan_of(4, tree=tree), **ids))[0][:3] == [2, 3, 1]
    ended = proposed(drafter, [text], plan_of(4, tree=tree), stop_ids=frozenset({3, 7}), **ids)
    assert rows_of(ended) == [[2, 3]]


def test_a_tree_ends_at_such_tokens_on_each_of_its_paths() -> None:
    cut = TREE.until(frozenset({5}))
    assert cut.tokens.tolist() == [5, 6, 9]
    assert cut.structure.tolist() == [0, 0, 2]


def test_a_stop_rule_says_how_many_of_the_likeliest_tokens_are_proposed() -> None:
    stop = Stop([0, 0, 0], taken=(2, 0, 9))
    plan = plan_of(2, 2, 2, tree=DraftTree((2, 3)), stop=stop)
    proposal = proposed(Given(TREE), [[1]] * 3, plan)
    assert rows_of(proposal) == [[5, 6], [], [5, 6, 7, 8, 9]]
    assert stop.reaches[0] == pytest.approx([0.5, 0.4, 0.4, 0.4, 0.25])
    assert proposal.confidence is not None
    assert proposal.confidence[2].tolist() == TREE.confidence.tolist()


def test_reach_is_what_the_stop_rule_has_measured() -> None:
    stop = Stop([0], taken=(1,))
    drafter = NgramDrafter()
    proposal = proposed(drafter, [[1, 2, 1, 2, 1]], plan_of(3, stop=stop))
    assert rows_of(proposal) == [[2]]
    # Three tokens matched: 3/4, 4/5, 5/6, of which half is kept by the rule.
    assert stop.reaches[0] == pytest.approx([3 / 8, 3 / 8 * 2 / 5, 3 / 8 * 2 / 5 * 5 / 12])
    assert proposal.sources == ("ngram",)


@pytest.mark.parametrize(
    ("text", "depth", "drafted"),
    [
        ([1, 2, 3, 1, 2], 3, [3, 1, 2]),
        ([7, 1, 2, 8, 7, 9, 2, 7, 1], 2, [2, 8]),  # the longer match before the later one
        ([1, 5, 1, 6, 1], 2, [6, 1]),  # of equals the most recent
        ([1, 2, 1, 2], 5, [1, 2, 1, 2, 1]),  # a loop goes on
        ([1, 2, 3], 3, []),
        ([1], 3, []),
        ([1, 2, 1], 0, []),
    ],
)
def test_prompt_lookup_proposes_what_followed_the_last_tokens(
    text: list[int], depth: int, drafted: list[int]
) -> None:
    assert rows_of(proposed(NgramDrafter(), [text], plan_of(depth))) == [drafted]


def test_prompt_lookup_is_surer_of_longer_matches() -> None:
    short = NgramDrafter().lookup(np.array([9, 1, 5, 1]), 2)
    long = NgramDrafter().lookup(np.array([1, 2, 3, 4, 5, 1, 2, 3, 4]), 2)
    assert short.confidence.tolist() == pytest.approx([1 / 2, 2 / 3])
    assert long.confidence.tolist() == pytest.approx([4 / 5, 5 / 6])
    assert rows_of(proposed(NgramDrafter(5, 2), [[9, 1, 5, 1]], plan_of(2))) == [[]]


PREDICTION = [1, 2, 3, 4, 1, 2, 5, 6]


@pytest.mark.parametrize(
    ("output", "drafted"),
    [
        ([], [1, 2, 3]),
        ([1], [2, 3, 4]),
        ([1, 2], [3, 4, 1]),
        ([1, 2, 3, 4, 1, 2], [5, 6]),  # at the place that the output has come to
        ([9], []),
        ([9, 3], []),
        ([9, 3, 4], [1, 2, 5]),
        ([1, 2, 9], []),
        ([1, 2, 9, 3, 4], [1, 2, 5]),
        (PREDICTION, []),
    ],
)
def test_a_prediction_goes_on_where_the_output_is_found_in_it(
    output: list[int], drafted: list[int]
) -> None:
    ids = {"prompt_length": 2, "prediction": np.array(PREDICTION)}
    drafter = PredictionDrafter([7] * 9)
    assert rows_of(proposed(drafter, [[8, 8, *output]], plan_of(3), **ids)) == [drafted]


@given(st.data())
def test_a_changed_copy_is_found_again_within_two_tokens(data: st.DataObject) -> None:
    prediction = data.draw(st.permutations(range(12)))
    place = data.draw(st.integers(0, 9))
    removed = data.draw(st.integers(0, 2))
    output = [*prediction[:place], *([20] * data.draw(st.integers(1, 3)))]
    after = prediction[place + removed :]
    drafter = PredictionDrafter(prediction)
    found = drafter.after(np.array([*output, *after[:2]]), np.array(prediction), 4)
    assert found.tokens.tolist() == list(after[2:6])


@pytest.mark.parametrize(
    "given", [[3, 4, 5], np.array([3, 4, 5]), torch.tensor([3, 4, 5]), (3, 4, 5)]
)
def test_token_ids_may_be_lists_arrays_and_tensors(given: Any) -> None:
    found = token_ids("prediction", given)
    assert found.dtype == np.int64
    assert found.tolist() == [3, 4, 5]
    assert rows_of(proposed(PredictionDrafter(given), [[1]], plan_of(2))) == [[3, 4]]


@pytest.mark.parametrize("bad", [3, "a", [[1]], [1.5], [-1], [2**31], torch.tensor([0.5])])
def test_a_prediction_is_token_ids(bad: Any) -> None:
    with pytest.raises(InvalidConfigError, match="prediction"):
        PredictionDrafter(bad)


@pytest.mark.parametrize(
    ("drafter", "name", "value"),
    [
        (NgramDrafter, "prompt_lookup_max", 0),
        (NgramDrafter, "prompt_lookup_max", True),
        (NgramDrafter, "prompt_lookup_min", 6),
        (PredictionDrafter, "min_match", 0),
        (PredictionDrafter, "min_match", 1.5),
        (PredictionDrafter, "min_token_prob", 0.0),
        (PredictionDrafter, "min_token_prob", "1"),
    ],
)
def test_bad_arguments_are_named(drafter: Any, name: str, value: Any) -> None:
    with pytest.raises(InvalidConfigError, match=name):
        drafter(**{name: value})


def test_a_candidate_has_a_confidence_for_each_token() -> None:
    with pytest.raises(DraftShapeError, match="16 tokens and 1 confidences"):
        Candidate(np.arange(16), np.array([0.5]))
