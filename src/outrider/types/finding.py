"""What a conformance check found."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """Whether a part has one named property.

    Attributes:
        name: of the property.
        passed: whether the part has it.
        detail: what was seen, with the greatest error or the first violation.
    """

    name: str
    passed: bool
    detail: str
