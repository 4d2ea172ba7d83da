"""Draws by races in heats: exact, inside the support, and steady where a distribution moves."""

from __future__ import annotations

from typing import Any

import array_api_strict
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from outrider.random import Philox4x32, inverse_cdf, row_totals
from outrider.random.categorical import BLOCK, block_sums, noise_size, race_index

Floats = NDArray[np.float64]


def keys_of(count: int) -> NDArray[np.uint64]:
    keys = np.full((count, 5), 3, dtype=np.uint64)
    keys[:, 2] = np.arange(count)
    return keys


def heats(masses: Floats, noise: Floats) -> tuple[int, float]:
    """The winner by the definition, written apart: recursion over blocks of blocks of tokens."""
    levels = [masses]
    while len(levels[-1]) > BLOCK:
        below = levels[-1]
        starts = range(0, len(below), BLOCK)
        levels.append(np.array([below[start : start + BLOCK].sum() for start in starts]))
    first, share, at = 0, 1.0, BLOCK * (len(levels) - 1)
    for level in reversed(levels):
        own = level[first : first + BLOCK]
        times = np.full(len(own), np.inf)
        times[own > 0] = noise[at : at + len(own)][own > 0] / own[own > 0]
        won = int(times.argmin())
        share *= own[won] / own.sum()
        first, at = (first + won) * BLOCK, at - BLOCK
    return first // BLOCK, share


@pytest.mark.parametrize("width", [1, 2, 63, 64, 65, 300, 4096, 4097, 20_001])
def test_a_race_is_the_product_of_its_heats(width: int) -> None:
    """Each heat picks in proportion to mass, and their product is the token's probability."""
    rng = np.random.default_rng(width)
    masses = rng.dirichlet(np.full(width, 0.3)) * (rng.random(width) > 0.3) + 1e-300
    masses[0] += 1e-3
    masses /= masses.sum()
    noise = Philox4x32().race(keys_of(50), noise_size(width))
    drawn = race_index(np.tile(masses, (50, 1)), noise)
    for row in range(50):
        token, share = heats(masses, noise[row])
        assert drawn[row] == token
        assert abs(share - masses[token]) <= 1e-12


@pytest.mark.parametrize("make", [np.asarray, torch.asarray, array_api_strict.asarray])
@pytest.mark.parametrize("width", [5, 130, 5000])
def test_every_library_draws_the_same_token(make: Any, width: int) -> None:
    rows = np.random.default_rng(0).dirichlet(np.full(width, 0.1), 20)
    noise = Philox4x32().race(keys_of(20), noise_size(width))
    found = race_index(make(rows), make(noise))
    assert [int(token) for token in found] == race_index(rows, noise).tolist()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_race_is_never_won_without_mass(dtype: Any) -> None:
    rng = np.random.default_rng(1)
    rows = rng.dirichlet(np.full(1000, 0.02), 500) * (rng.random((500, 1000)) > 0.6)
    rows = rows[rows.sum(1) > 0].astype(dtype)
    rows[:5] = 0
    rows[:5, [0, 63, 64, 511, 999]] = np.diag([1, 1, 1e-30, 1, 1e-38])
    index = race_index(rows, Philox4x32().race(keys_of(len(rows)), noise_size(1000)))
    assert (rows[np.arange(len(rows)), index] > 0).all()


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("make", [np.asarray, torch.asarray, array_api_strict.asarray])
@pytest.mark.parametrize("entry", [0.0, np.nan, np.inf, -1.0])
def test_what_is_no_distribution_gives_a_token_inside_it(make: Any, entry: float) -> None:
    for width in (3, 100, 129):
        noise = Philox4x32().race(keys_of(1), noise_size(width))
        assert 0 <= int(race_index(make(np.full((1, width), entry)), make(noise))[0]) < width


def chi_squared(distribution: Floats, drawn: NDArray[np.int64]) -> float:
    expected = distribution * len(drawn)
    counts = np.bincount(drawn, minlength=len(distribution))
    return float(((counts - expected) ** 2 / expected).sum())


