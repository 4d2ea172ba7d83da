"""SIGTERM, which ends a long measurement as Ctrl-C does: what was measured is kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from signal import SIGINT, SIGTERM, signal
from types import FrameType


class Terminated(KeyboardInterrupt):
    """SIGTERM came."""


@dataclass(slots=True)
class Ending:
    """How something was ended, if it was.

    Attributes:
        kind: of the exception.
    """

    kind: type[KeyboardInterrupt] = KeyboardInterrupt

    @property
    def status(self) -> int:
        """The exit status: 128 and the signal's number."""
        return 128 + (SIGTERM if issubclass(self.kind, Terminated) else SIGINT)


@contextmanager
def terminable() -> Iterator[Ending]:
    """SIGTERM raises `Terminated` inside, once: a second one ends the process at once.

    To be entered in the main thread.
    """
    ending = Ending()

    def terminate(_number: int, _frame: FrameType | None) -> None:
        signal(SIGTERM, before)
        ending.kind = Terminated
        raise Terminated

    before = signal(SIGTERM, terminate)
    try:
        yield ending
    finally:
        signal(SIGTERM, before)
