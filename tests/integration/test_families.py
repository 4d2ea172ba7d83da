"""Greedy text through the whole engine is transformers' own, for each family of models."""

from __future__ import annotations

import random

import pytest

from outrider import SamplingParams, SpeculativeConfig, SpeculativeDecoder, TransformersModel
from tests.support.families import FAMILIES, VOCAB, greedy_reference, random_model, resembling

LENGTHS = (1, 4, 9, 20, 37, 2, 14)


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_text_is_that_of_generate(family: str) -> None:
    """Alone and in ragged batches, with more prompts than slots, by chains and by trees."""
    model = random_model(family)
    target = TransformersModel(model, max_sequences=5)
    draft = TransformersModel(resembling(model), max_sequences=5)
    rng = random.Random(0)
    prompts = [[rng.randrange(VOCAB) for _ in range(length)] for length in LENGTHS]
    expected = [greedy_reference(model, prompt, 20) for prompt in prompts]
    params = SamplingParams(max_tokens=20, temperature=0)
    settings = [{"num_speculative_tokens": k} for k in (0, 1, 3, 8)] + [{"tree_shape": (2, 2, 1)}]
    for setting in settings:
        config = SpeculativeConfig(depth="fixed", **setting)
        decoder = SpeculativeDecoder(target, draft, config=config)
        assert [out.token_ids for out in decoder.generate(prompts, params)] == expected
        assert decoder.generate(prompts[3], params).token_ids == expected[3]
    for runtime in (target, draft):
        runtime.check_integrity()
        assert not runtime.live_sequences
