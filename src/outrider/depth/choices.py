"""What is planned for rows of a batch, alone and together."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan

import numpy as np
from numpy.typing import NDArray

from .costs import Prices
from .sureness import WorthAStep


@dataclass(frozen=True, slots=True)
class Choice:
    """What is planned for one row.

    Attributes:
        steps: the most to take.
        plain, token: `Worth` of tokens that take none.
        likely: about how many are taken.
        pace: tokens in the time of a plain forward that a step has to bring where the row's draft
            ends by itself; 0 where it does not.
        planned: what it emits in such a round; NaN for a row that is planned by itself.
    """

    steps: int
    plain: float
    token: float
    likely: int
    pace: float = 0.0
    planned: float = nan


@dataclass(frozen=True, slots=True)
class Choices:
    """What is planned for rows that decide together.

    Attributes:
        rows: for each of them.
        prices: of rounds.
        widths, covered, backlog: see `SharedWorth`.
        rate: tokens a second of all of them, decoded as is best without looking any up.
        pace: tokens a second of all of them that a step has to bring if drafts end early; 0 for
            drafts that do not.
        stands: for how many more rounds it is as good; 0 for an exception.
        likely: about how many tokens are drafted for a row.
        rule: what ends drafts of these rows alone, if anything does.
    """

    rows: list[Choice]
    prices: Prices
    widths: NDArray[np.float64]
    covered: float
    backlog: float
    rate: float
    pace: float
    stands: int
    likely: float = 0.0
    rule: WorthAStep | None = None
