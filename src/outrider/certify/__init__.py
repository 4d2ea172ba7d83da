"""Proof that the shipped engine emits the target's distribution: exact, statistical, and able to fail.

`exact_distribution` enumerates the engine on small models. `outrider certify` runs three tiers: exact distributions
over a covering design of what may be asked for (`exact`), tests of goodness of fit on real models
(`statistics`), and planted faults that the same checks must reject (`controls`).
"""

from .enumeration import exact_distribution

__all__ = ["exact_distribution"]
