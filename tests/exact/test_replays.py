"""A seeded run and its replay give one text, whatever the decoder has learnt in between."""

from __future__ import annotations

import pytest

from outrider import HybridDrafter, NgramDrafter, SamplingParams, SpeculativeDecoder, SuffixDrafter
from outrider.runtimes.tabular import mock_pair

pytestmark = pytest.mark.exact


def test_a_seeded_hybrid_replays_on_a_decoder_that_has_learnt() -> None:
    target, draft = mock_pair(4, 3, 0.5)
    drafter = HybridDrafter(draft, SuffixDrafter(), NgramDrafter())
    decoder = SpeculativeDecoder(target, drafter)
    for seed in range(12):
        prompt = [seed % 4, 1, 2, 1, 2, 1]
        first = decoder.generate(prompt, SamplingParams(max_tokens=40, seed=seed))
        decoder.generate([3, 3, 3, 3], SamplingParams(max_tokens=60, temperature=0.5))
        again = decoder.generate(
            prompt, SamplingParams(max_tokens=40, seed=seed, depths=first.depths)
        )
        assert again.depths == first.depths
        assert again.token_ids == first.token_ids
