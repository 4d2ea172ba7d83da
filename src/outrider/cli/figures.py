"""Figures of a run, as JSON takes them and as closing statistics print them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..metrics import SpeculationMetrics


def speculation(metrics: SpeculationMetrics) -> dict[str, Any]:
    """What was drafted and what became of it; `outrider.metrics` defines each figure."""
    return {
        "rounds": metrics.rounds,
        "drafted": metrics.drafted,
        "accepted": metrics.accepted,
        "acceptance_rate": metrics.acceptance_rate,
        "acceptance_length": metrics.acceptance_length,
        "per_position": list(metrics.per_position),
    }


def timing(metrics: SpeculationMetrics) -> dict[str, Any]:
    """Where the time of the rounds went."""
    return {
        "total_s": metrics.total_s,
        "draft_s": metrics.draft_s,
        "target_s": metrics.target_s,
        "other_s": metrics.other_s,
        "tokens_per_s": metrics.tokens_per_s,
    }


def closing_statistics(metrics: SpeculationMetrics) -> str:
    """Two lines: what became of the drafts, and the speed."""
    rate, length = metrics.acceptance_rate, metrics.acceptance_length
    if rate is None or length is None:
        drafts = "draft acceptance = none (nothing was drafted)"
    else:
        positions = ", ".join(f"{share:.3f}" for share in metrics.per_position)
        drafts = (
            f"draft acceptance = {rate:.3f} ({metrics.accepted} accepted / {metrics.drafted} "
            f"drafted), mean acceptance length = {length:.2f}, per position = ({positions}), "
            f"over {metrics.draft_rounds} rounds that drafted"
        )
    speed = metrics.tokens_per_s or 0.0
    return (
        f"{drafts}\n{metrics.emitted} tokens in {metrics.total_s:.2f} s = {speed:.1f} tokens/s, "
        f"prompt included; {metrics.rounds} rounds, {metrics.emitted / metrics.rounds:.2f} tokens "
        "a round"
    )
