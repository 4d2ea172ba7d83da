"""Figures of a run, as JSON takes them and as closing statistics print them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..engine.metrics import SpeculationMetrics


SPECULATION = (
    *("rounds", "drafted", "accepted", "acceptance_rate", "acceptance_length", "per_position"),
    *("ceiling", "ceiling_interval", "ceiling_share", "ceiling_share_interval"),
    *("first_ceiling", "first_ceiling_share", "first_ceiling_share_interval"),
    *("draft_failures", "lossy"),
)
TIMING = ("total_s", "draft_s", "target_s", "other_s", "tokens_per_s", "lossy")


def speculation(metrics: SpeculationMetrics) -> dict[str, Any]:
    """What was drafted and what became of it; `outrider.metrics` defines each figure."""
    return {name: getattr(metrics, name) for name in SPECULATION}


def timing(metrics: SpeculationMetrics) -> dict[str, Any]:
    """Where the time of the rounds went."""
    return {name: getattr(metrics, name) for name in TIMING}
