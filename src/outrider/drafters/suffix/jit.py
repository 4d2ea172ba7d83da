"""Loops over arrays, compiled with numba where it can be installed."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from hashlib import sha256
from pathlib import Path
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


def emitted(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose LLVM code the one given writes: what numba calls an intrinsic."""
    return cast(Callable[..., Any], intrinsic(function))


class Callback:
    """A function of an address, compiled for C to call when it is first asked for.

    It raises nothing: a caller in C would not be told.

    Args:
        function: what to compile.
    """

    def __init__(self, function: Callable[[int], None]) -> None:
        self._function = function

    @cached_property
    def compiled(self) -> Any:
        """numba's own, which has an `address`, and is called by `ctypes`."""
        signature = types.void(types.int64)
        return _kept(cfunc, signature, error_model="numpy")(self._function)


class Compiler:
    """Compiles functions that call those of other files.

    numba keeps what it has compiled until the file that a function is in changes, and looks at no
    other: those that go into it are named here.

    Args:
        files: their paths.
    """

    def __init__(self, *files: str) -> None:
        found = b"".join(Path(file).read_bytes() for file in (__file__, *files))
        self._digest = sha256(found).hexdigest()[:16]

    def compiled(self, function: _F) -> _F:
        """See `compiled`."""
        return cast(_F, _kept(njit, nogil=True)(self._named(function)))

    def reordered(self, function: _F) -> _F:
        """`compiled`, but sums are made in any order: as many at once as a vector holds.

        Division by zero gives what it gives in IEEE 754, and raises nothing.
        """
        options = {"nogil": True, "fastmath": _ANY_ORDER, "error_model": "numpy"}
        return cast(_F, _kept(njit, **options)(self._named(function)))

    def callback(self, function: Callable[[int], None]) -> Callback:
        """See `Callback`."""
        return Callback(self._named(function))

    def _named(self, function: _F) -> _F:
        """The function, by a name of its own for this code, which numba keeps it under."""
        function.__qualname__ = f"{function.__qualname__}-{self._digest}"
        return function


def _kept(decorator: Any, *given: Any, **options: Any) -> Callable[[Any], Any]:
    """A decorator of numba's that keeps compiled code on disk, if there is room for it."""

    def decorated(function: Any) -> Any:
        try:
            return decorator(*given, cache=True, **options)(function)
        except (RuntimeError, OSError):
            return decorator(*given, **options)(function)

    return decorated
