"""The G-test: do counts follow a distribution, and what would the test have seen?

Sokal & Rohlf, "Biometry", section 17.2: G = 2 sum O ln(O / E) against chi-squared, with Williams'
correction for small counts. Power by the noncentral chi-squared distribution: a distribution that
is off by a total variation of d has a noncentrality of at least 4 n d^2, whatever its shape
(Cauchy-Schwarz).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

LEAST_EXPECTED = 5.0
"""Outcomes are pooled until each bin is expected to hold at least this many counts."""


@dataclass(frozen=True, slots=True)
class Fit:
    """How well counts follow a distribution: one G statistic, or several added up.

    Attributes:
        samples: counts that were tested.
        statistic: G, corrected.
        freedom: its degrees of freedom.
        impossible: counts of outcomes that the distribution gives no probability.
    """

    samples: int
    statistic: float
    freedom: int
    impossible: int

    @property
    def p_value(self) -> float:
        """The probability of a larger statistic; 0 if the impossible was counted."""
        if self.impossible:
            return 0.0
        return chi_squared_tail(self.statistic, self.freedom) if self.freedom else 1.0

    def power(self, total_variation: float, level: float) -> float:
        """The least probability of rejecting a distribution this far off, tested at `level`."""
        if not self.freedom:
            return 0.0
        noncentrality = 4 * self.samples * total_variation**2
        return noncentral_tail(critical_value(level, self.freedom), self.freedom, noncentrality)


def fit(counts: NDArray[np.int64], distribution: NDArray[np.float64]) -> Fit:
    """Test counts [V] against a distribution [V]."""
    total = int(counts.sum())
    impossible = int(counts[distribution == 0].sum())
    order = np.argsort(-distribution, kind="stable")
    bins: list[list[float]] = []
    for index in order[distribution[order] > 0]:
        # Once an outcome is too rare for a bin of its own, it and all rarer ones share one.
        if bins and (bins[-1][1] < LEAST_EXPECTED):
            bins[-1][0] += float(counts[index])
            bins[-1][1] += float(distribution[index]) * total
        else:
            bins.append([float(counts[index]), float(distribution[index]) * total])
    if len(bins) > 1 and bins[-1][1] < LEAST_EXPECTED:
        rare = bins.pop()
        bins[-1] = [bins[-1][0] + rare[0], bins[-1][1] + rare[1]]
    if len(bins) < 2:
        return Fit(total, 0.0, 0, impossible)
    freedom = len(bins) - 1
    statistic = 2 * sum(seen * math.log(seen / expected) for seen, expected in bins if seen)
    correction = 1 + (sum(total / expected for _, expected in bins) - 1) / (6 * total * freedom)
    return Fit(total, statistic / correction, freedom, impossible)


def together(fits: Sequence[Fit]) -> Fit:
    """Independent fits as one: statistics and degrees of freedom add up."""
    return Fit(
        # Where there is only one bin nothing was tested.
        sum(item.samples for item in fits if item.freedom),
        sum(item.statistic for item in fits),
        sum(item.freedom for item in fits),
        sum(item.impossible for item in fits),
    )


def chi_squared_tail(value: float, freedom: float) -> float:
    """P(X > value) for chi-squared X: the regularised upper incomplete gamma function."""
    return noncentral_tail(value, freedom, 0.0)


def noncentral_tail(value: float, freedom: float, noncentrality: float) -> float:
    """P(X > value) for noncentral chi-squared X: a Poisson mixture of central ones."""
    mean = torch.tensor(noncentrality / 2, dtype=torch.float64)
    spread = 12 * math.sqrt(mean) + 30
    counts = torch.arange(max(0, int(mean - spread)), int(mean + spread) + 1, dtype=torch.float64)
    weights = torch.exp(torch.xlogy(counts, mean) - mean - torch.lgamma(counts + 1))
    half = torch.full_like(counts, max(value, 0.0) / 2)
    return float(weights @ torch.special.gammaincc(freedom / 2 + counts, half))


def critical_value(level: float, freedom: int) -> float:
    """The value that chi-squared exceeds with probability `level`, by bisection."""
    low, high = 0.0, float(freedom + 1)
    while chi_squared_tail(high, freedom) > level:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if chi_squared_tail(middle, freedom) > level else (low, middle)
    return high


def holm(p_values: Sequence[float], level: float) -> list[bool]:
    """Which hypotheses stand, so that with probability 1 - level no true one falls (Holm 1979)."""
    stands = [True] * len(p_values)
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    for rank, index in enumerate(order):
        if p_values[index] > level / (len(p_values) - rank):
            break
        stands[index] = False
    return stands
