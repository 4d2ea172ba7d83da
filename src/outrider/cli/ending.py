"""Signals that end a long measurement: what was measured is kept, and what is kept is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from signal import SIG_DFL, SIG_IGN, SIGINT, SIGTERM, getsignal, signal
from types import FrameType
from typing import Any


class Terminated(KeyboardInterrupt):
    """SIGTERM came."""


@dataclass(slots=True)
class Ending:
    """How something was ended, if it was.

    Attributes:
        kind: of the exception.
    """

    kind: type[KeyboardInterrupt] = KeyboardInterrupt
    _held: list[type[KeyboardInterrupt]] = field(default_factory=list)
    _before: dict[int, Any] = field(default_factory=dict)

    @property
    def status(self) -> int:
        """The exit status: 128 and the signal's number."""
        return 128 + (SIGTERM if issubclass(self.kind, Terminated) else SIGINT)

    @property
    def told(self) -> str:
        """The same in a word."""
        return "terminated" if issubclass(self.kind, Terminated) else "interrupted"

    def hold(self) -> None:
        """From now on a signal waits for `release`, and only a second one does not.

        To be called when measuring is over, and what was measured is still to be written.
        """
        for number, kind in ((SIGINT, KeyboardInterrupt), (SIGTERM, Terminated)):
            before = _known(number)
            if before is not SIG_IGN:
                self._before[number] = before
                signal(number, self._holding(kind))

    def release(self) -> None:
        """Let signals take effect again, one that has come too.

        Raises:
            KeyboardInterrupt: one has.
        """
        self._restore()
        if self._held:
            self.kind = self._held.pop()
            raise self.kind

    def _holding(self, kind: type[KeyboardInterrupt]) -> Callable[[int, FrameType | None], None]:
        def hold(_number: int, _frame: FrameType | None) -> None:
            again = bool(self._held)
            self._held.append(kind)
            if again:
                self.release()

        return hold

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal(number, handler)
        self._before.clear()


@contextmanager
def terminable() -> Iterator[Ending]:
    """SIGTERM raises `Terminated` inside, once: a second one ends the process at once.

    Where it is ignored it stays so. To be entered in the main thread.
    """
    ending = Ending()

    def terminate(_number: int, _frame: FrameType | None) -> None:
        signal(SIGTERM, before)
        ending.kind = Terminated
        raise Terminated

    before = _known(SIGTERM)
    if before is not SIG_IGN:
        signal(SIGTERM, terminate)
    try:
        yield ending
    finally:
        ending._restore()
        signal(SIGTERM, before)


def _known(number: int) -> Any:
    """What handles a signal, to be restored: the default for a handler that is not Python's."""
    handler = getsignal(number)
    return SIG_DFL if handler is None else handler
