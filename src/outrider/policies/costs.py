"""What a round costs: seconds = c0 + c1 * (tokens verified) + c2 * (draft steps)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

COST_RATIO = 0.125
"""What a draft step costs beside a plain round, as long as none is configured and nothing was timed."""

TOKEN_RATIO = 0.02
"""The same of one more token to verify: reading the weights takes most of a small forward."""

MEMORY = 256
"""About so many of the latest rounds that drafted count."""

PLAIN_MEMORY = 16
"""About so many of the latest plain rounds count; few are run while drafts pay."""

PRIOR_WEIGHT = 0.25
"""Each made-up round of the prior counts as so many timed ones."""

CLIP = 3.0
"""A round counts as taking at most so many times what was expected of it,"""

TRUSTED = 8.0
"""once so many rounds were timed."""

Vector = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class RoundCosts:
    """What rounds of about one number of rows cost, from decayed sums over timed rounds.

    Times are in seconds once a plain round was timed; until then a plain round takes 1.

    Attributes:
        rows: the number of rows that these costs are for: a power of two.
        step_ratio, token_ratio: the prior: a draft step, and one more token for each row, beside a
            plain round.
        plain: the mean time of plain rounds.
        plain_rounds: their decayed number; 0 if none was timed.
        gram: the decayed sum of x xT over timed rounds that drafted, x = (1, tokens, steps): its
            upper triangle, by rows.
        moment: the decayed sum of x times seconds.
        coefficients: (c0, c1, c2).
    """

    rows: int
    step_ratio: float = COST_RATIO
    token_ratio: float = TOKEN_RATIO
    plain: float = 1.0
    plain_rounds: float = 0.0
    gram: tuple[float, ...] = (0.0,) * 6
    moment: tuple[float, ...] = (0.0,) * 3
    coefficients: Vector = (0.0, 0.0, 0.0)

    @classmethod
    def prior(cls, rows: int, step_ratio: float, token_ratio: float = TOKEN_RATIO) -> RoundCosts:
        """Return costs of which nothing was timed."""
        return cls(rows, step_ratio, token_ratio)._fitted()

    @property
    def drafts_timed(self) -> float:
        """The decayed number of timed rounds that drafted."""
        return self.gram[0]

    @property
    def token_s(self) -> float:
        """The time to verify one more token."""
        return self.coefficients[1]

    @property
    def step_s(self) -> float:
        """The time of a draft step."""
        return self.coefficients[2]

    def seconds(self, tokens: float, steps: float) -> float:
        """Return the expected time of a round that drafts."""
        c0, c1, c2 = self.coefficients
        return c0 + c1 * tokens + c2 * steps

    def clipped(self, seconds: float, tokens: float, steps: float) -> float:
        """Return a time, or less if it is out of proportion."""
        drafted = tokens > self.rows * 2 - 1 or steps > 0
        timed = self.drafts_timed if drafted else self.plain_rounds
        expected = self.seconds(tokens, steps) if drafted else self.plain
        return min(seconds, CLIP * expected) if timed >= TRUSTED else seconds

    def add_plain(self, seconds: float) -> RoundCosts:
        """Return the costs after a plain round."""
        rounds = self.plain_rounds * (1 - 1 / PLAIN_MEMORY) + 1
        before = self.plain if self.plain_rounds else 0.0
        mean = before + (seconds - before) / rounds
        return replace(self, plain=mean, plain_rounds=rounds)._fitted()

    def add_drafted(self, seconds: float, tokens: float, steps: float) -> RoundCosts:
        """Return the costs after a round that drafted; nothing changes before a plain one."""
        if not self.plain_rounds:
            return self
        gram, moment = _sums([((1.0, tokens, steps), seconds, 1.0)])
        keep = 1 - 1 / MEMORY
        return replace(
            self,
            gram=tuple(keep * old + new for old, new in zip(self.gram, gram, strict=True)),
            moment=tuple(keep * old + new for old, new in zip(self.moment, moment, strict=True)),
        )._fitted()

    def _fitted(self) -> RoundCosts:
        """Fit the coefficients to the timed rounds and three made-up ones of the prior."""
        one, two = float(self.rows), 2.0 * self.rows
        verified = self.plain * (1 + self.token_ratio)
        gram, moment = _sums(
            [
                ((1.0, one, 0.0), self.plain, PRIOR_WEIGHT),
                ((1.0, two, 0.0), verified, PRIOR_WEIGHT),
                ((1.0, two, 1.0), verified + self.plain * self.step_ratio, PRIOR_WEIGHT),
            ]
        )
        total = [old + new for old, new in zip(self.gram, gram, strict=True)]
        target = [old + new for old, new in zip(self.moment, moment, strict=True)]
        return replace(self, coefficients=nonnegative_least_squares(total, target))


def _sums(rounds: Iterable[tuple[Vector, float, float]]) -> tuple[list[float], list[float]]:
    """Sum weight * x xT (upper triangle) and weight * x * seconds over rounds."""
    gram, moment = [0.0] * 6, [0.0] * 3
    for (a, b, c), seconds, weight in rounds:
        for i, product in enumerate((a * a, a * b, a * c, b * b, b * c, c * c)):
            gram[i] += weight * product
        for i, value in enumerate((a, b, c)):
            moment[i] += weight * value * seconds
    return gram, moment


_SUBSETS = ((0, 1, 2), (0, 1), (0, 2), (1, 2), (0,), (1,), (2,))


def nonnegative_least_squares(gram: list[float], moment: list[float]) -> Vector:
    """Minimise xT A x - 2 bT x over x >= 0.

    The minimum lies where some coefficients are 0 and the others solve their own equations. Among
    such points without a negative coefficient it is the one with the largest bT x.

    Args:
        gram: the upper triangle of A [3, 3], positive definite, by rows.
        moment: b [3].
    """
    full = np.array(
        [[gram[0], gram[1], gram[2]], [gram[1], gram[3], gram[4]], [gram[2], gram[4], gram[5]]]
    )
    vector = np.array(moment)
    best, best_value = np.zeros(3), 0.0
    for subset in _SUBSETS:
        part = list(subset)
        solved = np.linalg.solve(full[np.ix_(part, part)], vector[part])
        value = float(vector[part] @ solved)
        if (solved >= 0).all() and value > best_value:
            best, best_value = np.zeros(3), value
            best[part] = solved
            if len(part) == 3:
                break
    return float(best[0]), float(best[1]), float(best[2])


def times(
    costs: RoundCosts, rows: int, nodes: NDArray[np.int64], *, by_model: bool
) -> NDArray[np.float64]:
    """Return the expected time of a round of each depth, float64 [K + 1].

    Args:
        costs: of rounds of about so many rows.
        rows: in the round.
        nodes: drafted for each row at each depth, int64 [K + 1].
        by_model: whether each depth takes a draft step.
    """
    steps = np.arange(len(nodes)) if by_model else np.zeros(len(nodes))
    c0, c1, c2 = costs.coefficients
    seconds: NDArray[np.float64] = c0 + c1 * rows * (1.0 + nodes) + c2 * steps
    seconds[0] = costs.plain
    return seconds
