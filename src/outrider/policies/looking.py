"""Whether looking tokens up pays for the time it takes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..types.records import RoundRecord
from .choices import Choices
from .seen import stepped_of

_MEMORY = 0.9
"""What is known of earlier rounds weighs beside the next one: ten count in all."""

_SHARE = 0.005
"""Where it does not pay, looking takes so much of the time all the same..."""

_LEAST = 1e-9
"""Seconds of a round at least: a clock may stand still."""

_PAUSES = 4, 32
"""... but one round in so many looks, at the most and at the least..."""

_PAUSE = 8.0
"""... and before a round's time is known."""


class Looking:
    """A running mean of what rounds gained by looking tokens up, in tokens of all rows.

    It begins with one token: as many rounds look before anything is found as that pays for.
    """

    def __init__(self) -> None:
        self._gained = 1.0
        self._since = 0
        self._pause = _PAUSE
        self._unread = set[int]()

    def wanted(self) -> bool:
        """Whether the next round is to look."""
        return self._gained >= 0 or self._since + 1 >= self._pause

    def count_round(
        self, looked: bool, record: RoundRecord, planned: Choices, ragged: bool
    ) -> None:
        """Count what looking tokens up gained in a round: at what rounds usually take.

        What the drafter reads on is part of that, in rows for which it would have drafted before
        but for such tokens, be they others' for which no step was taken.

        Args:
            looked: whether it did.
            record: the round.
            planned: what was planned for it.
            ragged: whether rows were verified without padding.
        """
        prices, gained = planned.prices, 0.0
        took = prices.looking
        share = took / max(float(prices.verifying[0]), _LEAST) / _SHARE
        self._pause = min(max(share, _PAUSES[0]), _PAUSES[1])
        if any(record.looked_up):
            width = np.mean(record.drafted) if ragged else max(record.drafted)
            times = prices.looked_up + prices.drafting[max(stepped_of(record))]
            took += float(np.interp(width, np.arange(len(times)), times))
            gained = _counted(record.emitted, planned)
        self.count(looked, gained - planned.rate * took)
        read_s = prices.reading_on(self._read(record, planned))
        self._gained -= (1 - _MEMORY) * planned.rate * read_s

    def _read(self, record: RoundRecord, planned: Choices) -> int:
        """In how many rows the drafter read on what looked-up tokens had kept it from."""
        if not self._unread and not any(record.looked_up):
            return 0
        stepped = dict(zip(record.sequence_ids, stepped_of(record), strict=True))
        read = {name for name in self._unread if stepped.get(name)}
        self._unread = (self._unread & stepped.keys()) - read
        if any(record.looked_up):
            rows = zip(stepped.items(), planned.rows, strict=True)
            self._unread |= {name for (name, steps), row in rows if row.steps and not steps}
        return len(read)

    def count(self, looked: bool, gained: float = 0.0) -> None:
        """Count a round, and if it looked, what that gained: less than nothing, if in vain."""
        if not looked:
            self._since += 1
            return
        self._since = 0
        self._gained = _MEMORY * self._gained + (1 - _MEMORY) * gained


def _counted(emitted: Sequence[int], planned: Choices) -> float:
    """What the tokens of a round count in all: see `SharedWorth.weights`."""
    if planned.weights is None:
        return float(sum(emitted))
    tokens, spread = np.array(emitted, dtype=np.float64), planned.spread
    ahead = (tokens - np.average(tokens, weights=planned.weights)).clip(0)
    together = tokens - ahead - spread * np.expm1(-ahead / spread)
    rest = planned.weights - planned.certain
    return float(planned.certain * tokens.sum() + rest @ together)
