"""Looked-up tokens beside a model's: who drafts which row, and one exact proposal of both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from outrider import HybridDrafter, ModelDrafter, NgramDrafter, SuffixDrafter
from outrider.certify.kits.drafter_round import outcomes, release
from outrider.errors import InvalidConfigError
from outrider.runtimes.tabular import TabularModel, mock_pair
from outrider.types.records import DraftTree, Prefix

from ...support.draft_context import Stop, plan_of, pooled, proposed, rows_of

FOUND, NOT_FOUND = [0, 1, 0, 1, 0], [2, 1]
TREE = DraftTree((2, 3, 3))


class Counting(TabularModel):
    """A draft model that notes which sequences it is opened for."""

    def __init__(self) -> None:
        model = mock_pair(3, 1)[1]
        super().__init__(model.probabilities, 3)
        self.opened: list[int] = []

    def open(self, prefixes: Sequence[Prefix], depth: int) -> Any:
        self.opened += [prefix.sequence_id for prefix in prefixes]
        return super().open(prefixes, depth)


@pytest.mark.parametrize("tree", [None, TREE])
def test_rows_without_a_match_are_left_to_the_model(tree: Any) -> None:
    model = Counting()
    drafter = HybridDrafter(model, SuffixDrafter(), min_expected=1)
    plan = plan_of(3, 3, tree=tree)
    proposal = proposed(drafter, [FOUND, NOT_FOUND], plan)
    assert proposal.sources == ("suffix", "model")
    assert model.opened == [1]
    assert rows_of(proposal)[0] == [1, 0, 1]
    alone = proposed(ModelDrafter(model), [NOT_FOUND, NOT_FOUND], plan)
    assert rows_of(proposal)[1] == rows_of(alone)[1]
    assert proposal.distribution_rows is not None
    assert (proposal.distribution_rows[0] == -1).all()
    length = int(proposal.lengths[1])
    assert (proposal.distribution_rows[1, :length] >= 0).any()


@pytest.mark.parametrize("tree", [None, TREE])
def test_a_round_of_looked_up_rows_takes_no_step_of_the_model(tree: Any) -> None:
    model = Counting()
    drafter = HybridDrafter(model, SuffixDrafter(), min_expected=0)
    proposal = proposed(drafter, [FOUND, FOUND], plan_of(3, 2, tree=tree))
    assert model.opened == []
    assert rows_of(proposal) == [[1, 0, 1], [1, 0]]


@pytest.mark.parametrize(("least", "source"), [(1.3, "ngram"), (1.4, "model"), (None, "ngram")])
def test_a_fixed_depth_takes_what_is_expected_to_be_kept_often_enough(
    least: float | None, source: str
) -> None:
    """A match of three tokens: 3/4 + 3/5 of two; of a model's two .6 + .36 are expected."""
    drafter = HybridDrafter(Counting(), NgramDrafter(), min_expected=least)
    proposal = proposed(drafter, [[0, 1, 2, 0, 1, 0, 1, 2]], plan_of(2))
    assert proposal.row_sources == (source,)


@pytest.mark.parametrize("tree", [None, TREE])
def test_a_stop_rule_decides_between_the_sources(tree: Any) -> None:
    """And to what depth the model drafts; a row that it replays may be left with nothing."""
    stop = Stop([3, 1, 0, 2], taken=(2, 0, 0, 0))
    drafter = HybridDrafter(Counting(), SuffixDrafter())
    proposal = proposed(drafter, [FOUND] * 4, plan_of(3, 3, 3, 3, tree=tree, stop=stop))
    assert proposal.lengths.tolist() == ([2, 1, 0, 2] if tree is None else [2, 2, 0, 5])
    assert proposal.sources == ("suffix", "model", "model", "model")
    assert rows_of(proposal)[0] == [1, 0]


