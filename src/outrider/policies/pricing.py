"""What rounds of a batch take, told anew every few rounds: it takes longer than to decide by it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..types.records import SequenceState
from .costs import Costs, Prices
from .levels import Levels
from .seen import mean_length
from .standing import Followed, Moment

_STANDS, _SHARE = 16, 16
"""For how many rounds it is gone by, and for what share of those that were measured of as many
sequences at most: one in so many. What a machine takes changes slowly, if at all."""

Some = tuple[NDArray[np.float64], NDArray[np.float64]]
"""See `Costs.of_some`."""


@dataclass(frozen=True, slots=True)
class _Told:
    moment: Moment
    counted: int
    stands: int
    revisions: int
    prices: Prices
    some: Some | None = None

    def stand(self, states: Sequence[SequenceState], costs: Costs) -> bool:
        """Whether they are gone by for the next round of these."""
        recent = costs.rounds - self.counted < self.stands and costs.revisions == self.revisions
        return recent and costs.steady and self.moment.since(states) >= 1


class Pricing(Followed[_Told]):
    """By what was measured; or in plain rounds, where that is not enough.

    Args:
        costs: what was measured.
        levels: the shape of a draft.
        cost_ratio: a draft step beside a plain round, where none was measured.
    """

    def __init__(self, costs: Costs, levels: Levels, cost_ratio: float) -> None:
        super().__init__()
        self._costs = costs
        self._levels = levels
        self._cost_ratio = cost_ratio

    def prices(self, states: Sequence[SequenceState], depth: int) -> Prices:
        """Of rounds up to a depth, as they are or were a few rounds ago."""
        done, costs = self._done, self._costs
        if done and len(done.prices.widths) == depth + 1 and done.stand(states, costs):
            self._planned = done
            return done.prices
        widths = [self._levels.width(k) for k in range(depth + 1)]
        prices = costs.prices(len(states), widths, mean_length(states))
        if not costs.known:
            return prices.guessed(self._cost_ratio)
        stands = min(costs.count(len(states)) // _SHARE, _STANDS)
        self._planned = _Told(Moment.of(states), costs.rounds, stands, costs.revisions, prices)
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
