"""Prove that the shipped engine emits the target's distribution, by checks that can fail.

`exact_distribution` enumerates the engine on small models. `outrider certify` runs three tiers:
exact distributions over a covering design of what may be asked for (`exact`), tests of fit on
real models (`statistics`), and planted faults that the same checks must reject (`controls`).
`kits` checks parts of your own, and `endpoint` certifies other engines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .enumeration import exact_distribution

__all__ = ["exact_distribution"]


def __getattr__(name: str) -> Any:
    """Load what needs torch when it is asked for: servers are certified without it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .enumeration import exact_distribution

    return exact_distribution
