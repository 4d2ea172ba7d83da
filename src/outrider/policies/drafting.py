"""What drafts cost, by their rows and steps."""

from __future__ import annotations

from math import log

import numpy as np
from numpy.typing import NDArray

from .backlog import Backlog
from .growth import Growing
from .lines import FEW, Line, rising
from .round import Round

_RECENTLY = 128
"""For how many rounds it is known what a number of rows takes."""

_FADING = 0.99
"""What drafts of some rows count beside those of others that were made a round later."""

_LEAST = 1e-6
"""And at least."""

_STEPS_ALIKE = 0.5
"""What each step of a draft is thought to take at least, beside the mean: they are mostly forwards
of one model."""

READ = 2
"""Tokens that a drafter reads in a row before it drafts, at most: where all of a draft was kept."""

MUCH_FASTER = 0.4
"""What a round takes at most of what those of its size did, or of sizes near it, to tell of other
work that the machine had when they were measured."""


class Drafting:
    """Seconds of a draft: for each number of rows a line in its steps.

    Where hardly any was made for so many, what those for the nearest number took counts too.

    Attributes:
        backlog: what a drafter's reading beyond its last drafts takes, in rows that took looked-up
            tokens or none.
    """

    def __init__(self) -> None:
        self._lines: dict[int, Line] = {}
        self._counts: dict[int, int] = {}
        self._last: dict[int, int] = {}
        self._growing = Growing()
        self.backlog = Backlog()

    @property
    def known(self) -> bool:
        """Whether a draft was measured."""
        return bool(self._lines)

    def add(self, seen: Round, seconds: float, now: int) -> None:
        """Count the draft of a round, which took so many seconds at the usual pace."""
        rows = seen.drafting
        count = self._counts.get(rows, 0)
        if seen.behind and (count >= FEW or self.tells(rows, now)):
            these, steps = np.array([float(rows)]), np.array([float(seen.steps)])
            usual = float(self.among(these, steps, seen.length)[0, 0])
            self.backlog.add(seen.behind, max(seconds - usual, 0.0), now)
            # With a backlog it takes longer, unless what is remembered is over.
            if seconds >= usual:
                return
        elif seen.behind:
            # As if all of it took as long a token, until there is something to compare with.
            seconds *= min(READ * rows / seen.missing, 1.0)
        if not seen.behind:
            self._growing.add(rows, seen.steps, seen.length, seconds)
        line = self._lines.setdefault(rows, Line(_STEPS_ALIKE))
        line.add(seen.steps, seconds / self._growing.times(rows, seen.length), now)
        self._counts[rows], self._last[rows] = count + 1, now

    def at(self, rows: int, steps: NDArray[np.float64], length: float = 0.0) -> NDArray[np.float64]:
        """Seconds of drafts of so many steps in a row, float64 [n]; 0 where none was measured.

        Args:
            rows: how many have them.
            steps: float64 [n].
            length: of the sequences, in tokens, by the mean.
        """
        count = self._counts.get(rows, 0)
        others = [other for other in self._lines if other != rows and count < FEW]
        total = np.zeros(len(steps))
        if count:
            total += count * self._told(rows, steps, length)
        if others:
            nearest = min(others, key=lambda other: abs(log(other / rows)))
            total += self._told(nearest, steps, length)
        return np.asarray(total / max(count + bool(others), 1))

    def _told(self, rows: int, steps: NDArray[np.float64], length: float) -> NDArray[np.float64]:
        """By a number of rows that was measured."""
        return self._lines[rows].at(steps) * self._growing.times(rows, length)

    def among(
        self, rows: NDArray[np.float64], steps: NDArray[np.float64], length: float = 0.0
    ) -> NDArray[np.float64]:
        """Seconds of drafts for so many rows [M] of so many steps [n], float64 [M, n].

        On lines between the numbers of rows that were measured, and never less for more: where
        fewer rows took longer, what both did counts for each, by how many times there are of it,
        the less the longer ago.
        """
        known = sorted(count for count, times in self._counts.items() if times >= FEW)
        if not known:
            return np.stack([self.at(int(count), steps, length) for count in rows.tolist()])
        found = np.array([self._told(count, steps, length) for count in known])
        ago = max(self._last.values()) - np.array([self._last[count] for count in known])
        times = np.array([self._lines[count].count for count in known])
        told = rising(found, (times * _FADING**ago).clip(_LEAST))
        return np.stack([np.interp(rows, known, each) for each in told.T], 1)

    def tells(self, rows: int, now: int) -> bool:
        """Whether it is known what drafts of so many rows take, or of more, in a round."""
        return any(
            times >= FEW and count >= rows and now - self._last[count] <= _RECENTLY
            for count, times in self._counts.items()
        )

    def cap(self, seen: Round, seconds: float) -> None:
        """The draft of a round took so many: others of as many rows no longer, beside their steps.

        Unless it is about what was known.
        """
        line = self._lines.get(seen.drafting)
        seconds /= self._growing.times(seen.drafting, seen.length)
        if line and seconds < MUCH_FASTER * float(line.at(np.array([float(seen.steps)]))[0]):
            line.cap(seen.steps, seconds)

    def scale(self, factor: float) -> None:
        """Go on as if all had taken so many times as long."""
        for line in self._lines.values():
            line.scale(factor)
        self._growing.scale(factor)
        self.backlog.scale(factor)
