"""The runtimes' kit as a test for pytest."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ...runtimes.base import Runtime
from .references import Reference
from .runtime import CHECKS, check_runtime


def runtime_tests(
    make: Callable[[], Runtime],
    reference: Reference | None = None,
    *,
    tolerance: float | None = None,
) -> Callable[[str], None]:
    """Make a test function that pytest runs once for each property of a runtime.

    Args:
        make, reference, tolerance: as for `check_runtime`.

    Returns:
        What a test module assigns to a name that begins with `test_`.
    """

    @pytest.mark.parametrize("name", [name for name, _ in CHECKS])
    def conforms(name: str) -> None:
        (found,) = check_runtime(make, reference, tolerance=tolerance, names=[name])
        assert found.passed, found.detail

    return conforms
