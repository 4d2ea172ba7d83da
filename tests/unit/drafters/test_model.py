"""Drafts of a model: chains and trees, where they end, and what is fed to the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from outrider import ModelDrafter, SamplingParams
from outrider.certify.kits.drafter_round import TrialContext, outcomes
from outrider.random import Philox4x32
from outrider.runtimes.base import Capabilities
from outrider.runtimes.tabular import TabularModel, mock_pair
from outrider.types.records import DraftTree, Prefix

from ...support.draft_context import Stop, plan_of, proposed, rows_of

TEXTS = ([0, 1], [2], [1, 1, 2], [0, 2, 2, 1])


class Bounded(TabularModel):
    """A draft model with a context of some tokens, which notes what it is opened for."""

    def __init__(self, max_length: int = 100, vocab_size: int = 3) -> None:
        model = mock_pair(vocab_size, 1)[1]
        super().__init__(model.probabilities, vocab_size)
        self._longest = max_length
        self.opened: list[tuple[int, int]] = []

    def open(self, prefixes: Sequence[Prefix], depth: int) -> Any:
        assert all(len(prefix) <= self.max_length for prefix in prefixes)
        self.opened += [(prefix.sequence_id, depth) for prefix in prefixes]
        return super().open(prefixes, depth)

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, max_length=self._longest)


@pytest.mark.parametrize("depth", [[2, 0, 3, 0], [0, 0, 0, 1], [1, 2, 1, 1]])
def test_only_rows_that_are_drafted_are_read_and_fed(depth: list[int]) -> None:
    """Their logits are those of all rows together, along chains and trees; the others' are 0."""
    model, draft = Bounded(), mock_pair(3, 1)[1]
    drafter = ModelDrafter(model)
    prefixes = [Prefix(row, text) for row, text in enumerate(TEXTS)]
    rows = np.flatnonzero(depth)
    rest = np.setdiff1d(np.arange(4), rows)
    tokens, nodes = torch.tensor([1, 2, 0, 1]), torch.tensor([[1, 2]] * 4)
    some, every = drafter._opened(prefixes, np.array(depth)), draft.open(prefixes, max(depth))
    assert [row for row, _ in model.opened] == rows.tolist()
    pairs = [(some.logits, every.logits), (some.step(tokens), every.step(tokens))]
    some, every = drafter._opened(prefixes, np.array(depth)), draft.open(prefixes, max(depth))
    parents = torch.zeros(4, 2, dtype=torch.int64)
    pairs.append((some.expand(nodes, parents), every.expand(nodes, parents)))
    for found, expected in pairs:
        assert torch.equal(found[rows], expected[rows])
        assert not found[rest].any()


@pytest.mark.parametrize(
    ("tree", "lengths"),
    [
        # Rows of 2, 1, 3 and 4 tokens: the last drafted token is never fed to the model.
        (None, [3, 3, 2, 1]),
        # Levels of 2, 2, 2: the first takes no room, the second two tokens, the third four.
        (DraftTree((2, 2, 2)), [4, 4, 2, 2]),
    ],
)
def test_drafting_stops_where_the_draft_models_context_ends(tree: Any, lengths: list[int]) -> None:
    proposal = proposed(ModelDrafter(Bounded(4)), TEXTS, plan_of(3, 3, 3, 3, tree=tree))
    assert proposal.lengths.tolist() == lengths


def test_a_row_longer_than_the_draft_models_context_is_not_shown_to_it() -> None:
    model = Bounded(3)
    proposal = proposed(ModelDrafter(model), TEXTS, plan_of(2, 2, 2, 2))
    assert proposal.lengths.tolist() == [2, 2, 1, 0]
    assert [row for row, _ in model.opened] == [0, 1, 2]
    nothing = proposed(ModelDrafter(Bounded(1)), [[0, 1], [1, 1, 1]], plan_of(2, 2))
    assert nothing.lengths.tolist() == [0, 0]
    assert nothing.width == 0


def test_a_shorter_row_is_drafted_as_it_is_alone() -> None:
    """It draws nothing beyond its own depth, whatever its mates need."""
    drafter = ModelDrafter(Bounded(4))
    together = proposed(drafter, TEXTS, plan_of(3, 3, 3, 3))
    for row, text in enumerate(TEXTS):
        plan = plan_of(*(3 if other == row else 0 for other in range(4)))
        alone = proposed(drafter, TEXTS, plan)
        assert rows_of(alone)[row] == rows_of(together)[row]
        assert text


@pytest.mark.parametrize("stop", [None, Stop([2, 1], taken=()), Stop([3, 3], taken=(), least=0.55)])
def test_chains_end_by_the_plan_and_by_its_stop_rule(stop: Stop | None) -> None:
    plan = plan_of(3, 2, stop=stop)
    ctx = TrialContext(plan, Philox4x32())
    prefixes = [Prefix(row, text) for row, text in enumerate(TEXTS[:2])]
    proposal = ModelDrafter(Bounded()).propose(prefixes, plan, ctx)
    if stop is None:
        assert proposal.lengths.tolist() == [3, 2]
    elif not stop._least:
        assert proposal.lengths.tolist() == [2, 1]
    else:
        for row, length in enumerate(proposal.lengths.tolist()):
            sure = [confidence >= stop._least for confidence in ctx.confidence[row]]
            assert length == min([place + 1 for place, go in enumerate(sure) if not go] + [3 - row])
        assert proposal.lengths.min() < 3


