"""What was found, as JSON takes it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..types.finding import Finding
from .cases import FACTORS, LEFT_OUT
from .checks import TOLERANCE
from .exact import ExactTier
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
            "coverage": [asdict(item) for item in tier.coverage],
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
        "passed": tier.passed,
        "samples": tier.samples,
        "seed": tier.seed,
        "false_alarm_rate": FALSE_ALARM_RATE,
        "tests": [
            {
                "way": item.cell,
                "tokens": item.tokens,
                "histories": item.histories,
                "highest_log_e": item.highest,
                "distance_found": item.power,
                "passed": item.passed,
            }
            for item in tier.cells
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
    return {
        "passed": all(item.passed for item in verdicts),
        "faults": [
            {
                "fault": item.fault,
                "source": item.source,
                "passed": item.passed,
                "with_fault": asdict(item.planted),
                "without": asdict(item.sound),
            }
            for item in verdicts
        ],
    }


def runtime(findings: Sequence[Finding]) -> dict[str, Any]:
    """The runtime tier: every property."""
    return {
        "passed": all(item.passed for item in findings),
        "checks": [asdict(item) for item in findings],
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
