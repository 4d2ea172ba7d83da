"""A drafter that fails costs speed, never a token: the round is decoded plainly, and counted."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from outrider import NgramDrafter, SamplingParams, SpeculativeConfig, SpeculativeDecoder
from outrider.certify import exact_law
from outrider.drafters.model import ModelDrafter
from outrider.errors import DraftShapeError, KeyReuseError
from outrider.models.tabular import TabularModel
from outrider.protocols import DraftContext
from outrider.records import DraftPlan, DraftProposal


def law(prefix: tuple[int, ...]) -> np.ndarray:
    weights = np.array([1.0 + (len(prefix) + i * prefix[-1]) % 3 for i in range(3)])
    return weights / weights.sum()


def even(prefix: tuple[int, ...]) -> np.ndarray:
    return np.full(3, 1 / 3)


class Failing(ModelDrafter):
    """Fails where its own first draft is a 1, or has no law after one."""

    def __init__(self, how: str) -> None:
        super().__init__(TabularModel(even, 3))
        self.how = how

    def propose(self, prefixes: Any, plan: DraftPlan, ctx: DraftContext) -> DraftProposal:
        if self.how == "nan" and prefixes[0].tokens[-1] == 1:
            ctx.law(torch.full((len(prefixes), 3), torch.nan))
        proposal = super().propose(prefixes, plan, ctx)
        if self.how == "nan" or not (proposal.tokens[:, 0] == 1).any():
            return proposal
        if self.how == "raises":
            raise ValueError("no draft today")
        return replace(proposal, lengths=proposal.lengths + 1)


@pytest.mark.parametrize("how", ["raises", "malformed", "nan"])
@pytest.mark.parametrize("verification", ["block", "coupled"])
def test_the_output_goes_on_and_the_failures_are_counted(how: str, verification: Any) -> None:
    config = SpeculativeConfig(depth="fixed", num_speculative_tokens=2, verification=verification)
    decoder = SpeculativeDecoder(TabularModel(law, 3), Failing(how), config=config)
    params = SamplingParams(max_tokens=60, seed=5)
    with pytest.warns(RuntimeWarning, match="decoded plainly: .*strict=True"):
        output = decoder.generate([1], params)
    assert len(output.token_ids) == 60
    failures = decoder.metrics.draft_failures
    assert 0 < failures < decoder.metrics.rounds
    assert output.depths.count(0) >= failures
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = decoder.generate([1], params)
    assert again.token_ids == output.token_ids
    if verification == "coupled":
        plain = SpeculativeDecoder(TabularModel(law, 3), config=config).generate([1], params)
        assert output.token_ids == plain.token_ids


@pytest.mark.filterwarnings("ignore:the drafter failed")
def test_the_law_is_exact_although_failure_depends_on_what_was_drafted() -> None:
    class Half(ModelDrafter):
        """Draws nothing, and fails after every 1."""

        def propose(self, prefixes: Any, plan: DraftPlan, ctx: DraftContext) -> DraftProposal:
            if any(prefix.tokens[-1] == 1 for prefix in prefixes):
                raise ValueError("never after a 1")
            return super().propose(prefixes, plan, ctx)

    config = SpeculativeConfig(depth="fixed", num_speculative_tokens=2)
    decoder = SpeculativeDecoder(TabularModel(law, 3), Half(TabularModel(even, 3)), config=config)
    params = SamplingParams(max_tokens=4)
    expected = exact_law(SpeculativeDecoder(TabularModel(law, 3)), [0], params)
    found = exact_law(decoder, [0], params, batch_size=1)
    assert max(abs(found[output] - expected[output]) for output in expected) < 1e-12


def test_strict_raises_what_the_drafter_raises() -> None:
    config = SpeculativeConfig(depth="fixed", num_speculative_tokens=2, strict=True)
    for how, error in (("raises", ValueError), ("malformed", DraftShapeError)):
        decoder = SpeculativeDecoder(TabularModel(law, 3), Failing(how), config=config)
        with pytest.raises(error):
            decoder.generate([1], SamplingParams(max_tokens=60, seed=5))


def test_a_key_used_twice_is_raised_in_any_case() -> None:
    class Twice(ModelDrafter):
        def propose(self, prefixes: Any, plan: DraftPlan, ctx: DraftContext) -> DraftProposal:
            laws = ctx.law(torch.zeros(len(prefixes), 3))
            ctx.pick(laws, 0)
            ctx.pick(laws, 0)
            return super().propose(prefixes, plan, ctx)

    decoder = SpeculativeDecoder(TabularModel(law, 3), Twice(TabularModel(even, 3)))
    with pytest.raises(KeyReuseError):
        exact_law(decoder, [0], SamplingParams(max_tokens=3))


def test_a_failure_leaves_sound_drafts_alone() -> None:
    decoder = SpeculativeDecoder(TabularModel(law, 3), NgramDrafter())
    decoder.generate([1, 2, 1, 2], SamplingParams(max_tokens=20))
    assert decoder.metrics.draft_failures == 0


def test_what_a_requests_own_processor_raises_is_not_the_drafters_fault() -> None:
    def refuses(history: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        raise ValueError("not these logits")

    decoder = SpeculativeDecoder(TabularModel(law, 3), TabularModel(even, 3))
    with pytest.raises(ValueError, match="not these logits"):
        decoder.generate([0], SamplingParams(max_tokens=3, logits_processors=(refuses,)))
    assert decoder.metrics.draft_failures == 0
