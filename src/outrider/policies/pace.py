"""How fast the machine is just now."""

from __future__ import annotations

from collections import deque
from statistics import median

_RECENT = 5
"""In how many rounds it shows."""

_FEW = 3
"""How many of them have to tell: one that was slow by itself does not."""


class Pace:
    """What a round takes now, beside what such rounds usually take: the median of the last few.

    Other work on a machine, or its clock, slows all that it does for a while. Rounds of one kind
    measured then would look dear beside those of another, measured before, so that times are
    compared at one speed. A slowdown of one kind alone looks alike until others are measured.
    """

    def __init__(self) -> None:
        self._ratios = deque[tuple[int, float]](maxlen=_RECENT)

    def add(self, ratio: float, now: int) -> None:
        """Count a round, by its number, that took so many times what such rounds usually take."""
        self._ratios.append((now, ratio))

    def at(self, now: int) -> float:
        """How many times as long as usual rounds take; 1 where the latest ones do not tell.

        Sizes that are new are then remembered as they are. Were they divided by what older rounds
        took, they would confirm that ever after.
        """
        recent = [ratio for then, ratio in self._ratios if now - then < _RECENT]
        return median(recent) if len(recent) >= _FEW else 1.0
