"""Results for other programs: figures of rounds, a measurement as flat fields, and CSV.

Fields have the names of `vllm bench serve` where it has the figure. Rates are fractions.
"""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

from .records import Measurement, Results

if TYPE_CHECKING:
    from .. import SpeculationMetrics

SPECULATION = (
    *("rounds", "draft_rounds", "drafted", "accepted"),
    *("acceptance_rate", "acceptance_length", "per_position"),
    *("ceiling", "ceiling_interval", "draft_failures", "lossy"),
)
TIMING = ("total_s", "draft_s", "target_s", "other_s", "tokens_per_s", "lossy")


def speculation(metrics: SpeculationMetrics | None) -> dict[str, Any]:
    """What was drafted and what became of it; `SpeculationMetrics` defines each figure."""
    return {name: metrics and getattr(metrics, name) for name in SPECULATION}


def timing(metrics: SpeculationMetrics | None) -> dict[str, Any]:
    """Where the time of the rounds went."""
    return {name: metrics and getattr(metrics, name) for name in TIMING}


def as_csv(results: Results) -> str:
    """Write a header, and a line for each measurement."""
    rows = [row(found) for found in results.measurements]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else ["system"], lineterminator="\n")
    writer.writeheader()
    for found in rows:
        writer.writerow({name: _flat(value) for name, value in found.items()})
    return text.getvalue()


def row(found: Measurement) -> dict[str, Any]:
    """Return a measurement as flat fields, the same for every measurement."""
    candidate = found.candidate
    return {
        "candidate": candidate.label,
        "system": candidate.system,
        "drafter": candidate.drafter,
        "exit_layers": candidate.exit_layers,
        "verification": candidate.verification,
        "num_speculative_tokens": candidate.depth,
        "tree_shape": candidate.tree and "x".join(map(str, candidate.tree)),
        "workload": found.workload,
        "temperature": found.temperature,
        "batch": found.batch,
        "completed": len(found.tokens) * found.batch,
        "total_output_tokens": sum(found.tokens),
        "duration": sum(found.seconds),
        "prompt_s": sum(found.prompt_s),
        "output_throughput": found.tokens_per_s,
        "speedup": found.speedup,
        "speedup_low": found.low,
        "speedup_high": found.high,
        "identical": found.identical,
        "stretches": len(found.tokens),
        **speculation(found.metrics),
        **timing(found.metrics),
        "lossy": candidate.lossy,
    }


def _flat(value: Any) -> Any:
    return " ".join(f"{each:.4f}" for each in value) if isinstance(value, tuple) else value
