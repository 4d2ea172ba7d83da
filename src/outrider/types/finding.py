"""What a conformance kit found."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One property of a part, and whether it holds.

    Attributes:
        name: the property, as a claim.
        passed: whether it holds, or does not apply.
        detail: what was measured, or what is wrong.
    """

    name: str
    passed: bool
    detail: str
