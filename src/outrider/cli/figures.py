"""Figures of a run, as JSON takes them and as closing statistics print them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..metrics import SpeculationMetrics


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


def closing_statistics(metrics: SpeculationMetrics) -> str:
    """A line each: what became of the drafts, their ceiling where one is known, and the speed."""
    rate, length = metrics.acceptance_rate, metrics.acceptance_length
    if rate is None or length is None:
        drafts = "draft acceptance = none (nothing was drafted)"
    else:
        positions = ", ".join(f"{share:.3f}" for share in metrics.per_position)
        drafts = (
            f"draft acceptance = {rate:.3f} ({metrics.accepted} accepted / {metrics.drafted} "
            f"drafted), mean acceptance length = {length:.2f}, per position = ({positions}), "
            f"over {metrics.draft_rounds} round{'s' * (metrics.draft_rounds > 1)} that drafted"
        )
        if metrics.ceiling is not None and metrics.ceiling_error is not None:
            drafts += (
                f"\nestimated ceiling = {metrics.ceiling:.2f} +- {1.96 * metrics.ceiling_error:.2f}"
                " tokens a round, the most that any lossless verification emits on average from "
                f"such drafts{_reached(metrics.ceiling_share, metrics.ceiling_share_error)}"
            )
        if metrics.first_ceiling is not None and metrics.first_ceiling_error is not None:
            drafts += (
                f"\nestimated ceiling = {metrics.first_ceiling:.3f} +- "
                f"{1.96 * metrics.first_ceiling_error:.3f} for the share of rounds that keep a "
                f"token ({metrics.per_position[0]:.3f} did)"
                + _reached(metrics.first_ceiling_share, metrics.first_ceiling_share_error)
            )
    if metrics.draft_failures:
        drafts += (
            f"\nthe drafter failed in {metrics.draft_failures} rounds, which went on without it"
        )
    speed = metrics.tokens_per_s or 0.0
    lines = (
        f"{drafts}\n{metrics.emitted} tokens in {metrics.total_s:.2f} s = {speed:.1f} tokens/s, "
        f"prompt included; {metrics.rounds} rounds, {metrics.emitted / metrics.rounds:.2f} tokens "
        "a round"
    )
    if not metrics.lossy:
        return lines
    told = "\n".join(f"lossy: {line}" for line in lines.split("\n"))
    return f"lossy: the output's law is not the target's\n{told}"


def _reached(share: float | None, error: float | None) -> str:
    """What share of a ceiling was reached, where enough rounds tell; of zero there is none."""
    if share is None or error is None or 1.96 * error > 0.1:
        return ""
    return f"; {share:.1%} +- {1.96 * error:.1%} of it was reached"