THRESHOLD = 382.0
"""Chi-squared with 259 degrees of freedom exceeds this once in a million under the null."""


def test_draws_over_several_blocks_follow_their_distribution() -> None:
    """False alarms: once in a million, deterministic once written. 260 tokens are two heats."""
    distribution = np.random.default_rng(2).dirichlet(np.full(260, 20.0))
    rows = torch.from_numpy(np.tile(distribution, (60_000, 1)))
    keys = keys_of(60_000)
    assert chi_squared(distribution, Philox4x32().draw(rows, keys).numpy()) < THRESHOLD

    class OneNoise(Philox4x32):
        """Planted: both heats have the same noise."""

        def race(self, keys: Any, size: int) -> Any:
            return np.tile(super().race(keys, BLOCK), 2)[..., :size]

    biased = OneNoise().draw(rows, keys).numpy()
    assert chi_squared(distribution, biased) > THRESHOLD


def perturbed(width: int, distance: float, seed: int) -> tuple[Floats, Floats]:
    """A long-tailed distribution, and one at a total variation from it, all logits moved."""
    rng = np.random.default_rng(seed)
    mass = (rng.permutation(width) + 3.0) ** -1.4
    mass /= mass.sum()
    noise, low, high = rng.normal(size=width), 0.0, 5.0
    for _ in range(50):
        middle = (low + high) / 2
        moved = mass * np.exp(middle * noise)
        moved /= moved.sum()
        below = abs(moved - mass).sum() / 2 < distance
        low, high = (middle, high) if below else (low, middle)
    return np.asarray(mass, dtype=np.float64), np.asarray(moved, dtype=np.float64)


def drawn(draw: Any, row: Floats, numbers: Floats) -> NDArray[np.int64]:
    """One draw from the same row for each row of numbers."""
    return np.concatenate([draw(row[None], numbers[i : i + 1]) for i in range(len(numbers))])


def changed(distance: float, draws: int, width: int = 32_000) -> dict[str, float]:
    """The share of tokens that differ after a move of a total variation, by way of drawing."""
    keys = keys_of(draws)
    noise, uniforms = Philox4x32().race(keys, noise_size(width)), Philox4x32().uniforms(keys)
    apart = dict.fromkeys(("race", "sums", "sums by rank"), 0.0)
    for seed in range(4):
        tokens = []
        for row in perturbed(width, distance, seed):
            order = np.argsort(-row, kind="stable")
            by_rank = order[drawn(inverse_cdf, row[order], uniforms)]
            by_id = drawn(inverse_cdf, row, uniforms)
            tokens.append((drawn(race_index, row, noise), by_id, by_rank))
        for way, one, other in zip(apart, *tokens, strict=True):
            apart[way] += float((one != other).mean()) / 4
    return apart


def test_a_draw_is_steady_where_its_distribution_moves() -> None:
    """At a total variation of .026 about one token in 25 differs, by inversion one in two.

    Of 1,200 draws a share of .05 lies above .085 once in 1e7 times; the draws are the same in every
    run.
    """
    apart = changed(0.026, 300)
    assert apart["race"] < 0.085
    assert min(apart["sums"], apart["sums by rank"]) > 4 * apart["race"]


def test_totals_of_float32_masses_are_right_to_a_millionth() -> None:
    rng = np.random.default_rng(4)
    for width in (1, 511, 512, 513, 262_144):
        rows = rng.dirichlet(np.full(width, 0.05), 3).astype(np.float32)
        exact = rows.astype(np.float64).sum(-1)
        for make in (np.asarray, torch.asarray):
            total = row_totals(make(rows))
            assert np.abs(np.asarray(total) - exact).max() <= 1e-6
    assert block_sums(torch.ones(1, 200, dtype=torch.bfloat16)).dtype == torch.float32


if __name__ == "__main__":  # the table in docs/concepts/randomness.md
    for distance in (0.001, 0.005, 0.026, 0.1):
        print(distance, *(f"{way} {share:.3f}" for way, share in changed(distance, 1000).items()))
