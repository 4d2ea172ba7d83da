"""What rounds of a batch take, told anew every few rounds: it takes longer than to decide by it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..records import SequenceState
from .costs import Costs, Prices
from .levels import Levels
from .seen import mean_length

_STANDS, _SHARE = 16, 16
"""For how many rounds of the same sequences it is gone by, and for what share of all rounds that it
was told by at most: one in so many. What a machine takes changes slowly, if at all."""

Some = tuple[NDArray[np.float64], NDArray[np.float64]]
"""See `Costs.of_some`."""


@dataclass(frozen=True, slots=True)
class _Told:
    sequences: list[int]
    round: int
    stands: int
    revisions: int
    prices: Prices
    some: Some | None = None

    def since(self, states: Sequence[SequenceState]) -> int:
        """How many rounds the same sequences have been through; -1 for others."""
        same = self.sequences == [state.prefix.sequence_id for state in states]
        return states[0].round - self.round if same else -1


class Pricing:
    """By what was measured; or in plain rounds, where that is not enough.

    What was told for a round that was not done leaves no trace: see `Standing`.

    Args:
        costs: what was measured.
        levels: the shape of a draft.
        cost_ratio: a draft step beside a plain round, where none was measured.
    """

    def __init__(self, costs: Costs, levels: Levels, cost_ratio: float) -> None:
        self._costs = costs
        self._levels = levels
        self._cost_ratio = cost_ratio
        self._planned: _Told | None = None
        self._done: _Told | None = None

    def prices(self, states: Sequence[SequenceState], depth: int) -> Prices:
        """Of rounds up to a depth, as they are or were a few rounds ago."""
        done, costs = self._done, self._costs
        if done and done.revisions == costs.revisions and costs.steady:
            alike = len(done.prices.widths) == depth + 1
            if alike and 0 <= done.since(states) < done.stands:
                self._planned = done
                return done.prices
        widths = [self._levels.width(k) for k in range(depth + 1)]
        prices = costs.prices(len(states), widths, mean_length(states))
        if not costs.known:
            return prices.guessed(self._cost_ratio)
        ids, stands = [state.prefix.sequence_id for state in states], costs.rounds // _SHARE
        stands = min(stands, _STANDS)
        self._planned = _Told(ids, states[0].round, stands, costs.revisions, prices)
        return prices

    def of_some(self, states: Sequence[SequenceState], prices: Prices) -> Some:
        """Of rounds in which some rows draft, told with the prices of rounds in which all do."""
        planned = self._planned
        if planned and planned.prices is prices and planned.some:
            return planned.some
        some = self._costs.of_some(prices.rows, self._levels.deepest, mean_length(states))
        if planned and planned.prices is prices:
            self._planned = replace(planned, some=some)
        return some

    def happened(self, states: Sequence[SequenceState]) -> None:
        """Go by the latest prices if a round was planned by them, which ended in these states."""
        planned = self._planned
        if planned and planned is not self._done and planned.since(states) >= 1:
            self._done = planned
