"""The conformance kit of runtimes: what the engine relies on, checked from outside.

Every check makes a runtime of its own, asks it about random texts, and compares its logits with
those of a reference that has no cache, or with those of a fresh runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from ...types.finding import Finding
from ..base import Runtime
from .case import Broken, Case, FreshRuntime, Reference
from .checks import CHECKS

__all__ = ["CHECKS", "Case", "FreshRuntime", "Reference", "check_runtime"]


def check_runtime(
    make: Callable[[], Runtime],
    reference: Reference | None = None,
    *,
    tolerance: float | None = None,
    seed: int = 0,
    names: Collection[str] | None = None,
) -> tuple[Finding, ...]:
    """Check what the engine relies on.

    Args:
        make: makes a runtime of one model; called once for each check. Small models suffice.
        reference: the same model without a cache; None compares with a fresh runtime, which finds
            what depends on the cache and not what is wrong without one.
        tolerance: by how much logits may differ, beside the largest of them; None goes by the
            dtype of the logits.
        seed: of the texts.
        names: of the properties that are checked; None for all.

    Returns:
        One finding for each property. Nothing that a runtime does wrong is raised.
    """
    return tuple(
        _finding(name, check, make, reference, tolerance, seed)
        for name, check in CHECKS
        if names is None or name in names
    )


def _finding(
    name: str,
    check: Callable[[Case], str],
    make: Callable[[], Runtime],
    reference: Reference | None,
    tolerance: float | None,
    seed: int,
) -> Finding:
    try:
        case = Case(make(), reference or FreshRuntime(make()), tolerance, seed)
        return Finding(name, True, check(case))
    except Broken as broken:
        return Finding(name, False, str(broken))
    except Exception as error:
        return Finding(name, False, f"{type(error).__name__}: {error}")
