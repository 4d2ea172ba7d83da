"""Run named checks of a part, and report what each found."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from pathlib import Path

from ...errors import DraftError, OutriderError
from ...types.finding import Finding

TOLERANCE = 1e-12
"""The largest error in the probability of any outcome that rounding is allowed."""

Check = Callable[[], Finding | str | None]
"""Says what it measured, or gives the finding; raises where the property does not hold."""


class Broken(Exception):
    """A property that does not hold, and what was seen."""


def require(holds: object, detail: str) -> None:
    """Raise `Broken` unless something holds."""
    if not holds:
        raise Broken(detail)


def run(checks: Iterable[tuple[str, Check]]) -> tuple[Finding, ...]:
    """Run checks in their order; whatever they raise is a finding."""
    return tuple(finding(name, check) for name, check in checks)


def finding(name: str, check: Check) -> Finding:
    """Run one check; whatever it raises is a finding, too."""
    try:
        found = check()
    except Exception as error:  # a part of the user's own may raise anything
        return Finding(name, False, described(error))
    return found if isinstance(found, Finding) else Finding(name, True, found or "holds")


def described(error: Exception) -> str:
    """Describe an exception in one line, with the place where a user's own part raised it."""
    cause = error.__cause__
    if isinstance(error, Broken):
        return str(error)
    if isinstance(error, DraftError) and isinstance(cause, OutriderError):
        error, cause = cause, None
    said = f"{type(error).__name__}: {error}"
    if cause is None:
        return said
    if isinstance(error, DraftError):
        said = f"the drafter raised {type(cause).__name__}: {cause}"
    frames = traceback.extract_tb(cause.__traceback__)
    places = (f" ({Path(each.filename).name}, line {each.lineno})" for each in frames[-1:])
    return said + "".join(places)
