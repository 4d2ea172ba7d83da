"""Evidence against a hypothesis that may be looked at after every token: bets on features of draws.

Given its prefix, a token x is a draw from a known distribution p. For a feature f of tokens with
values in [-1, 1] that is fixed before the draw, g = f(x) - sum_v p(v) f(v) has the mean 0 and lies
in [-2, 2]. A bet l, |l| < 1/2, multiplies what it holds by 1 + l g - |l| eta, where eta bounds
what rounding does to the mean. Held together, E = sum_j w_j prod_t (1 + l_j g_t^(j) - |l_j|
eta^(j)) with weights that add up to 1 has a mean of at most 1 at any moment, and exceeds 1 / alpha
with a probability of at most alpha, whenever one looks (Ville's inequality). Grünwald, de Heide and
Koolen, "Safe testing", arXiv 1906.07801; Waudby-Smith and Ramdas, arXiv 2010.09686.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from .records import Row

BETS = np.array([-0.45, -0.3, -0.15, -0.07, -0.03, 0.03, 0.07, 0.15, 0.3, 0.45])
"""From faults that are seen in a few tokens to those that take thousands."""


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """What has been found against one hypothesis.

    Attributes:
        held: logarithms of what each bet holds, float64 [features, bets].
        tokens: how many draws were looked at.
        curve: after how many tokens the logarithm of E was what, at most and in the end of a text.
        highest: the largest logarithm of E at any moment.
        sums, counts: of gains, and of the draws that had one, float64 [features].
    """

    held: Row
    sums: Row
    counts: Row
    tokens: int = 0
    curve: tuple[tuple[int, float], ...] = ()
    highest: float = 0.0

    @property
    def log_e(self) -> float:
        """The logarithm of E."""
        return float(total(self.held))

    @property
    def leader(self) -> int:
        """The feature that holds most."""
        return int(self.held.max(1).argmax())

    @property
    def off(self) -> float:
        """By how much of all draws that feature came too often: half the mean of its gains."""
        return float(self.sums[self.leader] / max(1, self.counts[self.leader]) / 2)


def start(features: int) -> Evidence:
    """Return what is held before the first token: 1, in equal parts."""
    held = np.full((features, len(BETS)), -math.log(features * len(BETS)))
    return Evidence(held, np.zeros(features), np.zeros(features))


def look(evidence: Evidence, gains: Row, noise: Row) -> Evidence:
    """Bet on the tokens of a text.

    Args:
        evidence: before it.
        gains: g of each token and feature, float64 [n, features], NaN where a feature says nothing.
        noise: eta of each feature, float64 [features].
    """
    gains = gains[~np.isnan(gains).all(1)]
    if not len(gains):
        return evidence
    factors = growth(gains, noise)
    held = evidence.held + factors.cumsum(0)
    moments = total(held)
    # A text may be rejected at its highest, and end below.
    points = sorted({int(moments.argmax()), len(gains) - 1})
    return replace(
        evidence,
        held=held[-1],
        sums=evidence.sums + np.nansum(gains, 0),
        counts=evidence.counts + (~np.isnan(gains)).sum(0),
        tokens=evidence.tokens + len(gains),
        curve=(
            *evidence.curve,
            *((evidence.tokens + 1 + at, float(moments[at])) for at in points),
        ),
        highest=max(evidence.highest, float(moments.max())),
    )


def growth(gains: Row, noise: Row) -> Row:
    """Return by how much logarithms of what bets hold grow, float64 [n, features, bets]."""
    sizes = np.abs(BETS)
    # No factor may be negative, whatever is drawn.
    usable = sizes * (2 + noise[:, None]) < 1
    bets = np.where(usable, gains[..., None] * BETS - sizes * noise[:, None], 0.0)
    return np.asarray(np.log1p(np.where(np.isnan(bets), 0.0, bets)))


def total(held: Row) -> Row:
    """Return the logarithm of a sum over features and bets, float64 [...] of [..., J, B]."""
    most = held.max((-2, -1), keepdims=True)
    return np.asarray(most[..., 0, 0] + np.log(np.exp(held - most).sum((-2, -1))))


def distance_found(tokens: int, alpha: float, features: int) -> float:
    """Return the total variation that is found in so many tokens with a probability of .9.

    Args:
        tokens: that are looked at, each off by it, where some feature sees all of it and has both
            values half of the time; more are needed where none does.
        alpha: the rate of false alarms.
        features: among which bets are shared out.

    Source: a bet of twice the distance d grows by 2 d^2 a token on average, with a standard
    deviation of 2 d; see the module for what it has to reach.
    """
    quantile = 1.2816
    deviations = quantile + math.sqrt(quantile**2 + 2 * math.log(features * len(BETS) / alpha))
    return min(1.0, deviations / (2 * math.sqrt(max(1, tokens))))
