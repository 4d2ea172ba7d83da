"""Categorical draws by inversion of the cumulative distribution."""

from __future__ import annotations

from typing import Any

import numpy as np
from array_api_compat import array_namespace, is_numpy_array, is_torch_array
from numpy.typing import NDArray


def inverse_cdf(distributions: Any, uniforms: Any) -> Any:
    """Categorical draws by inversion, only ever on positive mass.

    Args:
        distributions: [B, M], non-negative, each row with a positive finite sum (need not be one).
        uniforms: float64 [B] in [0, 1 - 2**-53], of the same array library.

    Returns:
        int64 [B], inside the row whatever its entries. Cumulative sums are float64.
    """
    xp = array_namespace(distributions)
    on_host = is_numpy_array(distributions) or (
        is_torch_array(distributions) and distributions.device.type == "cpu"
    )
    if on_host and distributions.shape[1] >= _WIDE:
        return xp.asarray(_in_two_levels(distributions, np.asarray(uniforms), xp))
    # fl(u * total) < total for u <= 1 - 2**-53: the index is one where the sum rises, if any is.
    if on_host:
        cumulative = distributions.cumsum(-1, dtype=xp.float64)
        rows = zip(np.asarray(cumulative), np.asarray(uniforms), strict=True)
        counts = (row.searchsorted(u * row[-1], side="right") for row, u in rows)
        found = np.fromiter(counts, dtype=np.int64, count=len(distributions))
        return xp.asarray(np.minimum(found, distributions.shape[1] - 1))
    cumulative = xp.cumulative_sum(distributions, axis=-1, dtype=xp.float64)
    threshold = uniforms[:, None] * cumulative[:, -1:]
    return xp.sum(xp.astype(cumulative[:, :-1] <= threshold, xp.int64), axis=-1)


_WIDE, _BLOCK = 1 << 14, 128
"""From which width on distributions are searched in two levels, and the width of a block."""


def _in_two_levels(distributions: Any, uniforms: NDArray[np.float64], xp: Any) -> NDArray[np.int64]:
    """The same draws: first a block, then a place in it, so that few running sums are made."""
    if distributions.dtype not in (xp.float32, xp.float64):
        distributions = xp.astype(distributions, xp.float32)
    whole = distributions.shape[1] // _BLOCK * _BLOCK
    blocks = xp.reshape(distributions[:, :whole], (distributions.shape[0], -1, _BLOCK))
    sums = np.asarray(xp.sum(blocks, axis=-1, dtype=xp.float64))
    if whole < distributions.shape[1]:
        rest = np.asarray(distributions[:, whole:]).sum(-1, keepdims=True, dtype=np.float64)
        sums = np.concatenate([sums, rest], axis=-1)
    found = np.empty(len(sums), dtype=np.int64)
    rows = zip(np.asarray(distributions), sums, uniforms, strict=True)
    for row, (distribution, of_blocks, u) in enumerate(rows):
        running = of_blocks.cumsum()
        threshold = u * running[-1]
        block = min(running.searchsorted(threshold, side="right"), len(running) - 1)
        inside = distribution[block * _BLOCK : (block + 1) * _BLOCK].cumsum(dtype=np.float64)
        # The levels round apart: what is left of the threshold is held to what the block holds.
        left = max(threshold - (running[block] - of_blocks[block]), 0.0)
        left = min(left, inside[-1] * (1 - 2.0**-53))
        place = min(inside.searchsorted(left, side="right"), len(inside) - 1)
        found[row] = block * _BLOCK + place
    return found
