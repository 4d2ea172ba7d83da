"""What it takes a drafter to read on, in rows for which it has not drafted for a while."""

from __future__ import annotations

from collections import deque
from math import log2
from statistics import median_low

import numpy as np
from numpy.typing import NDArray

from .lines import FEW, RECENT, rising

_FADING = 0.99
"""What readings in some rows count beside those in others that were made a round later."""

_LEAST = 1e-6
"""And at least."""


class Backlog:
    """Seconds beyond a usual draft's, by the rows that read on; alike to half an octave.

    One row makes a forward as wide for all, or has one of its own, so that more rows take longer,
    but not in proportion. On lines between the numbers that were measured a few times, and never
    less for more. Beyond them no more, not to keep drafts of more rows from being tried; and below
    them by the root, not to keep few rows from it.
    """

    def __init__(self) -> None:
        self._found: dict[int, deque[float]] = {}
        self._last: dict[int, int] = {}
        # One record: another thread may be adding.
        self._told = np.zeros(1), np.zeros(1)

    def add(self, rows: int, seconds: float, now: int) -> None:
        """Count a reading.

        Args:
            rows: that read on, at least one.
            seconds: that it took beyond a usual draft's.
            now: the number of the round.
        """
        kind = round(2 * log2(rows))
        self._found.setdefault(kind, deque(maxlen=RECENT)).append(seconds)
        self._last[kind] = now
        self._tell()

    def _tell(self) -> None:
        """Take what was measured into account."""
        known = sorted(kind for kind, found in self._found.items() if len(found) >= FEW)
        if not known:
            return
        ago = max(self._last.values()) - np.array([self._last[kind] for kind in known])
        counts = np.array([len(self._found[kind]) for kind in known])
        usual = np.array([[median_low(self._found[kind])] for kind in known])
        told = rising(usual, (counts * _FADING**ago).clip(_LEAST))[:, 0]
        self._told = np.array(known, dtype=float), told

    def scale(self, factor: float) -> None:
        """Go on as if all had taken so many times as long."""
        for found in self._found.values():
            times = [each * factor for each in found]
            found.clear()
            found.extend(times)
        known, told = self._told
        self._told = known, told * factor

    def upto(self, rows: int) -> NDArray[np.float64]:
        """Seconds where 0, 1, ..., `rows` rows have to read on, float64 [rows + 1]."""
        known, told = self._told
        kinds = 2 * np.log2(np.arange(1.0, rows + 1))
        fewer = 2.0 ** (np.minimum(kinds - known[0], 0.0) / 4)
        return np.append(0.0, fewer * np.interp(kinds, known, told))
