"""Categorical draws: by inversion of the cumulative distribution, or by races of exponentials.

An inverted uniform moves to another index wherever the sums before it move. In a race every index
has a time of its own, an exponential over its mass, and the least time wins: two distributions of
total variation d have different winners with probability 2 d / (1 + d) at most (Daliri, Musco and
Suresh 2024, arXiv 2408.07978). A race among all of a vocabulary takes a number for each token, so
it is run in heats: among blocks of 64 blocks, among the 64 of the winner, and so on down to tokens.
Each heat picks in proportion to mass, so the product is exact. The first heat differs with
probability 2 d at most, each later one with 4 d; measured, all three together with about 1.5 d.
"""

from __future__ import annotations

from typing import Any

from array_api_compat import array_namespace, device

BLOCK = 64
"""How many indices race in a heat."""


def inverse_cdf(distributions: Any, uniforms: Any) -> Any:
    """Categorical draws by inversion, only ever on positive mass.

    Args:
        distributions: [B, M], non-negative, each row with a positive finite sum (need not be one).
        uniforms: float64 [B] in [0, 1 - 2**-53], of the same array library.

    Returns:
        int64 [B], inside the row whatever its entries. Cumulative sums are float64.
    """
    xp = array_namespace(distributions)
    # fl(u * total) < total for u <= 1 - 2**-53: the index is one where the sum rises, if any is.
    cumulative = xp.cumulative_sum(distributions, axis=-1, dtype=xp.float64)
    threshold = uniforms[:, None] * cumulative[:, -1:]
    return xp.sum(xp.astype(cumulative[:, :-1] <= threshold, xp.int64), axis=-1)


def block_sums(masses: Any, size: int = BLOCK) -> Any:
    """Sum masses [..., M] by blocks of `size`, the last one of what is left: [..., M / size].

    In the dtype of the masses, float32 at least, and always in the same order. Sums of blocks are
    then added in float64: a float64 sum of float32 entries would first copy all of them.
    """
    xp = array_namespace(masses)
    dtype = xp.result_type(masses.dtype, xp.float32)
    *rows, width = masses.shape
    whole = width // size * size
    blocks = xp.reshape(masses[..., :whole], (*rows, width // size, size))
    sums = [xp.sum(blocks, axis=-1, dtype=dtype)]
    if whole < width:
        sums.append(xp.sum(masses[..., whole:], axis=-1, keepdims=True, dtype=dtype))
    return xp.concat(sums, axis=-1) if len(sums) > 1 else sums[0]


def row_totals(masses: Any) -> Any:
    """Sum masses [..., M] to float64 [...], within 1e-6 of the total for float32 masses."""
    xp = array_namespace(masses)
    parts = masses if masses.dtype == xp.float64 else block_sums(masses, 8 * BLOCK)
    return xp.sum(parts, axis=-1, dtype=xp.float64)


def noise_size(width: int) -> int:
    """The number of exponentials that a race among `width` indices takes."""
    size = 0
    while width > BLOCK:
        size, width = size + BLOCK, -(-width // BLOCK)
    return size + width


def race_index(distributions: Any, noise: Any) -> Any:
    """Categorical draws by races in heats, only ever on positive mass.

    Args:
        distributions: [B, M], non-negative, each row with a positive finite sum (need not be one).
        noise: float64 [B, L], exponentials, positive and finite, with L >= noise_size(M).

    Returns:
        int64 [B], inside the row whatever its entries. Sums of blocks of 64 are formed in the
        distributions' dtype, all others in float64.
    """
    xp = array_namespace(distributions)
    levels = [distributions]
    while levels[-1].shape[-1] > BLOCK:
        levels.append(xp.astype(block_sums(levels[-1]), xp.float64))
    start = BLOCK * (len(levels) - 1)
    top = levels.pop()
    index = xp.argmax(top / noise[:, start : start + top.shape[-1]], axis=-1, keepdims=True)
    within = xp.arange(BLOCK, device=device(distributions))
    for level in reversed(levels):
        start -= BLOCK
        last = level.shape[-1] - 1
        ragged = last % BLOCK != BLOCK - 1
        places = index * BLOCK + within
        at = xp.clip(places, max=last) if ragged else places
        masses = xp.take_along_axis(level, at, axis=-1)
        masses = xp.where(places <= last, masses, 0) if ragged else masses
        won = xp.argmax(masses / noise[:, start : start + BLOCK], axis=-1, keepdims=True)
        index = index * BLOCK + won
        index = xp.clip(index, max=last) if ragged else index
    return index[:, 0]
