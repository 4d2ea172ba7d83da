"""Whole rounds on a CUDA device; skipped where there is none."""

from __future__ import annotations

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
    TransformersModel,
)
from tests.support.families import random_model

DEVICE = torch.device("cuda")

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

PROMPTS = [[1, 2, 3, 1, 2], [4, 5], [6, 7, 8, 9], [1, 1, 1]]


def on_device() -> TransformersModel:
    return TransformersModel(random_model("llama").to(DEVICE), max_sequences=4)


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
