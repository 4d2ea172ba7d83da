"""How far a long job is."""

from __future__ import annotations

from collections.abc import Callable

Report = Callable[[int, int, str], None]
"""Is told how many steps are done, of how many, and what is being done."""


class Steps:
    """Counts the steps of one part of a job as they are done.

    Args:
        report: is told of each, and of the start.
        total: how many there are.
        what: is being done.
    """

    def __init__(self, report: Report, total: int, what: str) -> None:
        self._report = report
        self._total = total
        self._done = 0
        self.say(what)

    def say(self, what: str) -> None:
        """Something else is being done from now on."""
        self._what = what
        self._report(self._done, self._total, what)

    def done(self) -> None:
        """One more is done."""
        self._done += 1
        self._report(self._done, self._total, self._what)
