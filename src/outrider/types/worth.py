"""What tokens that are looked up, and cost nothing to propose, have to bring in a round."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class SharedWorth:
    """What looked-up tokens have to bring in rows that decide together about them.

    A forward waits for the slowest draft, and is as wide for all of them, or `ragged`. Counted as
    in `Worth`, but in tokens of all rows that decide together.

    Attributes:
        planned: what each row emits in the planned round, float64 [B]; NaN if it is by itself.
        widths: in the time of a round with no step of a model, as wide as 0, 1, ..., N drafted
            tokens, float64 [N + 1].
        covered: in the time of such a round as wide as the planned one usually is.
        backlog, reading_on: in the time that the drafter takes to read on, for each row which took
            none of its tokens, and beyond that, however few rows there are.
        ragged: where forwards take what their tokens take, whichever rows have them, about how many
            a row of the planned round drafts; None where a forward is as wide for all rows as for
            the widest.
        weights: what a token of each row counts, float64 [B], 1 on average; None if all the same.
        certain: and so much of it, however far ahead of the others its row is.
        spread: of the rest, to a row so many tokens ahead of all, another one counts for 1 / e.
    """

    planned: NDArray[np.float64]
    widths: NDArray[np.float64]
    covered: float
    backlog: float = 0.0
    ragged: float | None = None
    weights: NDArray[np.float64] | None = None
    certain: float = 0.0
    spread: float = inf
    reading_on: float = 0.0


@dataclass(frozen=True, slots=True)
class Worth:
    """What tokens that cost nothing to propose have to bring, to be worth their verification.

    In tokens that each of B rows emits in the same time if it is decoded as it is best decoded
    without them.

    Attributes:
        plain: in a round that drafts nothing, float64 [B].
        token: in the time that one more drafted token takes the target, float64 [B].
        together: of rows that share forwards, and so decide together; None where every row is for
            itself.
    """

    plain: NDArray[np.float64]
    token: NDArray[np.float64]
    together: SharedWorth | None = None
