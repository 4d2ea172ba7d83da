"""The statistical tier: it sees a bias and nothing else, on seeded data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from outrider import SamplingParams, SpeculativeConfig
from outrider.certify import checks, controls, faults
from outrider.certify.statistics import weigh
from outrider.random import inverse_cdf, philox4x32
from outrider.runtimes.tabular import mock_pair
from outrider.verification.lossy import LenientVerification


@pytest.mark.parametrize(
    ("build", "sound"),
    [
        (controls.shipped, True),
        (controls.method(LenientVerification(0.8)), False),
        (controls.chance(faults.SqueezedUniforms()), False),
    ],
    ids=["shipped", "lenient", "squeezed"],
)
def test_the_tier_sees_a_bias_and_nothing_else(build: Any, sound: bool) -> None:
    """False alarms: one in a thousand, deterministic once written."""
    target, draft = mock_pair(4, 11)
    config = SpeculativeConfig(depth="fixed", num_speculative_tokens=2, verification="token")
    params = SamplingParams(max_tokens=3, n=2400, seed=2)
    made = build(target, draft, config, None).generate((0, 1), params)
    outputs = [choice.token_ids for choice in made.choices]
    found = weigh("way", (0, 1), params, outputs, target.probabilities)
    assert found.tokens == 7200
    assert found.passed is sound


def test_it_sees_faults_of_later_tokens_and_what_is_impossible() -> None:
    """Planted: the second token of an output is drawn by squeezed uniforms; one is excluded."""
    target, _ = mock_pair(4, 12)
    rng = np.random.default_rng(3)

    def outputs(high: float) -> list[tuple[int, ...]]:
        found: list[tuple[int, ...]] = []
        for _ in range(2000):
            first = int(inverse_cdf(target.probabilities((0,))[None], rng.random(1))[0])
            distribution = target.probabilities((0, first))[None]
            found.append((first, int(inverse_cdf(distribution, high * rng.random(1))[0])))
        return found

    def passed(given: list[tuple[int, ...]], **asked: Any) -> bool:
        params = SamplingParams(max_tokens=2, **asked)
        return weigh("way", (0,), params, given, target.probabilities).passed

    assert passed(outputs(1.0))
    assert not passed(outputs(0.85))
    least = int(target.probabilities((0,)).argmin())
    assert not passed([(least,)] * 20, top_k=3)


def test_known_answers_need_the_published_constant() -> None:
    assert checks.known_answers(philox4x32).passed
    assert not checks.known_answers(faults.wrong_philox).passed
