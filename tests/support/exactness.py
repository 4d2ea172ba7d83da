"""The largest error in the probability of any output of a decoder, by enumeration."""

from __future__ import annotations

from typing import Any

from outrider import SamplingParams, SpeculativeConfig, SpeculativeDecoder
from outrider.certify import exact_distribution
from outrider.certify.reference import distance, target_distribution
from outrider.runtimes.tabular import TabularModel

TOLERANCE = 1e-12


def configured(verification: str, k: int, **more: Any) -> SpeculativeConfig:
    settings: dict[str, Any] = {"depth": "fixed", "num_speculative_tokens": k}
    return SpeculativeConfig(**settings | {"verification": verification} | more)


def error(
    target: TabularModel,
    drafter: Any,
    config: SpeculativeConfig,
    params: SamplingParams,
    prompt: tuple[int, ...] = (0, 1),
    batch_size: int = 64,
) -> float:
    decoder = SpeculativeDecoder(target, drafter, config=config)
    return distance(
        exact_distribution(decoder, prompt, params, batch_size=batch_size),
        target_distribution(target, prompt, params),
    )
