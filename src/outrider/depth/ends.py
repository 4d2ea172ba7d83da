"""Whose tokens shorten a batch that nobody joins: those of the rows that end last."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from ..records import SequenceState
from .costs import Prices

_MEMORY = 0.9
"""What is known of earlier ends weighs beside the next one: ten count in all."""

_GUESS = 8
"""For how many rounds of a row it counts that rows emit one token in each, to begin with."""

_VAGUE = 0.1
"""By what part of the rounds that are left a row's end is not known, beside their square root."""


class Ends:
    """Whether others take the places of rows that end, and what each row's tokens are worth if not.

    A batch that is decoded to its end takes as long as its last row, and a little longer for each
    other row while that lasts. So of the time of a round a row's tokens save the part that goes up
    with the rows; and the rest, if the row is the last, of which nothing but chances are known.
    """

    def __init__(self) -> None:
        self._joined = self._ended = 0.0
        self._open = 0
        self._going: set[int] = set()

    def happened(self, states: Sequence[SequenceState]) -> None:
        """Count a round that ended in these states: what it says of those that ended before it."""
        if self._open:
            ids = {state.prefix.sequence_id for state in states}
            if ids & self._going:
                joined = min(len(ids - self._going), self._open) / self._open
                self._joined = self._joined * _MEMORY + joined
                self._ended = self._ended * _MEMORY + 1
        self._open = sum(state.finish_reason is not None for state in states)
        if self._open:
            self._going = {s.prefix.sequence_id for s in states if s.finish_reason is None}

    def weights(self, states: Sequence[SequenceState], prices: Prices) -> NDArray[np.float64]:
        """What a token of each row counts, beside one of any row of a batch that goes on.

        Args:
            states: the rows.
            prices: of rounds of so many.

        Returns:
            Weights whose mean is 1, float64 [B].
        """
        rows = len(states)
        if rows == 1:
            return np.ones(1)
        plain = float(prices.rounds[0])
        each = max(plain - prices.single, 0.0) / (rows - 1)
        shared = min(rows * each / plain, 1.0)
        left = np.array([_rounds_left(state) for state in states])
        most = float(left.max())
        last = np.exp((left - most) / (sqrt(most) + _VAGUE * most + 1))
        last *= rows / last.sum()
        closed = 1 - self._joined / self._ended if self._ended else 1.0
        return np.asarray(1 + closed * (1 - shared) * (last - 1))


def _rounds_left(state: SequenceState) -> float:
    """About how many rounds a row goes on, at most, as fast as it was so far."""
    emitted = len(state.prefix) - state.prompt_length
    return state.remaining * (state.round + _GUESS) / (emitted + _GUESS)
