"""Compiled loops run by the threads that torch's own products run in.

Those of another pool would wait for a processor that torch's are still spinning on. torch's are
OpenMP's, which starts a function in all of them at once by a call that compilers make.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from typing import Any

import torch

from ...drafters.suffix.jit import COMPILES, Callback


def _starter() -> Any:
    """What starts a function in all threads, as GCC calls it; None where there is no such call."""
    try:
        start = ctypes.CDLL(None).GOMP_parallel
    except (AttributeError, OSError, TypeError):
        return None
    start.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    start.restype = None
    return start


_START = _starter()

AVAILABLE = COMPILES and _START is not None and torch._C.has_openmp
"""Whether loops are compiled, and torch's threads can be given them."""


def run(loop: Callback, *arguments: int, counters: int = 1) -> None:
    """Run a loop in as many threads as torch uses here, and return when all are through.

    As with torch's own, a process that was forked off must not, once its parent did.

    Args:
        loop: of the address of its arguments. The first of them are counters that begin at 0 and
            say who does what: threads add to them.
        arguments: the others, 64-bit integers: sizes, and addresses of what outlives the call.
        counters: how many.
    """
    given = (ctypes.c_int64 * (counters + len(arguments)))(*[0] * counters, *arguments)
    _START(loop.compiled.address, ctypes.addressof(given), torch.get_num_threads(), 0)


def alone(loop: Callback, *arguments: int) -> None:
    """Run a loop in this thread, where that takes less than to start others: see `run`."""
    given = (ctypes.c_int64 * (1 + len(arguments)))(0, *arguments)
    loop.compiled.ctypes(ctypes.addressof(given))


def as_integer(number: float) -> int:
    """An argument whose first four bytes are a float32."""
    return int.from_bytes(struct.pack("=ff", number, 0.0), sys.byteorder)
