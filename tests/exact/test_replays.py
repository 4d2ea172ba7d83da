"""A seeded run and its replay give one text, whatever the decoder has learnt in between."""

from __future__ import annotations

from typing import Any

import pytest

from outrider import (
    HybridDrafter,
    NgramDrafter,
    SamplingParams,
    SpeculativeConfig,
    SpeculativeDecoder,
    SuffixDrafter,
)
from outrider.runtimes.tabular import mock_pair
from tests.support.exactness import TOLERANCE, configured, error

pytestmark = pytest.mark.exact


@pytest.mark.parametrize("alone", [False, True], ids=["hybrid", "suffix"])
@pytest.mark.parametrize("depth", ["adaptive", "fixed"])
@pytest.mark.parametrize("shaped", [{}, {"tree_shape": (3, 2, 1)}, {"tree_budget": 12}], ids=str)
def test_a_seeded_run_replays_on_a_decoder_that_has_learnt(
    alone: bool, depth: Any, shaped: dict[str, Any]
) -> None:
    target, draft = mock_pair(6, 3, 0.8)
    suffix = SuffixDrafter()
    drafter = suffix if alone else HybridDrafter(draft, suffix, NgramDrafter())
    decoder = SpeculativeDecoder(target, drafter, config=SpeculativeConfig(depth=depth, **shaped))
    least = 0
    for seed in range(3):
        prompt = [seed, 1, 2, 1, 2, 1, 0, 1, 0, 2] * 4
        first = decoder.generate(prompt, SamplingParams(max_tokens=80, seed=seed))
        decoder.generate([3, 3, 3, 3], SamplingParams(max_tokens=60, temperature=0.5))
        again = decoder.generate(
            prompt, SamplingParams(max_tokens=80, seed=seed, depths=first.depths)
        )
        assert again.depths == first.depths
        assert again.token_ids == first.token_ids
        least = min(least, *first.depths)
    assert least < 0


@pytest.mark.parametrize("verification", ["traversal", "recursive", "coupled"])
def test_replayed_look_ups_of_trees_keep_the_distribution(verification: str) -> None:
    target, draft = mock_pair(3, 10)
    drafter = HybridDrafter(draft, NgramDrafter(3))
    config = configured(verification, 2, depth="adaptive", tree_shape=(2, 1))
    params = SamplingParams(max_tokens=4, depths=(-3, 2))
    assert error(target, drafter, config, params, (0, 1, 2, 0, 1, 1, 0, 1)) < TOLERANCE
