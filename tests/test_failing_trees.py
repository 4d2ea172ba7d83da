"""A drafter that fails while or after it grows a tree: what it had drawn is verified."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from outrider import HybridDrafter, SamplingParams, SpeculativeConfig, SpeculativeDecoder
from outrider.certify import exact_distribution
from outrider.drafters.model import ModelDrafter
from outrider.engine.context import RoundContext
from outrider.errors import DraftShapeError
from outrider.runtimes.tabular import TabularModel, mock_pair
from outrider.types.protocols import AutoregressiveModel, Cursor, DraftContext
from outrider.types.records import Children, Distributions, DraftPlan, DraftProposal

from .test_hybrid import Guess

pytestmark = pytest.mark.filterwarnings("ignore:the drafter failed")

SHAPES: dict[str, dict[str, Any]] = {
    "chain": {"tree_shape": (1, 1)},
    "shape": {"tree_shape": (2, 2)},
    "budget": {"tree_budget": 4},
}


class Failing(ModelDrafter):
    """Fails where a node of its tree is a 1: by an error, or by nodes that it has not drawn."""

    def __init__(self, how: str) -> None:
        super().__init__(mock_pair(3, 2)[1])
        self.how = how

    def propose(self, prefixes: Any, plan: DraftPlan, ctx: DraftContext) -> DraftProposal:
        proposal = super().propose(prefixes, plan, ctx)
        if not (proposal.tokens[:, : proposal.lengths.max()] == 1).any():
            return proposal
        if self.how == "malformed":
            return replace(proposal, lengths=proposal.lengths + 1)
        raise ValueError("no draft today")


class FailingCursor:
    """Goes on from no 2 at all."""

    def __init__(self, own: Cursor) -> None:
        self._own = own

    @property
    def logits(self) -> torch.Tensor:
        return self._own.logits

    def step(self, tokens: torch.Tensor) -> None:
        self._own.step(tokens)

    def expand(self, tokens: torch.Tensor, parents: torch.Tensor) -> torch.Tensor:
        if (tokens == 2).any():
            raise ValueError("nothing follows a 2")
        return self._own.expand(tokens, parents)


class FailingModel(TabularModel):
    """Raises between two levels."""

    def open(self, prefixes: Any, max_draft: int) -> Any:
        return FailingCursor(super().open(prefixes, max_draft))


def drafter_of(how: str) -> Any:
    if how != "between levels":
        return Failing(how)
    model: AutoregressiveModel = FailingModel(mock_pair(3, 2)[1].probabilities, 3)
    return ModelDrafter(model)


def error_of(drafter: Any, **settings: Any) -> float:
    """How far the output's distribution is from the target's: the largest difference of a probability."""
    settings = {"num_speculative_tokens": 2} | settings
    target, _ = mock_pair(3, 2)
    decoder = SpeculativeDecoder(
        target, drafter, config=SpeculativeConfig(depth="fixed", **settings)
    )
    params = SamplingParams(max_tokens=3)
    expected = exact_distribution(SpeculativeDecoder(target), [0], params)
    found = exact_distribution(decoder, [0], params, batch_size=1)
    return max(abs(found[output] - expected[output]) for output in expected)


@pytest.mark.parametrize("how", ["raises", "malformed", "between levels"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("verification", ["traversal", "recursive", "coupled"])
def test_the_distribution_is_exact_although_failure_depends_on_what_was_drawn(
    how: str, shape: dict[str, Any], verification: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = drafter_of(how)
    assert error_of(drafter, verification=verification, **shape) < 1e-12
    if verification != "coupled":
        # The planted fault: nothing is kept of a tree. Coupled, the drafts do not decide the text.
        monkeypatch.setattr(RoundContext, "_tree", lambda context, vocab_size: None)
        assert error_of(drafter, verification=verification, **shape) > 1e-4


@pytest.mark.parametrize("how", ["raises", "malformed", "between levels"])
@pytest.mark.parametrize("shape", [{}, *SHAPES.values()], ids=["no tree", *SHAPES])
def test_and_beside_mates_whose_drafts_fail_or_do_not(
    how: str, shape: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round fails for all its rows, by what any of them drew: by a 1 in a tree of a mate, too."""
    target, _ = mock_pair(3, 2)
    config = SpeculativeConfig(depth="fixed", num_speculative_tokens=2, **shape)
    decoder = SpeculativeDecoder(target, drafter_of(how), config=config)
    params = SamplingParams(max_tokens=3)
    expected = exact_distribution(SpeculativeDecoder(target), [0], params)

    def error() -> float:
        others = SamplingParams(max_tokens=50)
        mates = [*decoder.start([1], others), *decoder.start([2, 0], others)]
        found = exact_distribution(decoder, [0], params, batch_size=1, mates=mates)
        return max(abs(found[output] - expected[output]) for output in expected)

    assert error() < 1e-12
    if shape == SHAPES["chain"]:
        monkeypatch.setattr(RoundContext, "_tree", lambda context, vocab_size: None)
        assert error() > 1e-4


