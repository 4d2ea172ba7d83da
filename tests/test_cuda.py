"""Whole rounds on a CUDA device; skipped where there is none."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch

from outrider import (
    HybridDrafter,
    ModelDrafter,
    SamplingParams,
    SpeculativeConfig,
    SpeculativeDecoder,
    SuffixDrafter,
)
from outrider.errors import DegenerateDistributionError, TokenOutOfRangeError
from outrider.runtimes.transformers.model import TransformersModel
from outrider.types.protocols import DraftContext
from outrider.types.records import Distributions, DraftPlan, DraftProposal

from .test_calibration import tiny

DEVICE = torch.device("cuda")

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

PROMPTS = [[1, 2, 3, 1, 2], [4, 5], [6, 7, 8, 9], [1, 1, 1]]


def on_device() -> TransformersModel:
    return TransformersModel(tiny().hf_model.to(DEVICE), max_sequences=4)


def drafters() -> dict[str, tuple[Any, dict[str, Any]]]:
    """Drafters, and what is configured beside."""
    model = on_device()
    return {
        "a model": (ModelDrafter(model), {}),
        "a tree": (ModelDrafter(model), {"depth": "fixed", "tree_shape": (2, 2)}),
        "lookup": (SuffixDrafter(), {}),
        "hybrid": (HybridDrafter.usual(model), {}),
    }


def texts(drafter: Any, params: SamplingParams, **configured: Any) -> list[tuple[int, ...]]:
    config = SpeculativeConfig(**configured)
    decoder = SpeculativeDecoder(on_device(), drafter, config=config)
    return [output.token_ids for output in decoder.generate(PROMPTS, params)]


@pytest.mark.parametrize("name", ["a model", "a tree", "lookup", "hybrid"])
def test_greedy_texts_are_plain_decodings(name: str) -> None:
    params = SamplingParams(max_tokens=40, temperature=0, ignore_eos=True)
    drafter, configured = drafters()[name]
    assert texts(drafter, params, **configured) == texts(None, params)


@pytest.mark.parametrize("name", ["a model", "a tree", "hybrid"])
@pytest.mark.parametrize("shaped", [{}, {"top_p": 0.9}, {"repetition_penalty": 1.2}], ids=str)
def test_a_seed_repeats(name: str, shaped: dict[str, Any]) -> None:
    params = SamplingParams(max_tokens=40, seed=3, ignore_eos=True, **shaped)
    first, again = (texts(drafter, params, **more) for drafter, more in (drafters()[name],) * 2)
    assert first == again


class Wrong(ModelDrafter):
    """Hands over what it must not: an id of no vocabulary, or no distribution."""

    def __init__(self, how: str) -> None:
        super().__init__(on_device())
        self.how = how

    def propose(self, prefixes: Any, plan: DraftPlan, ctx: DraftContext) -> DraftProposal:
        found = super().propose(prefixes, plan, ctx)
        if self.how == "an id":
            tokens = torch.full_like(found.tokens, 99)
            return replace(
                found,
                tokens=tokens,
                distributions=Distributions(point_masses=tokens),
                distribution_rows=None,
            )
        assert found.distributions is not None
        if found.distributions.probs is None:
            return replace(found, distributions=Distributions(point_masses=found.tokens + 1))
        return replace(
            found,
            distributions=Distributions(probs=torch.full_like(found.distributions.probs, 0.01)),
        )


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("how", ["an id", "a distribution"])
def test_what_a_drafter_must_not_hand_over_is_counted(how: str, temperature: float) -> None:
    """And the text goes on, greedy ones as without drafts; `strict` says what it was."""
    params = SamplingParams(max_tokens=30, temperature=temperature, seed=1, ignore_eos=True)
    settings: dict[str, Any] = {"depth": "fixed", "num_speculative_tokens": 2}
    decoder = SpeculativeDecoder(on_device(), Wrong(how), config=SpeculativeConfig(**settings))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        outputs = decoder.generate(PROMPTS, params)
    assert [str(each.message) for each in told if "drafter failed" in str(each.message)]
    assert decoder.metrics.draft_failures > 0
    assert all(len(output.token_ids) == 30 for output in outputs)
    if not temperature:
        assert [output.token_ids for output in outputs] == texts(None, params)
    config = SpeculativeConfig(strict=True, **settings)
    strict = SpeculativeDecoder(on_device(), Wrong(how), config=config)
    error = TokenOutOfRangeError if how == "an id" else DegenerateDistributionError
    with pytest.raises(error):
        strict.generate(PROMPTS, params)
