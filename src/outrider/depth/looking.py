"""Whether looking tokens up pays for the time it takes."""

from __future__ import annotations

import numpy as np

from ..records import RoundRecord
from .choices import Choices
from .seen import stepped_of

_MEMORY = 0.9
"""What is known of earlier rounds weighs beside the next one: ten count in all."""

_PAUSE = 8
"""Where it does not pay, one round in so many looks all the same."""


class Looking:
    """A running mean of what rounds gained by looking tokens up, in tokens of all rows.

    It begins with one token: as many rounds look before anything is found as that pays for.
    """

    def __init__(self) -> None:
        self._gained = 1.0
        self._since = 0

    def wanted(self) -> bool:
        """Whether the next round is to look."""
        return self._gained >= 0 or self._since >= _PAUSE - 1

    def count_round(
        self, looked: bool, record: RoundRecord, planned: Choices, ragged: bool
    ) -> None:
        """Count what looking tokens up gained in a round: at what rounds usually take.

        Args:
            looked: whether it did.
            record: the round.
            planned: what was planned for it.
            ragged: whether rows were verified without padding.
        """
        took, gained = planned.prices.drafting[0], 0.0
        if any(record.looked_up):
            prices, steps = planned.prices, max(stepped_of(record))
            width = np.mean(record.drafted) if ragged else max(record.drafted)
            times = prices.verifying + prices.drafting[steps] if steps else prices.looked_up
            took = np.interp(width, np.arange(len(times)), times)
            weights = 1.0 if planned.weights is None else planned.weights
            gained = float(np.sum(weights * np.array(record.emitted)))
        self.count(looked, gained - planned.rate * float(took))

    def count(self, looked: bool, gained: float = 0.0) -> None:
        """Count a round, and if it looked, what that gained: less than nothing, if in vain."""
        if not looked:
            self._since += 1
            return
        self._since = 0
        self._gained = _MEMORY * self._gained + (1 - _MEMORY) * gained
