"""Figures about speculation in words, the same on a terminal and on a page."""

from __future__ import annotations

from ..engine.metrics import SpeculationMetrics

UNKNOWN = "–"
"""Stands for a figure that there is none of."""

_MOST_PLACES = 8


def summary(metrics: SpeculationMetrics) -> list[tuple[str, str]]:
    """What rounds did and where their time went: names and figures, with their units."""
    drafted_in = f"{metrics.rounds:,}, of which {metrics.draft_rounds:,} drafted"
    lines = [
        ("rounds", drafted_in),
        ("tokens emitted", f"{metrics.emitted:,}"),
        ("tokens drafted", f"{metrics.drafted:,}"),
        ("tokens accepted", f"{metrics.accepted:,}"),
        ("acceptance rate", percent(metrics.acceptance_rate, 1)),
        ("acceptance length", f"{number(metrics.acceptance_length)} tokens a round that drafted"),
        ("ceiling", ceiling(metrics)),
        ("accepted by position", positions(metrics)),
        ("rounds by depth", depths(metrics)),
        ("time of a round", time_split(metrics)),
        ("tokens a second", f"{number(metrics.tokens_per_s, 1)} in rounds, prompts included"),
    ]
    if metrics.draft_failures:
        failed = f"{metrics.draft_failures:,} rounds went on with what was left"
        lines.append(("drafter failed", failed))
    if metrics.lossy:
        lines.append(("lossy", "the output's distribution is not the target's"))
    return lines


def number(value: float | None, digits: int = 2) -> str:
    """A number, or a dash."""
    return UNKNOWN if value is None else f"{value:.{digits}f}"


def percent(share: float | None, digits: int = 0) -> str:
    """A share as a percentage, or a dash."""
    return UNKNOWN if share is None else f"{share:.{digits}%}"


def ceiling(metrics: SpeculationMetrics) -> str:
    """The most tokens of a round that drafts, by any lossless verification, and how much of it."""
    if metrics.ceiling is None:
        return UNKNOWN
    error = metrics.ceiling_error
    told = f"{metrics.ceiling:.2f}" + ("" if error is None else f" ± {1.96 * error:.2f}")
    reached, error = percent(metrics.ceiling_share), metrics.ceiling_share_error
    reached += "" if error is None else f" ± {196 * error:.0f}%"
    lucky = metrics.ceiling_share is not None and metrics.ceiling_share > 1 and not metrics.lossy
    return (
        f"{told} tokens a round, estimated, and {reached} of it reached"
        + " (above 100% by chance)" * lucky
    )


def positions(metrics: SpeculationMetrics) -> str:
    """Acceptance by position in percent, the first few positions of a deep draft."""
    if not metrics.per_position:
        return UNKNOWN
    shares = [f"{100 * share:.0f}" for share in metrics.per_position]
    more = " …" if len(shares) > _MOST_PLACES else ""
    return " ".join(shares[:_MOST_PLACES]) + f"{more} %"


def depths(metrics: SpeculationMetrics) -> str:
    """How often rounds drafted to each depth, in percent, the commonest if there are many."""
    counts = {depth: count for depth, count in enumerate(metrics.depths) if count}
    if not counts:
        return UNKNOWN
    kept = sorted(sorted(counts, key=lambda depth: -counts[depth])[:_MOST_PLACES])
    told = {f"{depth}": counts[depth] for depth in kept}
    rest = sum(counts.values()) - sum(told.values())
    if rest:
        told["others"] = rest
    return ", ".join(f"{name}: {_share(count, metrics.rounds)}" for name, count in told.items())


def _share(count: int, total: int) -> str:
    return "<1%" if 200 * count < total else percent(count / total)


def time_split(metrics: SpeculationMetrics) -> str:
    """Milliseconds of a round, and their shares."""
    if metrics.rounds == 0 or metrics.total_s == 0:
        return UNKNOWN
    shares = (
        f"{name} {percent(seconds / metrics.total_s)}"
        for name, seconds in (
            ("draft", metrics.draft_s),
            ("target", metrics.target_s),
            ("rest", metrics.other_s),
        )
    )
    return f"{1e3 * metrics.total_s / metrics.rounds:.2f} ms: {', '.join(shares)}"
