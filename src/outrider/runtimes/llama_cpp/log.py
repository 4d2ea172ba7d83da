"""What llama.cpp logs, handed on to Python's logging."""

from __future__ import annotations

import logging
from collections import deque
from typing import Any

from ...errors import missing

with missing("llama-cpp"):
    import llama_cpp

_LOG = logging.getLogger(__name__)

_ERROR = 4
"""llama.cpp's level of errors."""

_PIECES: deque[tuple[int, bytes]] = deque(maxlen=8192)
"""Levels and texts that all threads wrote, until they are handed on: llama.cpp has one log."""


def _collect(level: int, text: bytes, _: Any) -> None:
    _PIECES.append((level, text))


_CALLBACK = llama_cpp.llama_log_callback(_collect)
llama_cpp.llama_log_set(_CALLBACK, None)


def hand_on() -> str:
    """Log what was collected at DEBUG, and return the first error in it, "" if none."""
    first = ""
    while _PIECES:
        level, text = _PIECES.popleft()
        said = text.decode(errors="replace").strip()
        _LOG.debug("%s", said)
        if level == _ERROR:
            first = first or said
    return first
