"""The result of one check of a conformance kit or of the certificate."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one named check.

    Attributes:
        name: of the property that was checked.
        passed: whether it holds.
        detail: what was seen, with the numbers; what to change if it failed.
    """

    name: str
    passed: bool
    detail: str