@pytest.mark.parametrize("how", ["raises", "between levels"])
@pytest.mark.parametrize("children", ["with_replacement", "without_replacement"])
@pytest.mark.parametrize("verification", ["traversal", "recursive"])
def test_with_every_kind_of_children(how: str, children: Any, verification: Any) -> None:
    settings: dict[str, Any] = {"tree_shape": (2, 2), "tree_children": children}
    assert error_of(drafter_of(how), verification=verification, **settings) < 1e-12


def test_outright_children_are_kept_as_well() -> None:
    settings: dict[str, Any] = {"tree_shape": (2, 2), "draft_sample_method": "greedy"}
    assert error_of(Failing("raises"), **settings) < 1e-12
    config = SpeculativeConfig(depth="fixed", **settings)
    decoder = SpeculativeDecoder(mock_pair(3, 2)[0], Failing("raises"), config=config)
    states = decoder.start([0], SamplingParams(max_tokens=9, seed=1))
    record = decoder.step(decoder.pack(states)).record
    assert (record.draft_failed, record.drafted) == (True, (6,))


ODD: dict[str, Any] = {
    "a list": [[2]],
    "of no rows": torch.full((1,), 2),
    "of other nodes": torch.full((1, 2), 2),
    "other numbers in each row": torch.tensor([[2], [1]]),
}


@pytest.mark.parametrize("counts", ODD.values(), ids=ODD)
def test_whatever_a_drafter_asked_for_its_own_error_is_told(counts: Any) -> None:
    class Odd(ModelDrafter):
        def propose(self, prefixes: Any, plan: DraftPlan, ctx: DraftContext) -> DraftProposal:
            distribution = ctx.distribution(
                self.model.open(prefixes, plan.width).logits[:, None], None
            )
            assert distribution.probs is not None
            ctx.children(distribution, counts, 2, 0, 0)
            raise ValueError("no draft today")

    target, draft = mock_pair(3, 2)
    settings: dict[str, Any] = {"tree_shape": (2, 2), "tree_children": "with_replacement"}
    config = SpeculativeConfig(depth="fixed", **settings)
    decoder = SpeculativeDecoder(target, Odd(draft), config=config)
    params = SamplingParams(max_tokens=6)
    with pytest.warns(RuntimeWarning, match="ValueError: no draft today"):
        outputs = decoder.generate([[0], [1]], params)
    assert [len(output.token_ids) for output in outputs] == [6, 6]
    assert decoder.metrics.drafted == 0


