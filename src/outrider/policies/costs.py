"""What a round costs: seconds = c0 + c1 * (tokens verified) + c2 * (draft steps)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from .account import Probes

COST_RATIO = 0.125
"""What a draft step costs beside a plain round, as long as none is configured or timed."""

TOKEN_RATIO = 0.02
"""The same of one more token to verify: reading the weights takes most of a small forward."""

MEMORY = 256
"""About so many of the latest rounds that drafted count."""

PLAIN_MEMORY = 16
"""About so many of the latest plain rounds count; few are run while drafts pay."""

PRIOR_WEIGHT = 0.25
"""Each made-up round of the prior counts as so many timed ones."""

CLIP = 3.0
"""A round counts as at most so many times what was expected, once one was timed."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RoundCosts:
    """What is known of rounds of about one number of rows: above all what they cost.

    Times are in seconds once a plain round was timed; until then a plain round takes 1.

    Attributes:
        rows: the number of rows that these costs are for: a power of two.
        step_ratio, token_ratio: the prior: a draft step, and one more token for each row, beside a
            plain round.
        plain: the mean time of plain rounds.
        plain_rounds: their decayed number; 0 if none was timed.
        sums: of x times (x, seconds) over timed rounds that drafted, x = (1, tokens, steps):
            [3, 4] by rows, decayed.
        fitted: (c0, c1, c2), where a round was timed that drafted.
        since_plain: timed rounds since the last plain one.
        probes: when to draft in such rounds although that is not expected to pay.
    """

    rows: int = 1
    step_ratio: float = COST_RATIO
    token_ratio: float = TOKEN_RATIO
    plain: float = 1.0
    plain_rounds: float = 0.0
    sums: tuple[float, ...] = (0.0,) * 12
    fitted: tuple[float, float, float] | None = None
    since_plain: int = 0
    probes: Probes = field(default_factory=Probes)

    @property
    def coefficients(self) -> tuple[float, float, float]:
        """The coefficients (c0, c1, c2)."""
        if self.fitted is not None:
            return self.fitted
        one_each = self.plain * self.token_ratio
        return self.plain - one_each, one_each / self.rows, self.plain * self.step_ratio

    def seconds(self, tokens: float, steps: float) -> float:
        """Return the expected time of a round that drafts."""
        c0, c1, c2 = self.coefficients
        return c0 + c1 * tokens + c2 * steps

    def clipped(self, seconds: float, tokens: float = 0.0, steps: float = 0.0) -> float:
        """Return a round's time, or less if it is out of proportion; no tokens: a plain one."""
        timed = self.sums[0] if tokens else self.plain_rounds
        expected = self.seconds(tokens, steps) if tokens else self.plain
        return min(seconds, CLIP * expected) if timed else seconds

    def add_plain(self, seconds: float) -> RoundCosts:
        """Return the costs after a plain round."""
        rounds = self.plain_rounds * (1 - 1 / PLAIN_MEMORY) + 1
        before = self.plain if self.plain_rounds else 0.0
        plain = before + (seconds - before) / rounds
        return replace(self, plain=plain, plain_rounds=rounds, since_plain=0)

    def add_drafted(self, seconds: float, tokens: float, steps: float) -> RoundCosts:
        """Return the costs after a round that drafted, fitted to all and to the prior."""
        x = np.array([1.0, tokens, steps])
        new = np.outer(x, [*x, seconds])
        sums = np.array(self.sums).reshape(3, 4) * (1 - 1 / MEMORY) + new
        rows = float(self.rows)
        made_up = np.array([[1.0, rows, 0.0], [1.0, 2 * rows, 0.0], [1.0, 2 * rows, 1.0]])
        gram = PRIOR_WEIGHT * made_up.T @ made_up
        prior = replace(self, fitted=None).coefficients
        fitted = nonnegative_least_squares(sums[:, :3] + gram, sums[:, 3] + gram @ prior)
        kept = tuple(sums.ravel().tolist())
        return replace(self, sums=kept, fitted=fitted, since_plain=self.since_plain + 1)


def nonnegative_least_squares(gram: Floats, moment: Floats) -> tuple[float, float, float]:
    """Minimise xT A x - 2 bT x over x >= 0.

    The minimum lies where some coefficients are 0 and the others solve their own equations. Among
    such points without a negative coefficient it is the one with the largest bT x.

    Args:
        gram: A [3, 3], positive definite.
        moment: b [3].
    """
    best, best_value = np.zeros(3), 0.0
    for part in (list(part) for size in (3, 2, 1) for part in combinations(range(3), size)):
        solved = np.linalg.solve(gram[np.ix_(part, part)], moment[part])
        value = float(moment[part] @ solved)
        if (solved >= 0).all() and value > best_value:
            best, best_value = np.zeros(3), value
            best[part] = solved
            if len(part) == 3:
                break
    return float(best[0]), float(best[1]), float(best[2])
