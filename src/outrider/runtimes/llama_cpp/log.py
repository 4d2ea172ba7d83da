"""What llama.cpp logs, handed on to Python's logging."""

from __future__ import annotations

import ast
import logging
from collections import deque
from functools import partial
from types import SimpleNamespace

from ...errors import missing

with missing("llama-cpp"):
    import llama_cpp

_LOG = logging.getLogger(__name__)

_ERROR = 4
"""llama.cpp's level of errors."""

_MOST = 8192
"""Pieces of lines that are kept until they are handed on."""


class NativeLog:
    """Collects the lines that llama.cpp writes, from all threads, until they are handed on.

    The callback runs no Python code: an exception in it, such as a KeyboardInterrupt, would be lost
    inside llama.cpp.
    """

    def __init__(self) -> None:
        self._pieces: deque[str] = deque(maxlen=_MOST)
        writer = SimpleNamespace(write=self._pieces.append)
        self._callback = llama_cpp.llama_log_callback(partial(print, file=writer))
        llama_cpp.llama_log_set(self._callback, None)

    def hand_on(self) -> str:
        """Log what was collected at DEBUG, and return the first error in it, "" if none."""
        pieces = [self._pieces.popleft() for _ in range(len(self._pieces))]
        first = ""
        for line in "".join(pieces).splitlines():
            level, _, rest = line.partition(" ")
            # A line is: the level, the text as Python writes bytes, and None.
            text = ast.literal_eval(rest.removesuffix(" None")).decode(errors="replace").strip()
            _LOG.debug("%s", text)
            if level == str(_ERROR) and not first:
                first = text
        return first


NATIVE_LOG = NativeLog()
"""llama.cpp has one log for all models."""
