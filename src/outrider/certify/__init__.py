"""Proof that the shipped engine emits the target's law: exact, statistical, and able to fail.

`exact_law` enumerates the engine on small models. `outrider certify` runs three tiers: exact laws
over a covering design of what may be asked for (`exact`), tests of goodness of fit on real models
(`statistics`), and planted faults that the same checks must reject (`controls`).
"""

from .enumeration import exact_law

__all__ = ["exact_law"]
