"""The ratio of two speeds, with an interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, sqrt

import numpy as np

_T = {1: 12.706205, 2: 4.302653, 3: 3.182446}
"""Student's t where the expansion in `t_quantile` is off by more than 0.1%."""


@dataclass(frozen=True, slots=True)
class Speedup:
    """A ratio of speeds and its 95% interval; no interval from fewer than two stretches."""

    ratio: float
    low: float | None = None
    high: float | None = None


def speedup(
    plain_s: Sequence[float], other_s: Sequence[float], distinct: int | None = None
) -> Speedup:
    """Compare a speed with plain decoding's, on the same stretches and for as many tokens.

    The standard error of the ratio's logarithm is the jackknife's over stretches, which are left
    out in pairs, since both ways of decoding met the same prompt and the same noise; the interval
    is Student's t with n - 1 degrees of freedom. Repeats of a stretch say nothing of other
    prompts, and are added up before: stretches come again after `distinct` of them.
    """
    each = np.array([plain_s, other_s], dtype=float)
    count = min(distinct or each.shape[1], each.shape[1])
    sums = np.stack([each[:, first::count].sum(1) for first in range(count)], 1)
    plain, other = sums.sum(1)
    if count < 2:
        return Speedup(float(plain / other))
    without = np.log((plain - sums[0]) / (other - sums[1]))
    error = sqrt((count - 1) * without.var())
    margin = exp(min(t_quantile(count - 1) * error, 700.0))
    ratio = float(plain / other)
    return Speedup(ratio, ratio / margin, ratio * margin)


def t_quantile(freedom: int) -> float:
    """Return the 97.5% quantile of Student's t with `freedom` >= 1 degrees, to 0.1%.

    From 4 degrees on, Fisher's expansion about the normal quantile: Abramowitz and Stegun, 26.7.5.
    """
    if freedom in _T:
        return _T[freedom]
    z = 1.959964
    terms = (
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return float(sum(term / freedom**power for power, term in enumerate(terms)))