def test_of_several_lookups_the_one_with_more_to_expect_is_taken() -> None:
    """By what the stop rule says is kept of each: half as much of prompt lookup's."""
    lookups = NgramDrafter(), SuffixDrafter()
    stop = Stop([2], taken=(2,))
    plan = plan_of(2, stop=stop)
    assert proposed(HybridDrafter(Counting(), *lookups), [FOUND], plan).sources == ("suffix",)
    proposal = proposed(HybridDrafter(Counting(), *lookups), [FOUND], plan_of(2))
    assert proposal.sources == ("ngram",)  # of equals the first


@pytest.mark.parametrize("tree", [None, DraftTree((2, 2)), DraftTree((2, 4), (2, 2))])
@pytest.mark.parametrize("greedy", [False, True])
def test_what_is_reported_is_what_tokens_were_drawn_from(tree: Any, greedy: bool) -> None:
    """In a batch with a looked-up row, as the row is alone."""
    model = Counting()
    drafter = HybridDrafter(model, SuffixDrafter(), min_expected=1)
    plan = plan_of(2, 2, tree=tree)
    together = proposed(drafter, [FOUND, NOT_FOUND], plan, greedy=greedy)
    other = proposed(ModelDrafter(model), [FOUND, NOT_FOUND], plan, greedy=greedy)
    length = int(other.lengths[1])
    assert rows_of(together)[1] == rows_of(other)[1]
    assert together.structure[1, :length].tolist() == other.structure[1, :length].tolist()
    if together.distributions.probs is None:
        assert (together.distributions.point_masses == together.tokens).all()
        return
    own = other.distribution_rows
    own = np.arange(length) if own is None else own[1, :length]
    rows = together.distribution_rows[1, :length]
    for mine, row in zip(rows.tolist(), own.tolist(), strict=True):
        found, expected = together.distributions.probs[1], other.distributions.probs[1]
        assert (mine < 0) == (row < 0)
        assert mine < 0 or (found[mine] == expected[row]).all()


@pytest.mark.parametrize("text", [FOUND, NOT_FOUND])
@pytest.mark.parametrize("tree", [None, DraftTree((2, 2))])
def test_a_draft_comes_out_as_often_as_its_distributions_say(text: list[int], tree: Any) -> None:
    drafter = HybridDrafter(mock_pair(3, 1)[1], SuffixDrafter(), min_expected=1)
    found = outcomes(drafter, text, plan_of(2, tree=tree))
    assert sum(outcome.probability for outcome in found) == pytest.approx(1, abs=1e-12)
    for outcome in found:
        assert outcome.probability == pytest.approx(outcome.reported, abs=1e-12)


def test_what_ends_reaches_every_part() -> None:
    suffix = SuffixDrafter()
    drafter = HybridDrafter(Counting(), suffix)
    prefix = Prefix(0, FOUND)
    proposed(drafter, [FOUND], plan_of(2), learning=True)
    release(drafter, [prefix.extended([1, 2])])
    assert pooled(suffix) == 6
    assert suffix._learnable == {}


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (lambda: HybridDrafter(object(), SuffixDrafter()), "drafter"),
        (lambda: HybridDrafter(NgramDrafter(), SuffixDrafter()), "drafter"),
        (lambda: HybridDrafter(Counting()), "lookups"),
        (lambda: HybridDrafter(Counting(), SuffixDrafter), "lookups"),
        (lambda: HybridDrafter(Counting(), Counting()), "lookups"),
        (lambda: HybridDrafter(Counting(), SuffixDrafter(), min_expected=-1), "min_expected"),
        (lambda: HybridDrafter(Counting(), SuffixDrafter(), min_expected=True), "min_expected"),
        (lambda: ModelDrafter(object()), "model"),
        (lambda: ModelDrafter(Counting), "model"),
    ],
)
def test_bad_arguments_are_named(build: Any, name: str) -> None:
    with pytest.raises(InvalidConfigError, match=name):
        build()
