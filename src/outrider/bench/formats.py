"""Results for machines: JSON that can be read back, JSON lines, CSV, and vLLM's JSON.

Rows have the names of `vllm bench serve` where it has the figure. Rates are fractions.
"""

from __future__ import annotations

import csv
import io
import json
from typing import Any

from .records import Measurement, Results


def as_json(results: Results) -> str:
    """Write results as one line of JSON; `Results.from_document` reads it back."""
    return json.dumps(results.document())


def as_jsonl(results: Results) -> str:
    """Write a line of JSON for each measurement, each with all of its figures."""
    return "".join(json.dumps(row(found)) + "\n" for found in results.measurements)


def as_csv(results: Results) -> str:
    """Write a header, and a line for each measurement."""
    rows = [row(found) for found in results.measurements]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else ["system"], lineterminator="\n")
    writer.writeheader()
    for found in rows:
        writer.writerow({name: _flat(value) for name, value in found.items()})
    return text.getvalue()


def as_vllm(results: Results) -> str:
    """Write a line of JSON for each measurement with the fields of `vllm bench serve` alone.

    Its `label` field names the candidate and the trial.
    """
    return "".join(json.dumps(_vllm(found)) + "\n" for found in results.measurements)


_METRICS = (
    *("acceptance_rate", "acceptance_length", "per_position", "rounds", "draft_rounds"),
    *("drafted", "accepted", "draft_s", "target_s", "total_s"),
)


def row(found: Measurement) -> dict[str, Any]:
    """Return a measurement as flat fields, the same for every measurement."""
    candidate, metrics = found.candidate, found.metrics
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
        "dtype": found.dtype,
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
        "partial": found.partial,
        "lossy": found.lossy,
        **{name: metrics and getattr(metrics, name) for name in _METRICS},
    }


def _vllm(found: Measurement) -> dict[str, Any]:
    duration = sum(found.seconds) + sum(found.prompt_s)
    completed, tokens = len(found.tokens) * found.batch, sum(found.tokens)
    made: dict[str, Any] = {
        "label": f"{found.label}, {found.trial}",
        "duration": duration,
        "completed": completed,
        "failed": 0,
        "total_output_tokens": tokens,
        "request_throughput": completed / duration,
        "output_throughput": tokens / duration,
        **found.latency,
    }
    metrics = found.metrics
    if metrics is not None and metrics.draft_rounds:
        made |= {
            "spec_decode_acceptance_rate": metrics.acceptance_rate,
            "spec_decode_acceptance_length": metrics.acceptance_length,
            "spec_decode_num_drafts": metrics.draft_rounds,
            "spec_decode_draft_tokens": metrics.drafted,
            "spec_decode_accepted_tokens": metrics.accepted,
            # Of all rounds that drafted, however deep, as there.
            "spec_decode_per_position_acceptance_rates": [
                accepted / metrics.draft_rounds for accepted in metrics.accepted_at
            ],
        }
    return made


def _flat(value: Any) -> Any:
    return " ".join(f"{each:.4f}" for each in value) if isinstance(value, tuple) else value
