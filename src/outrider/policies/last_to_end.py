"""Which rows a batch waits for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, log2, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..types.records import SequenceState
from .choices import Choices
from .costs import Prices

_MEMORY = 0.95
"""What is known of earlier rounds weighs beside the next one: twenty count in all."""

_LEAST = 1.0
"""By how many tokens rows are expected to change places at least."""


_APART = 0.02
"""How much more drafting has to gain for each doubling of the rows, since those that keep less by
chance end last, alone."""

_ALONE, _MOST_ALONE = 0.012, 0.2
"""The same where all would end together without drafts and are waited for, for the square of the
doublings, and the most: what one row gains is nothing until all have, and then they end apart."""

_FIRST = 0.25
"""The variance of what rows emit in a round that is expected before the first."""


_TICK = 1e-9
"""Seconds of a round at least: a clock may stand still."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What a token of each row counts: see `SharedWorth`."""

    weights: NDArray[np.float64] | None
    certain: float
    spread: float

    @property
    def named(self) -> dict[str, Any]:
        """The same for what has it among others: see `Choices`."""
        return {"weights": self.weights, "certain": self.certain, "spread": self.spread}


_ALIKE = Counts(None, 0.0, inf)
"""All tokens count alike."""


class LastToEnd:
    """How much a token of each row brings the end of its batch nearer.

    Where others take the places of rows that end, all tokens count alike. Where none do, a batch
    goes on until its last row ends. A token of a row spares that row a round, and with it what
    rounds take for each of their rows: that counts in any case. A token of the last row spares the
    rest of a round, too, what it takes however few rows there are. Which row that is can be told if
    all go on for a number of tokens that is known. Rows gain or lose on each other by chance, so
    that each is the last with some probability: about that of a logistic distribution of their distances, as
    wide as their walks are long: by as much as what rows emit in a round has differed lately, in as
    many rounds as are left. A row that leaps ahead is as much less likely to be the last, so that
    each of its tokens counts for less than the one before.

    Whether others take their places is told by what happened last: until a first row has ended,
    and for batches that take turns in several threads, nobody seems to.
    """

    def __init__(self) -> None:
        self._ids = frozenset[int]()
        self._joined = False
        self._variance = _FIRST

    def weighed(self, choices: Choices, states: Sequence[SequenceState]) -> Choices:
        """What was planned for a batch, with what tokens of each of its rows count.

        Args:
            choices: of all rows.
            states: of all rows, before the next round.
        """
        found = self.counts(states, choices.prices) or _ALIKE
        return replace(choices, **found.named)

    def counts(self, states: Sequence[SequenceState], prices: Prices) -> Counts | None:
        """What a token of each row counts; None where all count alike.

        Args:
            states: of all rows, before the next round.
            prices: of rounds of so many.
        """
        if not self._is_waited_for(states):
            return None
        left = np.array([state.remaining for state in states], dtype=np.float64)
        spread = max(sqrt(self._variance * left.max()), _LEAST)
        likely = np.exp((left - left.max()) / spread)
        # Of a round's time so much is taken for its rows, by each alike.
        rows, plain = len(states), max(float(prices.verifying[0]), _TICK)
        certain = min(max((plain - prices.single) / plain * rows / (rows - 1), 0.0), 1.0)
        each = certain + (1 - certain) * likely * (rows / likely.sum())
        return Counts(each, certain, spread)

    def apart(self, states: Sequence[SequenceState], rests: bool) -> float:
        """How much more drafting has to gain than for one row.

        Args:
            states: of all rows.
            rests: whether rows that are ahead rest, so that all end at about the same time.
        """
        doublings = log2(len(states))
        if rests:
            return 0.0
        if self._is_waited_for(states):
            return min(_ALONE * doublings**2, _MOST_ALONE)
        return _APART * doublings

    def _is_waited_for(self, states: Sequence[SequenceState]) -> bool:
        """Whether a batch is over with its last row, and not known to be over before."""
        unknown = any(state.stop_ids or state.params.stop or state.grammar for state in states)
        return len(states) > 1 and not self._joined and not unknown

    def happened(self, states: Sequence[SequenceState], emitted: Sequence[int]) -> None:
        """Note a round: who took part, which tells whether others took the places of those that
        ended, and how many tokens each row emitted.
        """
        if len(emitted) > 1:
            variance = sum(each * each for each in emitted) / len(emitted)
            variance -= (sum(emitted) / len(emitted)) ** 2
            self._variance = _MEMORY * self._variance + (1 - _MEMORY) * max(variance, 0.0)
        ids = frozenset([state.prefix.sequence_id for state in states])
        if ids - self._ids:
            self._joined = bool(ids & self._ids)
        elif ids < self._ids:
            self._joined = False
        self._ids = ids
