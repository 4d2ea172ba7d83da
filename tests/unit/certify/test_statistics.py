"""The statistical tier: its tests have the error rates that they claim, on seeded data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from outrider import SamplingParams, SpeculativeConfig
from outrider.certify import checks, controls, faults, goodness
from outrider.certify.statistics import Cell, corrected, fitted_positions, sample
from outrider.random import inverse_cdf, philox4x32
from outrider.runtimes.tabular import TabularModel, mock_pair
from outrider.verification.lossy import LenientVerification


def probabilities_of(target: TabularModel) -> Any:
    return lambda prefixes: np.array([target.probabilities(prefix) for prefix in prefixes])


def test_tails_are_those_of_the_tables() -> None:
    assert goodness.chi_squared_tail(3.841459, 1) == pytest.approx(0.05, rel=1e-5)
    assert goodness.chi_squared_tail(29.588, 10) == pytest.approx(0.001, rel=1e-3)
    assert goodness.critical_value(0.05, 1) == pytest.approx(3.841459, rel=1e-6)
    # A noncentrality of 10.507 gives one degree of freedom a power of .9 at level .05.
    assert goodness.noncentral_tail(3.841459, 1, 10.507) == pytest.approx(0.9, abs=1e-4)
    assert goodness.noncentral_tail(5, 3, 0) == pytest.approx(goodness.chi_squared_tail(5, 3))


def test_p_values_of_sound_data_are_uniform() -> None:
    """2,000 tests of distributions with rare outcomes: shares within 5 sigma, 1 in 2e6."""
    rng = np.random.default_rng(1)
    p_values = []
    for _ in range(2000):
        distribution = rng.dirichlet(np.full(9, 0.6))
        counts = np.bincount(rng.choice(9, size=300, p=distribution), minlength=9)
        p_values.append(goodness.fit(counts, distribution).p_value)
    for level in (0.01, 0.05, 0.25, 0.5, 0.75):
        share = float(np.mean(np.array(p_values) < level))
        assert abs(share - level) < 5 * (level * (1 - level) / 2000) ** 0.5


def test_power_is_what_the_formula_says_at_least() -> None:
    """A distribution off by .05 in total variation, 400 times: the share rejected."""
    rng = np.random.default_rng(2)
    distribution = np.array([0.4, 0.3, 0.2, 0.1])
    off = distribution + np.array([0.05, -0.05, 0, 0])
    fits = [
        goodness.fit(np.bincount(rng.choice(4, size=1500, p=off), minlength=4), distribution)
        for _ in range(400)
    ]
    rejected = float(np.mean([item.p_value < 0.01 for item in fits]))
    assert rejected > fits[0].power(0.05, 0.01) - 0.1
    assert fits[0].power(0.05, 0.01) > 0.5


def test_what_is_impossible_is_rejected() -> None:
    assert goodness.fit(np.array([50, 50, 1]), np.array([0.5, 0.5, 0.0])).p_value == 0


def test_holm_rejects_step_by_step() -> None:
    assert goodness.holm([0.02, 0.001, 0.3, 0.012], 0.05) == [False, False, True, False]
    assert goodness.holm([0.02, 0.04], 0.01) == [True, True]


@pytest.mark.parametrize(
    ("build", "sound"),
    [
        (checks.shipped, True),
        (controls.method(LenientVerification(0.8)), False),
        (controls.chance(faults.SqueezedUniforms()), False),
    ],
    ids=["shipped", "lenient", "squeezed"],
)
def test_the_tier_sees_a_bias_and_nothing_else(build: Any, sound: bool) -> None:
    """False alarms: one in a thousand, deterministic once written."""
    target, draft = mock_pair(4, 11)
    config = SpeculativeConfig(depth="fixed", num_speculative_tokens=2, verification="token")
    params = SamplingParams(max_tokens=3, n=1200, seed=2)
    cell = Cell("cell", build(target, draft, config, None), (0, 1), params)
    positions = corrected(fitted_positions(cell, sample(cell), probabilities_of(target)))
    assert len(positions) == 3
    assert all(position.passed for position in positions) is sound


def test_later_positions_see_what_the_first_cannot() -> None:
    """Planted: the second token of an output is drawn by squeezed uniforms."""
    target, _ = mock_pair(4, 12)
    rng = np.random.default_rng(3)
    outputs = []
    for _ in range(2000):
        first = int(inverse_cdf(target.probabilities((0,))[None], rng.random(1))[0])
        distribution = target.probabilities((0, first))[None]
        outputs.append((first, int(inverse_cdf(distribution, 0.85 * rng.random(1))[0])))
    decoder = checks.shipped(target, None, SpeculativeConfig(depth="fixed"))
    cell = Cell("cell", decoder, (0,), SamplingParams(max_tokens=2))
    first, second = corrected(fitted_positions(cell, outputs, probabilities_of(target)))
    assert first.passed
    assert not second.passed


def test_known_answers_need_the_published_constant() -> None:
    assert checks.known_answers(philox4x32).passed
    assert not checks.known_answers(faults.wrong_philox).passed
