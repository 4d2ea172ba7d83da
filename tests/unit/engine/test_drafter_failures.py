"""A drafter that raises or breaks its contract: an error, or plain decoding if asked for."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from outrider import SamplingParams, SpeculativeConfig, SpeculativeDecoder
from outrider.certify import exact_distribution
from outrider.certify.reference import distance, target_distribution
from outrider.drafters.model import ModelDrafter
from outrider.errors import (
    DegenerateDistributionError,
    DistributionWidthError,
    DraftError,
    DraftShapeError,
    InvalidConfigError,
    OutriderError,
    TokenOutOfRangeError,
)
from outrider.runtimes.tabular import TabularModel, mock_pair
from outrider.types.records import Distributions, DraftPlan, DraftProposal


class Failing(ModelDrafter):
    """Raises in one of its rounds, and notes how many there were."""

    def __init__(self, model: TabularModel, when: int = 0) -> None:
        super().__init__(model)
        self.when = when
        self.calls = 0

    def propose(self, prefixes: Any, plan: DraftPlan, ctx: Any) -> DraftProposal:
        self.calls += 1
        if self.calls > self.when:
            raise RuntimeError("no draft today")
        return super().propose(prefixes, plan, ctx)


class Changed(ModelDrafter):
    """Proposes something else than it drew."""

    def __init__(self, model: TabularModel, change: Any) -> None:
        super().__init__(model)
        self.change = change

    def propose(self, prefixes: Any, plan: DraftPlan, ctx: Any) -> DraftProposal:
        proposal: DraftProposal = self.change(super().propose(prefixes, plan, ctx))
        return proposal


def config(**more: Any) -> SpeculativeConfig:
    return SpeculativeConfig(depth="fixed", num_speculative_tokens=3, **more)


def test_what_a_drafter_raises_reaches_the_caller_with_a_remedy() -> None:
    target, draft = mock_pair(4, 1)
    decoder = SpeculativeDecoder(target, Failing(draft), config=config())
    with pytest.raises(DraftError, match=r'no draft today.*on_draft_error="disable"') as caught:
        decoder.generate([0], SamplingParams(max_tokens=9))
    assert isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.parametrize("when", [0, 2])
def test_a_disabled_drafter_is_logged_once_and_its_requests_go_on_plainly(
    when: int, caplog: pytest.LogCaptureFixture
) -> None:
    target, draft = mock_pair(4, 1)
    drafter = Failing(draft, when)
    decoder = SpeculativeDecoder(target, drafter, config=config(on_draft_error="disable"))
    with caplog.at_level(logging.WARNING):
        output = decoder.generate([0], SamplingParams(max_tokens=30, seed=1))
    assert len(output.token_ids) == 30
    assert all(depth == 0 for depth in output.depths[when:])
    assert drafter.calls == when + 1
    assert decoder.metrics.draft_failures == 1
    assert len(caplog.records) == 1
    decoder.generate([0], SamplingParams(max_tokens=3))
    assert len(caplog.records) == 1
    assert drafter.calls == when + 2


def test_the_distribution_is_exact_where_failing_depends_on_the_prefix_alone() -> None:
    class Odd(ModelDrafter):
        def propose(self, prefixes: Any, plan: DraftPlan, ctx: Any) -> DraftProposal:
            if any(len(prefix) % 2 for prefix in prefixes):
                raise RuntimeError
            return super().propose(prefixes, plan, ctx)

    target, draft = mock_pair(3, 1)
    decoder = SpeculativeDecoder(target, Odd(draft), config=config(on_draft_error="disable"))
    params = SamplingParams(max_tokens=4)
    found = exact_distribution(decoder, [0, 1], params, batch_size=1)
    assert distance(found, target_distribution(target, (0, 1), params)) < 1e-12


class Superstitious(ModelDrafter):
    """Fails where it has drawn token 1."""

    def propose(self, prefixes: Any, plan: DraftPlan, ctx: Any) -> DraftProposal:
        proposal = super().propose(prefixes, plan, ctx)
        if (proposal.tokens == 1).any():
            raise RuntimeError("not 1")
        return proposal


@pytest.mark.parametrize("seed", range(4))
def test_a_failure_that_depends_on_what_was_drawn_costs_at_most_its_probability(seed: int) -> None:
    """In total variation, as the guide says; and it is no less than it can be seen."""
    target, draft = mock_pair(3, seed)
    speculation = SpeculativeConfig(
        depth="fixed", num_speculative_tokens=1, on_draft_error="disable"
    )
    decoder = SpeculativeDecoder(target, Superstitious(draft), config=speculation)
    params = SamplingParams(max_tokens=2)
    found = exact_distribution(decoder, [0, 1], params, batch_size=1)
    expected = target_distribution(target, (0, 1), params)
    outputs = found.keys() | expected.keys()
    variation = sum(abs(found.get(o, 0) - expected.get(o, 0)) for o in outputs) / 2
    assert 1e-3 < variation <= draft.probabilities((0, 1))[1]


class Choosy(ModelDrafter):
    """Cannot draft after token 2, and says for which sequence."""

    def propose(self, prefixes: Any, plan: DraftPlan, ctx: Any) -> DraftProposal:
        for row, prefix in enumerate(prefixes):
            if plan.depth[row] and prefix.tokens[-1] == 2:
                raise DraftError("not after 2", sequence_id=prefix.sequence_id)
        return super().propose(prefixes, plan, ctx)


class Sloppy(ModelDrafter):
    """Breaks its contract for sequences that end with token 2."""

    def propose(self, prefixes: Any, plan: DraftPlan, ctx: Any) -> DraftProposal:
        proposal = super().propose(prefixes, plan, ctx)
        assert proposal.distributions is not None
        assert proposal.distributions.probs is not None
        factor = [0.5 if prefix.tokens[-1] == 2 else 1.0 for prefix in prefixes]
        probs = proposal.distributions.probs * torch.tensor(factor)[:, None, None]
        return replace(proposal, distributions=Distributions(probs=probs))


@pytest.mark.parametrize("drafter", [Choosy, Sloppy])
def test_a_failing_row_costs_no_other_row_its_drafts(drafter: type[ModelDrafter]) -> None:
    target, draft = mock_pair(4, 1)
    decoder = SpeculativeDecoder(target, drafter(draft), config=config(on_draft_error="disable"))
    params = [SamplingParams(max_tokens=24, seed=seed) for seed in range(6)]
    prompts = [[seed % 4, seed % 3] for seed in range(6)]
    alone = [decoder.generate(*pair) for pair in zip(prompts, params, strict=True)]
    failures = decoder.metrics.draft_failures
    assert failures > 0
    together = decoder.generate(prompts, params)
    assert [o.token_ids for o in together] == [o.token_ids for o in alone]
    assert [o.depths for o in together] == [o.depths for o in alone]
    assert any(sum(map(bool, output.depths)) > 1 for output in alone)


def test_the_distribution_is_exact_beside_rows_that_fail() -> None:
    target, draft = mock_pair(3, 1)
    decoder = SpeculativeDecoder(target, Choosy(draft), config=config(on_draft_error="disable"))
    params = SamplingParams(max_tokens=4)
    found = exact_distribution(decoder, [0, 1], params)
    assert distance(found, target_distribution(target, (0, 1), params)) < 1e-12


class Stumbling(ModelDrafter):
    """Fails beside its proposals."""

    def __init__(self, model: TabularModel, where: str) -> None:
        super().__init__(model)
        self.where = where

    def _stumble(self, where: str) -> None:
        if where == self.where:
            raise RuntimeError(f"cannot {where}")

    def observe_output(self, prefixes: Any) -> None:
        self._stumble("learn")

    def release(self, sequence_ids: Any, *, discard: bool = False) -> None:
        super().release(sequence_ids, discard=discard)
        self._stumble("release")


@pytest.mark.parametrize("where", ["learn", "release"])
def test_a_drafter_may_fail_in_any_of_its_calls(where: str) -> None:
    target, draft = mock_pair(4, 1)
    drafter = Stumbling(draft, where)
    decoder = SpeculativeDecoder(target, drafter, config=config())
    with pytest.raises(DraftError, match=f"Stumbling failed: RuntimeError: cannot {where}"):
        decoder.generate([0], SamplingParams(max_tokens=5))
    decoder = SpeculativeDecoder(target, drafter, config=config(on_draft_error="disable"))
    assert len(decoder.generate([0], SamplingParams(max_tokens=5)).token_ids) == 5


@pytest.mark.parametrize("on_draft_error", ["raise", "disable"])
def test_a_draft_model_with_nan_is_a_failing_drafter(on_draft_error: Any) -> None:
    class Unsound(ModelDrafter):
        def _aligned(self, logits: torch.Tensor) -> torch.Tensor:
            return logits * torch.nan

    target, draft = mock_pair(4, 1)
    unsound = Unsound(draft)
    settings = config(on_draft_error=on_draft_error, validate="never")
    decoder = SpeculativeDecoder(target, unsound, config=settings)
    if on_draft_error == "raise":
        with pytest.raises(DraftError, match="draft model's logits for sequence"):
            decoder.generate([0], SamplingParams(max_tokens=9))
    else:
        assert len(decoder.generate([0], SamplingParams(max_tokens=9)).token_ids) == 9


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda p: None, DraftShapeError, "expected a DraftProposal"),
        (lambda p: replace(p, tokens=p.tokens[0]), DraftShapeError, r"tokens of shape \(3,\)"),
        (lambda p: replace(p, tokens=p.tokens.float()), DraftShapeError, "float32"),
        (lambda p: replace(p, lengths=np.array([4])), DraftShapeError, r"planned depths \[3\]"),
        (lambda p: replace(p, lengths=np.array([2, 2])), DraftShapeError, r"lengths \[2, 2\]"),
        (lambda p: replace(p, distributions=None), DraftShapeError, "without their distributions"),
        (
            lambda p: replace(p, distributions=Distributions(probs=torch.ones(1, 3, 5) / 5)),
            DistributionWidthError,
            "vocabulary, 4",
        ),
        (
            lambda p: replace(p, distributions=Distributions(point_masses=p.tokens[:, :2])),
            DraftShapeError,
            "one for each token",
        ),
        (lambda p: replace(p, tokens=p.tokens + 4), TokenOutOfRangeError, r"ids in 0\.\.3"),
        (
            lambda p: replace(p, distributions=Distributions(point_masses=(p.tokens + 1) % 4)),
            DegenerateDistributionError,
            "the point mass",
        ),
        (
            lambda p: replace(p, distributions=Distributions(probs=p.distributions.probs * 0.5)),
            DegenerateDistributionError,
            "total mass 0.5",
        ),
        (
            lambda p: replace(p, parents=np.array([[0, 2, 1]])),
            DraftShapeError,
            "a node to its left",
        ),
        (
            lambda p: replace(p, distribution_rows=np.array([[0, 1, 3]])),
            DraftShapeError,
            "one of its 3 distributions",
        ),
        (lambda p: replace(p, confidence=np.ones((1, 2))), DraftShapeError, r"shape \(1, 3\)"),
        (
            lambda p: replace(p, confidence=np.full((1, 3), "high")),
            DraftShapeError,
            "confidence of dtype <U4",
        ),
        *(
            (
                lambda p, value=value: replace(p, confidence=np.full((1, 3), value)),
                DraftShapeError,
                "a number from 0 to 1",
            )
            for value in (np.nan, np.inf, -0.5, 1.5)
        ),
    ],
)
def test_a_broken_proposal_is_named(change: Any, error: type[OutriderError], message: str) -> None:
    target, draft = mock_pair(4, 1)
    decoder = SpeculativeDecoder(target, Changed(draft, change), config=config())
    with pytest.raises(DraftError, match=message) as caught:
        decoder.generate([0], SamplingParams(max_tokens=9))
    assert isinstance(caught.value.__cause__, error)


def test_a_drafter_without_the_contract_is_refused_at_construction() -> None:
    class Named:
        vocab_size = 4
        propose = "not a function"

    with pytest.raises(InvalidConfigError, match="drafter='Named'"):
        SpeculativeDecoder(mock_pair(4, 1)[0], Named())
