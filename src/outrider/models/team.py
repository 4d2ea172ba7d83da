"""Compiled loops run by the threads that torch's own products run in.

Those of another pool would wait for a processor that torch's are still spinning on. torch's are
OpenMP's, which starts a function in all of them at once by a call that compilers make.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

from ..jit import COMPILES


def _starter() -> Any:
    """What starts a function in all threads; None where torch's are not OpenMP's as GCC has it."""
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


def run(loop: Any, arguments: Sequence[int]) -> None:
    """Run a loop in as many threads as torch uses here, and return when all are through.

    Args:
        loop: made by `jit.callback`, of the address of its arguments. The first of them is a
            counter that begins at 0, which says who does what: threads add to it.
        arguments: the others, 64-bit integers: sizes, and addresses of what outlives the call.
    """
    given = (ctypes.c_int64 * (1 + len(arguments)))(0, *arguments)
    _START(loop.address, ctypes.addressof(given), torch.get_num_threads(), 0)
