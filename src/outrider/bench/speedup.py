"""The ratio of two speeds, with an interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf, sqrt

import numpy as np

_T = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
)
"""Student's t for 1 to 20 degrees of freedom; beyond, it nears the normal's as their inverse."""


@dataclass(frozen=True, slots=True)
class Speedup:
    """A ratio of speeds and its 95% interval; no interval from fewer than two stretches."""

    ratio: float
    low: float | None = None
    high: float | None = None

    @property
    def outcome(self) -> int:
        """1 if its whole interval is above 1, -1 if it is below, else 0."""
        return ((self.low or 0.0) > 1) - ((self.high or inf) < 1)


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
    without = (plain - sums[0]) / (other - sums[1])
    error = sqrt((count - 1) * np.log(without).var())
    margin = exp(min(t_quantile(count - 1) * error, 700.0))
    ratio = float(plain / other)
    return Speedup(ratio, ratio / margin, ratio * margin)


def t_quantile(freedom: int) -> float:
    """Return the 97.5% quantile of Student's t with `freedom` >= 1 degrees, to 0.1%."""
    if freedom <= len(_T):
        return _T[freedom - 1]
    return 1.95996 + (_T[-1] - 1.95996) * len(_T) / freedom
