"""Figures of speculation as JSON takes them, under the names of `SpeculationMetrics`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..engine.metrics import SpeculationMetrics

SPECULATION = (
    *("rounds", "draft_rounds", "drafted", "accepted"),
    *("acceptance_rate", "acceptance_length", "per_position"),
    *("ceiling", "ceiling_interval", "draft_failures", "lossy"),
)
TIMING = ("total_s", "draft_s", "target_s", "other_s", "tokens_per_s", "lossy")


def figures(metrics: SpeculationMetrics) -> dict[str, Any]:
    """Return what became of drafts, and where the time of the rounds went."""
    return {
        "speculation": {name: getattr(metrics, name) for name in SPECULATION},
        "timing": {name: getattr(metrics, name) for name in TIMING},
    }
