"""Loops over arrays, compiled with numba where it can be installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

try:
    from numba import cfunc, config, njit, types
    from numba.extending import intrinsic
except ImportError:
    cfunc = config = intrinsic = njit = types = None

_F = TypeVar("_F", bound=Callable[..., Any])

COMPILES = njit is not None and not config.DISABLE_JIT
"""Whether `compiled` does what it says: not on a Python too new for numba, or if told not to."""

_ANY_ORDER = {"reassoc", "contract", "nsz", "arcp"}
"""What LLVM may do to sums: anything but to take numbers for finite."""


def compiled(function: _F) -> _F:
    """The function, compiled when it is first called, and kept on disk; or as it stands."""
    return function if njit is None else cast(_F, _kept(njit, nogil=True)(function))


def reordered(function: _F) -> _F:
    """`compiled`, but sums are made in any order: as many at once as a processor's vectors hold."""
    if njit is None:
        return function
    return cast(_F, _kept(njit, nogil=True, fastmath=_ANY_ORDER)(function))


def emitted(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose LLVM code the one given writes: what numba calls an intrinsic."""
    return function if intrinsic is None else cast(Callable[..., Any], intrinsic(function))


def callback(function: Callable[[int], None]) -> Any:
    """A function of an address, compiled at once, that C can call at its `address`."""
    return function if cfunc is None else _kept(cfunc, types.void(types.int64))(function)


def _kept(decorator: Any, *given: Any, **options: Any) -> Callable[[Any], Any]:
    """A decorator of numba's that keeps compiled code on disk, if there is a folder for it."""

    def decorated(function: Any) -> Any:
        try:
            return decorator(*given, cache=True, **options)(function)
        except RuntimeError:
            return decorator(*given, **options)(function)

    return decorated
