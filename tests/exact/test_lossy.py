"""Lossy methods: each gives away what it says and no more, and the figures say so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from outrider import NgramDrafter, SamplingParams, SpeculativeConfig, SpeculativeDecoder
from outrider.certify import exact_distribution
from outrider.certify.reference import distance, target_distribution
from outrider.runtimes.tabular import TabularModel, mock_pair
from tests.support.exactness import TOLERANCE, configured

ONE = SamplingParams(max_tokens=1)
TWO = SamplingParams(max_tokens=2)


def first_token_distribution(
    target: TabularModel, drafter: Any, config: SpeculativeConfig
) -> np.ndarray[Any, Any]:
    """The distribution of the first of two tokens, the one that a draft was checked for."""
    decoder = SpeculativeDecoder(target, drafter, config=config)
    distribution = np.zeros(target.vocab_size)
    for output, probability in exact_distribution(decoder, (0,), TWO).items():
        distribution[output[0]] += probability
    return distribution


@pytest.mark.parametrize("budget", [0.0, 0.02, 0.1, 0.5, 1.0])
def test_the_mixture_stays_within_its_total_variation(budget: float) -> None:
    for seed in range(4):
        target, draft = mock_pair(4, seed, 0.3)
        p, q = target.probabilities((0,)), draft.probabilities((0,))
        distribution = first_token_distribution(
            target, draft, configured("mixture", 1, mixture_budget=budget)
        )
        given_away = np.abs(distribution - p).sum() / 2
        allowed = min(budget, np.abs(p - q).sum() / 2)
        assert given_away == pytest.approx(allowed, abs=1e-12)
        looked_up = first_token_distribution(
            target, NgramDrafter(1), configured("mixture", 1, mixture_budget=budget)
        )
        assert np.abs(looked_up - p).sum() / 2 <= budget + 1e-12


@pytest.mark.parametrize("lenience", [0.3, 0.7, 1.0])
def test_lenience_bounds_every_probability(lenience: float) -> None:
    moved = 0.0
    for seed in range(4):
        target, draft = mock_pair(4, seed, 0.3)
        p = target.probabilities((0,))
        distribution = first_token_distribution(
            target, draft, configured("lenient", 1, lenience=lenience)
        )
        assert (distribution <= p / lenience + 1e-12).all()
        moved = max(moved, float(np.abs(distribution - p).max()))
    assert moved < TOLERANCE if lenience == 1 else moved > 1e-3


def test_typical_acceptance_keeps_what_is_above_its_threshold() -> None:
    rows = {"target": [0.5, 0.3, 0.15, 0.05], "draft": [0.25, 0.25, 0.25, 0.25]}
    target = TabularModel(lambda _: rows["target"], 4)
    draft = TabularModel(lambda _: rows["draft"], 4)
    p = np.array(rows["target"])
    threshold = min(0.2, 0.6 * float(np.exp((p * np.log(p)).sum())))
    kept = p > threshold
    assert 0 < kept.sum() < 4
    config = configured("typical", 1, typical_epsilon=0.2, typical_delta=0.6)
    expected = np.where(kept, 0.25, 0) + 0.25 * (~kept).sum() * p
    assert first_token_distribution(target, draft, config) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("verification", ["typical", "lenient", "mixture"])
def test_greedy_text_is_not_changed(verification: str) -> None:
    target, draft = mock_pair(5, 3)
    params = SamplingParams(max_tokens=12, temperature=0)
    plain = SpeculativeDecoder(target).generate([0], params)
    out = SpeculativeDecoder(target, draft, config=configured(verification, 3)).generate(
        [0], params
    )
    assert out.token_ids == plain.token_ids


def test_more_is_kept_than_losslessly_and_the_figures_say_lossy() -> None:
    target, draft = mock_pair(6, 5, 0.4)
    params = SamplingParams(max_tokens=400, seed=1)
    rates = {}
    for verification in ("token", "lenient", "mixture"):
        config = configured(verification, 3, lenience=0.5, mixture_budget=0.2)
        metrics = SpeculativeDecoder(target, draft, config=config).generate([0], params).metrics
        assert metrics.lossy is (verification != "token")
        rates[verification] = metrics.acceptance_rate
    assert rates["lenient"] > rates["token"]
    assert rates["mixture"] > rates["token"]


def test_plain_decoding_is_never_lossy() -> None:
    target, _ = mock_pair(3, 1)
    decoder = SpeculativeDecoder(target, config=configured("typical", 3))
    assert not decoder.generate([0], SamplingParams(max_tokens=4)).metrics.lossy
    assert not decoder.metrics.lossy


def test_the_exact_distribution_of_a_lossy_method_is_not_the_targets() -> None:
    target, draft = mock_pair(3, 1, 0.3)
    for verification in ("typical", "lenient", "mixture"):
        decoder = SpeculativeDecoder(target, draft, config=configured(verification, 2))
        params = SamplingParams(max_tokens=3)
        found = exact_distribution(decoder, (0,), params)
        assert distance(found, target_distribution(target, (0,), params)) > 1e-3
