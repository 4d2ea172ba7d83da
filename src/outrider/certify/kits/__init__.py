"""Conformance kits: what the engine relies on in a part of your own, checked from outside.

Each kit returns a finding for every property, by name. Nothing that a part does wrong is raised.
"""

from .drafter import check_drafter
from .policy import check_policy
from .runtime import check_runtime

__all__ = ["check_drafter", "check_policy", "check_runtime"]
