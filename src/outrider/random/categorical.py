"""Categorical draws by inversion of the cumulative distribution."""

from __future__ import annotations

from typing import Any

import numpy as np
from array_api_compat import array_namespace, is_numpy_array, is_torch_array


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