def test_a_chain_without_a_stop_rule_waits_for_no_drafted_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing of the drafted tokens or of their distributions is read on the host."""
    table = torch.randn(5, 5)

    class Cursor:
        logits = table[[0, 1]]

        def step(self, tokens: torch.Tensor) -> torch.Tensor:
            return table[tokens]

    class Model(Bounded):
        def open(self, prefixes: Sequence[Prefix], depth: int) -> Any:
            return Cursor()

    plan = plan_of(3, 3)
    ctx = TrialContext(plan, Philox4x32(), params=SamplingParams(temperature=0))
    for name in ("tolist", "item", "cpu", "numpy", "__bool__", "__int__", "__float__"):
        monkeypatch.setattr(torch.Tensor, name, _refused)
    proposal = ModelDrafter(Model(vocab_size=5)).propose(
        [Prefix(0, [0]), Prefix(1, [1])], plan, ctx
    )
    monkeypatch.undo()
    assert proposal.lengths.tolist() == [3, 3]


def _refused(*args: Any, **more: Any) -> Any:
    raise AssertionError("waits for the device")


@pytest.mark.parametrize("width", [3, 5])
def test_models_that_pad_their_vocabularies_differently_are_aligned(width: int) -> None:
    """Surplus tokens are never drafted, missing ones get no probability."""
    drafter = ModelDrafter(Bounded(vocab_size=4), vocab_size=width)
    assert drafter.vocab_size == width
    found = outcomes(drafter, [0, 1, width - 1], plan_of(2))
    assert len(found) == min(4, width) ** 2
    for outcome in found:
        assert outcome.probability == pytest.approx(outcome.reported, abs=1e-12)
        assert max(outcome.tokens) < min(4, width)


class PipelineResult(TrialContext):
    """A round whose distributions depend on drafted tokens; it notes the paths it is given."""

    processes_logits = True

    def __init__(self, plan: Any, chance: Any) -> None:
        super().__init__(plan, chance)
        self.paths: list[torch.Tensor | None] = []

    def distribution(self, logits: torch.Tensor, path: torch.Tensor | None = None) -> Any:
        self.paths.append(path)
        return super().distribution(logits)


def test_distributions_that_depend_on_drafted_tokens_are_told_the_path() -> None:
    for tree, shapes in ((None, [None, (2, 1, 1)]), (DraftTree((2, 3)), [None, (2, 2, 1)])):
        plan = plan_of(2, 2, tree=tree)
        ctx = PipelineResult(plan, Philox4x32())
        prefixes = [Prefix(row, text) for row, text in enumerate(TEXTS[:2])]
        proposal = ModelDrafter(Bounded()).propose(prefixes, plan, ctx)
        assert [None if path is None else tuple(path.shape) for path in ctx.paths] == shapes
        path = ctx.paths[1]
        assert path is not None
        assert path[:, :, 0].tolist() == proposal.tokens[:, : path.shape[1]].tolist()


@pytest.mark.parametrize(
    ("tree", "depths"), [(DraftTree((2, 4), (2, 2)), (2, 1)), (DraftTree((2, 3, 3)), (3, 2))]
)
def test_trees_have_the_planned_levels(tree: DraftTree, depths: tuple[int, int]) -> None:
    proposal = proposed(ModelDrafter(Bounded()), TEXTS[:2], plan_of(*depths, tree=tree))
    assert proposal.lengths.tolist() == [sum(tree.levels[:depth]) for depth in depths]
    parents = proposal.structure
    sizes = np.cumsum([0, *tree.levels])
    for level, (first, last) in enumerate(pairwise(sizes)):
        above = parents[:, first:last]
        lowest, highest = (0, 0) if level == 0 else (sizes[level - 1] + 1, sizes[level])
        assert (above >= lowest).all()
        assert (above <= highest).all()
        assert (np.diff(above, axis=1) >= 0).all()
        if tree.children is not None:
            counts = {tree.children[level]}
            assert {int((row == parent).sum()) for row in above for parent in row} == counts


def test_a_budget_goes_where_tokens_are_likeliest_to_be_kept() -> None:
    """The first token is near certain: all of the second level follows it."""
    sure = TabularModel(
        lambda prefix: [0.98, 0.01, 0.01] if len(prefix) == 1 else [0.4, 0.3, 0.3], 3
    )
    proposal = proposed(ModelDrafter(sure), [[0]], plan_of(2, tree=DraftTree((2, 3))), greedy=True)
    assert proposal.structure.tolist() == [[0, 0, 1, 1, 1]]
    assert proposal.distributions is not None
    assert proposal.distributions.point_masses is not None
