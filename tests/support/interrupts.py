"""Interrupts at a chosen line of some files."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any


@dataclass
class InterruptAt:
    """Raises KeyboardInterrupt before the n-th line that is executed in some files."""

    left: int
    files: Collection[str]

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in self.files:
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self


@contextmanager
def interrupted_at(line: int, files: Collection[str]) -> Iterator[InterruptAt]:
    """Interrupt the block at a line; `left` of what it gives is 0 or less if that was reached."""
    trace, before = InterruptAt(line, files), sys.gettrace()
    sys.settrace(trace)
    try:
        yield trace
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
