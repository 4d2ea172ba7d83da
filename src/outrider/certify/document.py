"""What was found, as JSON takes it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..types.finding import Finding
from .cases import FACTORS, LEFT_OUT
from .exact import ExactTier
from .kits.runner import TOLERANCE
from .statistics import FALSE_ALARM_RATE, StatisticalTier

if TYPE_CHECKING:
    from .controls import Verdict


def exact(tier: ExactTier) -> dict[str, Any]:
    """The exact tier: the design, every case and every check."""
    return {
        "passed": tier.passed,
        "tolerance": TOLERANCE,
        "largest_error": _finite(max(item.error for item in tier.measured)),
        "design": {
            "factors": FACTORS,
            "cases": len(tier.measured),
            "left_out": LEFT_OUT,
        },
        "cases": [
            {
                **item.case.values,
                "passed": item.passed,
                "error": _finite(item.error),
                "outputs": item.outputs,
                "problem": item.problem,
            }
            for item in tier.measured
        ],
        "checks": [asdict(item) for item in tier.findings],
    }


def statistical(tier: StatisticalTier) -> dict[str, Any]:
    """The statistical tier: how it was run, and every test."""
    return {
        **asdict(tier),
        "passed": tier.passed,
        "false_alarm_rate": FALSE_ALARM_RATE,
        "tests": [
            {**asdict(item), "distance_found": item.distance_found, "passed": item.passed}
            for item in tier.tests
        ],
        "speculation": [
            {
                "way": name,
                "acceptance_rate": metrics.acceptance_rate,
                "acceptance_length": metrics.acceptance_length,
                **asdict(metrics),
            }
            for name, metrics in tier.speculation.items()
        ],
    }


def controls(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """The controls: every fault, with what the named check found with and without it."""
    return _all("faults", verdicts)


def runtime(findings: Sequence[Finding]) -> dict[str, Any]:
    """The runtime tier: every property."""
    return _all("checks", findings)


def _all(name: str, items: Sequence[Finding | Verdict]) -> dict[str, Any]:
    each = [{**asdict(item), "passed": item.passed} for item in items]
    return {"passed": all(item.passed for item in items), name: each}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
