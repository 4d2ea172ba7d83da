"""SIGTERM as an interrupt, so that a long measurement keeps what it has."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Terminated(KeyboardInterrupt):
    """SIGTERM came."""


@contextmanager
def terminable() -> Iterator[Callable[[], int]]:
    """Let SIGTERM raise `Terminated` inside; a second one ends the process.

    Where SIGTERM is ignored it stays so. To be entered in the main thread. Gives what returns the
    exit status that an interrupt calls for: 130, or 143 once SIGTERM came.
    """
    status = 130
    before = signal.getsignal(signal.SIGTERM)

    def terminate(_number: int, _frame: FrameType | None) -> None:
        nonlocal status
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        status = 143
        raise Terminated

    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGTERM, terminate)
    try:
        yield lambda: status
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)
