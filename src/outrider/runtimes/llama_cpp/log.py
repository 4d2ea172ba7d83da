"""What llama.cpp logs, handed on to Python's logging."""

from __future__ import annotations

import ast
import logging
import re
from collections import deque
from contextlib import suppress
from functools import partial
from types import SimpleNamespace

from ...errors import missing

with missing("llama-cpp"):
    import llama_cpp

_LOG = logging.getLogger(__name__)

_LINE = re.compile(r"""^([0-9]) (b'.*'|b".*") None$""", re.MULTILINE)
"""What `print` makes of a level, a text and no data; half a line is left out."""

_ERROR = 4
"""llama.cpp's level of errors."""

_MOST = 8192
"""Pieces of lines that are kept until they are handed on."""


_PIECES: deque[str] = deque(maxlen=_MOST)
"""What llama.cpp has written, from all threads and of all models, and was not handed on."""

# It runs no Python code: an exception in it, such as a KeyboardInterrupt, would be lost inside
# llama.cpp.
_CALLBACK = llama_cpp.llama_log_callback(partial(print, file=SimpleNamespace(write=_PIECES.append)))
llama_cpp.llama_log_set(_CALLBACK, None)


def hand_on() -> str:
    """Log what was collected at DEBUG, and return the first error in it, "" if none."""
    pieces, first = [], ""
    with suppress(IndexError):
        while True:
            pieces.append(_PIECES.popleft())
    for level, text in _LINE.findall("".join(pieces)):
        said = ast.literal_eval(text).decode(errors="replace").strip()
        _LOG.debug("%s", said)
        if int(level) == _ERROR:
            first = first or said
    return first
