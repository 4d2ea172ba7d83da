"""Prove that the shipped engine emits the target's distribution, by checks that can fail.

`exact_distribution` enumerates the engine on small models. `outrider certify` runs three tiers:
exact distributions over a covering design of what may be asked for (`exact`), tests of fit on
real models (`statistics`), and planted faults that the same checks must reject (`controls`).
`kits` checks parts of somebody's own.
"""

from .enumeration import exact_distribution

__all__ = ["exact_distribution"]
