"""Loops over arrays, compiled with numba where it can be installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

try:
    from numba import config, njit
except ImportError:
    config = njit = None

_F = TypeVar("_F", bound=Callable[..., Any])

COMPILES = njit is not None and not config.DISABLE_JIT
"""Whether `compiled` does what it says: not on a Python too new for numba, or if told not to."""


def compiled(function: _F) -> _F:
    """The function, compiled when it is first called, and kept on disk; or as it stands."""
    if njit is None:
        return function
    try:
        return cast(_F, njit(cache=True, nogil=True)(function))
    except RuntimeError:  # There is no folder to keep compiled code in.
        return cast(_F, njit(nogil=True)(function))
