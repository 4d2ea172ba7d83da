"""What is planned for rows of a batch, alone and together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, nan

import numpy as np
from numpy.typing import NDArray

from ..types.records import SequenceState
from ..types.worth import SharedWorth, Worth
from .costs import Prices
from .levels import allowed
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
        widths, covered, backlog, reading_on: see `SharedWorth`.
        rate: tokens a second of all of them, decoded as is best without looking any up.
        pace: tokens a second of all of them that a step has to bring if drafts end early; 0 for
            drafts that do not.
        stands: for how many more rounds it is as good; 0 for an exception.
        likely: about how many tokens are drafted for a row.
        rule: what ends drafts of these rows alone, if anything does.
        weights, certain, spread: see `SharedWorth`.
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
    weights: NDArray[np.float64] | None = None
    certain: float = 0.0
    spread: float = inf
    reading_on: float = 0.0


@dataclass(frozen=True, slots=True)
class Decision:
    """What is planned for a round.

    Attributes:
        rows: for each row.
        steps: and how many it takes, which its length may allow less of.
        shared: the rows that decide together.
        together: and what they decided; None if there are none.
        rule: what ends drafts, if anything does.
        repeats: see `DraftPlan`.
    """

    rows: list[Choice]
    steps: list[int]
    shared: list[int]
    together: Choices | None
    rule: WorthAStep | None
    repeats: list[int] | None = None

    @staticmethod
    def standing(choices: Choices, states: Sequence[SequenceState]) -> Decision:
        """What stands for these rows, all of which decide together."""
        pairs = zip(choices.rows, states, strict=True)
        steps = [allowed(choice.steps, state) for choice, state in pairs]
        return Decision(choices.rows, steps, list(range(len(states))), choices, choices.rule)

    def worth(self, ragged: bool) -> Worth:
        """What looked-up tokens have to bring.

        Args:
            ragged: whether rows are verified without what would pad them to the longest.
        """
        together = None
        if self.together:
            together = SharedWorth(
                np.array([choice.planned for choice in self.rows]),
                self.together.widths,
                self.together.covered,
                self.together.backlog,
                # With others in the batch, what the rows' own tokens take is not told by `widths`.
                self.together.likely if ragged and len(self.shared) == len(self.rows) else None,
                self.together.weights,
                self.together.certain,
                self.together.spread,
                self.together.reading_on,
            )
        return Worth(
            np.array([choice.plain for choice in self.rows]),
            np.array([choice.token for choice in self.rows]),
            together,
        )
