"""How fast the machine is just now."""

from __future__ import annotations

from collections import deque
from statistics import median

_RECENT = 5
"""How many rounds tell it: one that was slow by itself does not."""


class Pace:
    """What a round takes now, beside what such rounds usually take: the median of the last few.

    Other work on a machine, or its clock, slows all that it does for a while. Rounds of one kind
    measured then would look dear beside those of another, measured before, so that times are
    compared at one speed.
    """

    def __init__(self) -> None:
        self._ratios = deque[float](maxlen=_RECENT)

    @property
    def scale(self) -> float:
        """How many times as long as usual a round takes; 1 where nothing is known."""
        return median(self._ratios) if self._ratios else 1.0

    def add(self, ratio: float) -> None:
        """Count a round that took so many times what such rounds usually take."""
        self._ratios.append(ratio)
