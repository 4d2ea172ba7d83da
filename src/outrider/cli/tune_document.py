"""`outrider tune --json`: a result as JSON takes it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from . import figures

if TYPE_CHECKING:
    from ..bench.checks import Check
    from ..bench.exports import Export
    from ..bench.records import Measurement
    from ..bench.tune import TuneResult


def document(
    result: TuneResult, exports: list[Export], settings: dict[str, Any] | None
) -> dict[str, Any]:
    """The object that `--json` prints."""
    from ..bench.checks import agreement

    counted = agreement(result.checks, rehearsed=False)
    rehearsed = agreement(result.checks, rehearsed=True)
    found = result.recommendation
    return {
        "provenance": result.provenance,
        "workload": result.workload,
        "prompts": result.prompts,
        "skipped": result.skipped,
        "partial": result.partial,
        "curve": [asdict(point) for point in result.curve],
        "predictions": [
            asdict(prediction)
            | {
                "label": prediction.contender.label,
                "tokens_per_s": prediction.tokens_per_s,
                "tokens_per_round": prediction.tokens_per_round,
                "speedup": result.predicted_speedup(prediction),
            }
            for prediction in result.predictions
        ],
        "checks": [_check(check) for check in result.checks],
        "predictions_within_10_percent": {"count": counted.close, "of": counted.of},
        "predictions_within_10_percent_usual": {"count": counted.usual, "of": counted.of},
        "predictions_within_interval": {"count": counted.inside, "of": counted.bounded},
        "short_runs_within_10_percent": {"count": rehearsed.close, "of": rehearsed.of},
        "short_runs_within_10_percent_usual": {"count": rehearsed.usual, "of": rehearsed.of},
        "short_runs_within_interval": {"count": rehearsed.inside, "of": rehearsed.bounded},
        "recommendation": None
        if found is None
        else asdict(found) | {"speculate": found.speculate, "verdict": found.verdict},
        "config": settings,
        "exports": [asdict(each) for each in exports],
    }


def _check(check: Check) -> dict[str, Any]:
    predicted = check.predicted
    return {
        "label": check.measured.contender.label,
        "temperature": check.measured.temperature,
        "predicted_tokens_per_s": None if predicted is None else predicted.tokens_per_s,
        "predicted_from": _source(check),
        "pace": check.pace,
        "expected_tokens_per_s": check.expected,
        "error": check.error,
        "usual_error": check.usual_error,
        "measured_standard_error": check.standard_error,
        "measured_interval": check.interval,
        "plain": _measurement(check.plain),
        "measured": _measurement(check.measured),
    }


def _source(check: Check) -> str | None:
    if check.predicted is None:
        return None
    return "a short run" if check.rehearsed else "formula or replay"


def _measurement(measured: Measurement) -> dict[str, Any]:
    plain = {
        name: getattr(measured, name)
        for name in (
            *("batch", "dtype", "seconds", "usual_s", "tokens", "identical"),
            *("speedup", "low", "high"),
        )
    }
    metrics = measured.metrics
    told = {} if metrics is None else {"speculation": figures.speculation(metrics)}
    timed = {} if metrics is None else {"timing": figures.timing(metrics)}
    contender = {
        "contender": asdict(measured.contender),
        "tokens_per_s": measured.tokens_per_s,
        "usual_tokens_per_s": measured.usual_tokens_per_s,
    }
    return contender | plain | told | timed