def test_rows_that_were_to_be_drafted_no_further_learn_of_no_refusal() -> None:
    class Limited(ModelDrafter):
        """Asks the model for the second row alone, and raises."""

        def propose(self, prefixes: Any, plan: DraftPlan, ctx: DraftContext) -> DraftProposal:
            steps = plan.depth.copy()
            steps[0] = 0
            ctx.limit(steps)
            super().propose(prefixes, DraftPlan(steps), ctx)
            raise ValueError("no draft today")

    target, draft = mock_pair(3, 2)
    config = SpeculativeConfig(depth="adaptive", num_speculative_tokens=3, cost_ratio=0.05)
    decoder = SpeculativeDecoder(target, Limited(draft), config=config)
    params = SamplingParams(max_tokens=9, seed=1)
    before = [decoder.start(prompt, params)[0] for prompt in ([0], [1])]
    step = decoder.step(decoder.pack(before))
    assert step.record.draft_failed
    assert step.record.depth[1] > step.record.depth[0] == 0
    assert step.batch.states[0].acceptance == before[0].acceptance
    assert step.batch.states[1].acceptance != before[1].acceptance


def test_beside_looked_up_nodes() -> None:
    drafter = HybridDrafter(Failing("raises"), Guess(3))
    assert error_of(drafter, tree_budget=5, num_speculative_tokens=3) < 1e-12


def test_a_tree_is_what_was_proposed() -> None:
    """What the context has seen of it, for rows of different depths, is what was handed over."""

    class Seen(ModelDrafter):
        def propose(self, prefixes: Any, plan: DraftPlan, ctx: DraftContext) -> DraftProposal:
            assert isinstance(ctx, RoundContext)
            proposal = super().propose(prefixes, plan, ctx)
            drawn = ctx.drawn(3)
            assert drawn is not None
            assert drawn.distributions is not None
            assert proposal.distributions is not None
            for name in ("tokens", "lengths", "parents", "distribution_rows"):
                assert (getattr(drawn, name) == getattr(proposal, name)).all()
            assert drawn.distributions.probs is not None
            assert proposal.distributions.probs is not None
            assert (drawn.distributions.probs == proposal.distributions.probs).all()
            return proposal

    for shape in SHAPES.values():
        config = SpeculativeConfig(
            depth="fixed", **({"num_speculative_tokens": 2} | shape), strict=True
        )
        target, draft = mock_pair(3, 2)
        decoder = SpeculativeDecoder(target, Seen(draft), config=config)
        params = [SamplingParams(max_tokens=count, seed=count) for count in (2, 3, 9)]
        decoder.generate([[0], [1, 2], [2]], params)
        assert decoder.metrics.drafted


class Expanding(ModelDrafter):
    """Grows only the first child of each node, which is no tree of whole levels, and raises."""

    def propose(self, prefixes: Any, plan: DraftPlan, ctx: DraftContext) -> DraftProposal:
        cursor = self.model.open(prefixes, plan.width)
        counts = torch.full((len(prefixes), 1), 2)
        children: Children | None = None
        for level in range(plan.deepest):
            if children is not None:
                cursor.step(children.tokens[:, 0, 0])
            distribution = ctx.distribution(cursor.logits[:, None], None)
            assert distribution.probs is not None
            children = ctx.children(
                Distributions(probs=distribution.probs), counts, 2, 2 * level, level
            )
        raise ValueError("no draft today")


def test_of_other_trees_the_levels_are_kept_that_are_whole() -> None:
    config = SpeculativeConfig(depth="fixed", tree_shape=(2, 2))
    target, draft = mock_pair(3, 2)
    decoder = SpeculativeDecoder(target, Expanding(draft), config=config)
    decoder.generate([0], SamplingParams(max_tokens=20, seed=1))
    assert decoder.metrics.drafted == 2 * decoder.metrics.draft_rounds > 0
    assert error_of(Expanding(draft), tree_shape=(2, 2)) < 1e-12


def test_strict_raises_what_the_drafter_raises() -> None:
    config = SpeculativeConfig(depth="fixed", tree_shape=(2, 2), strict=True)
    errors: dict[str, type[Exception]] = {"raises": ValueError, "malformed": DraftShapeError}
    for how, error in errors.items():
        decoder = SpeculativeDecoder(mock_pair(3, 2)[0], Failing(how), config=config)
        with pytest.raises(error):
            decoder.generate([1], SamplingParams(max_tokens=60, seed=5))
