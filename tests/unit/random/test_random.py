"""Philox against its published answers, and draws against their distributions."""

from __future__ import annotations

from typing import Any

import array_api_strict
import numpy as np
import pytest
import torch

from outrider.random import Philox4x32, inverse_cdf, philox4x32, stream_key

KNOWN_ANSWERS = [
    ("00000000 " * 4, "00000000 " * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff " * 4, "ffffffff " * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (
        "243f6a88 85a308d3 13198a2e 03707344",
        "a4093822 299f31d0",
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]
"""Counter, key, block: the vectors of the Random123 distribution for philox4x32 with 10 rounds."""


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


@pytest.mark.parametrize(("counter", "key", "block"), KNOWN_ANSWERS)
@pytest.mark.parametrize("array", [np.asarray, torch.tensor], ids=["numpy", "torch"])
def test_philox_gives_the_published_answers(counter: str, key: str, block: str, array: Any) -> None:
    blocks = philox4x32(array(words(counter))[:, None], array(words(key))[:, None])
    assert blocks[:, 0].tolist() == words(block)


def test_numpy_and_torch_give_the_same_bits() -> None:
    rng = np.random.default_rng(0)
    counter = rng.integers(0, 2**32, (4, 500))
    key = rng.integers(0, 2**32, (2, 500))
    by_numpy = philox4x32(counter, key)
    by_torch = philox4x32(torch.from_numpy(counter), torch.from_numpy(key))
    assert (by_numpy == by_torch.numpy()).all()


def test_a_wrong_multiplier_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The constant 0xD2561A75, found in a port, does not give the published answers."""
    monkeypatch.setattr("outrider.random.philox._MULTIPLIERS", (0xD2561A75, 0xCD9E8D57))
    counter, key, block = KNOWN_ANSWERS[0]
    blocks = philox4x32(np.array(words(counter))[:, None], np.array(words(key))[:, None])
    assert blocks[:, 0].tolist() != words(block)


def test_uniforms_carry_53_bits_below_one() -> None:
    keys = np.zeros((4096, 5), dtype=np.uint64)
    keys[:, 0] = 2**64 - 1
    keys[:, 4] = np.arange(4096)
    uniforms = Philox4x32().uniforms(keys)
    assert uniforms.min() >= 0
    assert uniforms.max() <= 1 - 2.0**-53
    assert ((uniforms * 2**53) % 1 == 0).all()
    assert ((uniforms * 2**52) % 1 != 0).mean() > 0.4


def test_the_least_and_the_largest_uniform_draw_inside_the_support() -> None:
    extremes = torch.tensor([0.0, 1 - 2.0**-53], dtype=torch.float64)
    for distribution in ([0.3, 0.7, 0.0], [1e-30, 0.0, 0.0], [0.1] * 10 + [0.0], [3.0, 1e-16, 0.0]):
        rows = torch.tensor([distribution, distribution], dtype=torch.float64)
        assert all(distribution[index] > 0 for index in inverse_cdf(rows, extremes).tolist())


def test_draws_never_land_on_zero_mass() -> None:
    rng = np.random.default_rng(1)
    distributions = rng.dirichlet(np.full(40, 0.05), size=2000)
    distributions[rng.random(distributions.shape) < 0.6] = 0
    distributions = distributions[distributions.sum(1) > 0]
    for dtype in (np.float32, np.float64):
        rows = distributions.astype(dtype)
        rows = rows[rows.sum(1) > 0]
        index = inverse_cdf(rows, rng.random(len(rows)))
        assert (rows[np.arange(len(rows)), index] > 0).all()


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("make", [np.asarray, torch.asarray, array_api_strict.asarray])
def test_what_is_no_distribution_gives_an_index_inside_it(make: Any) -> None:
    """On a device, which takes the last branch, a token outside the vocabulary would be fatal."""
    rows = [[0.0, 0.0, 0.0], [1.0, np.inf, 1.0], [np.nan, 1.0, 0.0], [-1.0, 0.5, 0.0]]
    for uniform in (0.0, 0.5, 1 - 2.0**-53):
        found = inverse_cdf(make(np.array(rows)), make(np.full(len(rows), uniform)))
        assert all(0 <= int(index) < 3 for index in found)


def chi_squared(distribution: np.ndarray, indices: np.ndarray) -> float:
    expected = distribution * len(indices)
    counts = np.bincount(indices, minlength=len(distribution))
    return float(((counts - expected) ** 2 / expected).sum())


THRESHOLD = 45.8
"""Chi-squared with 11 degrees of freedom exceeds this once in 3e5 under the null hypothesis."""


def keys_of(count: int, field: int) -> np.ndarray:
    keys = np.full((count, 5), 7, dtype=np.uint64)
    keys[:, field] = np.arange(count)
    return keys


@pytest.mark.parametrize("field", range(5), ids=["stream", "choice", "round", "purpose", "slot"])
def test_draws_follow_their_distribution_over_every_field_of_the_key(field: int) -> None:
    """False alarms: 5 tests at 1 in 3e5, deterministic once written."""
    distribution = np.random.default_rng(2).dirichlet(np.ones(12))
    distributions = torch.from_numpy(np.tile(distribution, (20_000, 1)))
    indices = Philox4x32().draw(distributions, keys_of(20_000, field)).numpy()
    assert chi_squared(distribution, indices) < THRESHOLD


def test_the_statistical_test_sees_a_biased_draw() -> None:
    """Planted: uniforms squeezed by 5%."""
    distribution = np.random.default_rng(2).dirichlet(np.ones(12))
    distributions = np.tile(distribution, (20_000, 1))
    uniforms = Philox4x32().uniforms(keys_of(20_000, 2)) * 0.95
    assert chi_squared(distribution, inverse_cdf(distributions, uniforms)) > THRESHOLD


def test_the_stream_key_depends_on_seed_and_prompt() -> None:
    made = {stream_key(seed, ids) for seed in (0, 1, 2**64 - 1) for ids in ([1], [1, 2], [2, 1])}
    assert len(made) == 9
    assert stream_key(3, [1, 2]) == stream_key(3, np.array([1, 2])) == stream_key(3, (1, 2))
