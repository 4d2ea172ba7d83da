"""Results for machines: JSON that can be read back, JSON lines, Markdown and CSV.

Rows have the names of `vllm bench serve` where it has the figure: `duration`, `completed`,
`total_output_tokens`, `output_throughput`, `per_position_acceptance_rates` (over all rounds that
drafted; `per_position` is over those that drafted so deep). Rates are fractions. All others are
those of `outrider.metrics`.
"""

from __future__ import annotations

import csv
import io
import json
from dataclasses import asdict, fields
from typing import Any

from ..engine.metrics import SpeculationMetrics
from ..errors import InvalidConfigError
from .records import BenchResult, Contender, ForwardTime, Measurement

FORMAT = "outrider-bench/1"
"""Names the layout of `document`."""

_DERIVED = (
    *("acceptance_rate", "acceptance_length", "per_position", "ceiling_interval"),
    *("ceiling_share", "ceiling_share_interval", "other_s", "tokens_per_s"),
)
"""Figures of metrics that are reduced from the others; written for readers, not read back."""


def document(result: BenchResult) -> dict[str, Any]:
    """A result as JSON takes it; `from_document` gives the same result again."""
    return {
        "format": FORMAT,
        "partial": result.partial,
        "provenance": result.provenance,
        "measurements": [_measurement(found) for found in result.measurements],
        "curve": [asdict(point) for point in result.curve],
        "missing": list(result.missing),
        "skipped": list(result.skipped),
    }


def from_document(found: Any) -> BenchResult:
    """The result that `document` wrote.

    Raises:
        InvalidConfigError: it is no such document.
    """
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        given = found.get("format") if isinstance(found, dict) else type(found).__name__
        raise InvalidConfigError("format", given, f"{FORMAT!r}, as outrider bench writes it")
    try:
        # What is no mapping, no text or no number is found out here, not where it is drawn.
        for name in ("missing", "skipped"):
            "".join(found[name])
        for each in found["measurements"]:
            for figure in ("speedup", "low", "high", "temperature"):
                if each[figure] is not None:
                    each[figure] + 0.0
        return BenchResult(
            provenance=dict(found["provenance"].items()),
            measurements=tuple(map(_read_measurement, found["measurements"])),
            curve=tuple(ForwardTime(**point) for point in found["curve"]),
            missing=tuple(found["missing"]),
            skipped=tuple(found["skipped"]),
            partial=found["partial"],
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidConfigError(
            "document", FORMAT, f"all of its fields ({type(error).__name__}: {error})"
        ) from error


def as_json(result: BenchResult) -> str:
    """The document as one line."""
    return json.dumps(document(result))


def as_jsonl(result: BenchResult) -> str:
    """A line for each measurement, each with all of its figures."""
    return "".join(json.dumps(row(found)) + "\n" for found in result.measurements)


def as_csv(result: BenchResult) -> str:
    """A header, and a line for each measurement; a field of several figures has blanks between."""
    rows = [row(found) for found in result.measurements]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else ["system"], lineterminator="\n")
    writer.writeheader()
    for found in rows:
        writer.writerow({name: _plain(value) for name, value in found.items()})
    return text.getvalue()


def row(found: Measurement) -> dict[str, Any]:
    """A measurement as flat fields."""
    contender, metrics = found.contender, found.metrics
    shape = contender.tree_shape
    return {
        "contender": contender.label,
        "system": contender.system,
        "drafter": contender.drafter,
        "exit_layers": contender.exit_layers,
        "verification": contender.verification,
        "num_speculative_tokens": contender.num_speculative_tokens,
        "tree_shape": None if shape is None else "x".join(map(str, shape)),
        "workload": found.workload,
        "temperature": found.temperature,
        "batch": found.batch,
        "dtype": found.dtype,
        "completed": len(found.tokens) * found.batch,
        "total_output_tokens": sum(found.tokens),
        "duration": sum(found.seconds),
        "prompt_s": sum(found.prompt_s),
        "output_throughput": found.tokens_per_s,
        "request_output_throughput": found.request_tokens_per_s,
        "speedup": found.speedup,
        "speedup_low": found.low,
        "speedup_high": found.high,
        "identical": found.identical,
        "stretches": len(found.tokens),
        "partial": found.partial,
        "acceptance_rate": metrics and metrics.acceptance_rate,
        "acceptance_length": metrics and metrics.acceptance_length,
        "per_position": metrics and list(metrics.per_position),
        "per_position_acceptance_rates": metrics and _over_all_drafts(metrics),
        "draft_rounds": metrics and metrics.draft_rounds,
        "drafted": metrics and metrics.drafted,
        "accepted": metrics and metrics.accepted,
        "ceiling": metrics and metrics.ceiling,
        "ceiling_share": metrics and metrics.ceiling_share,
        "rounds": metrics and metrics.rounds,
        "draft_s": metrics and metrics.draft_s,
        "target_s": metrics and metrics.target_s,
        "total_s": metrics and metrics.total_s,
        "draft_failures": metrics and metrics.draft_failures,
        "lossy": metrics and metrics.lossy,
    }


def _over_all_drafts(metrics: SpeculationMetrics) -> list[float]:
    return [accepted / metrics.draft_rounds for accepted in metrics.accepted_at]


def _plain(value: Any) -> Any:
    return " ".join(f"{each:.4f}" for each in value) if isinstance(value, list) else value


def _measurement(found: Measurement) -> dict[str, Any]:
    made = asdict(found) | {
        "tokens_per_s": found.tokens_per_s,
        "request_tokens_per_s": found.request_tokens_per_s,
    }
    if found.metrics is not None:
        made["metrics"] |= {name: getattr(found.metrics, name) for name in _DERIVED}
    return made


def _read_measurement(found: dict[str, Any]) -> Measurement:
    kept = _fields(Measurement, found)
    contender = _fields(Contender, kept["contender"])
    if contender["tree_shape"] is not None:
        contender["tree_shape"] = tuple(contender["tree_shape"])
    metrics = kept["metrics"]
    if metrics is not None:
        metrics = SpeculationMetrics(**_tuples(_fields(SpeculationMetrics, metrics)))
    kept |= {"contender": Contender(**contender), "metrics": metrics}
    return Measurement(**_tuples(kept))


def _fields(record: type[Any], found: dict[str, Any]) -> dict[str, Any]:
    return {field.name: found[field.name] for field in fields(record) if field.name in found}


def _tuples(found: dict[str, Any]) -> dict[str, Any]:
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in found.items()
    }
