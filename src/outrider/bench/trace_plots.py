"""Plots of a trace: what rounds drafted and kept, where their time went, acceptance by position."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, sqrt
from pathlib import Path
from statistics import mean

from ..engine.metrics import SpeculationMetrics
from ..engine.trace import Trace
from ..types.records import RoundRecord
from . import canvas
from .canvas import Picture
from .plots import SPLIT
from .summary import percent
from .verdicts import setting

MOST_BARS = 120
"""More rounds than that are drawn as means over stretches of them."""

_SHOWN = 0.98
"""The share of bars that the axis of times has room for; the others are cut off."""


def draw(trace: Trace, directory: Path) -> list[Path]:
    """Write every plot that the trace has data for into a folder, as PNG.

    Returns:
        Their paths.

    Raises:
        InvalidConfigError: matplotlib is not installed.
        OSError: the folder cannot be written.
    """
    return canvas.save(pictures(trace), directory)


def pictures(trace: Trace) -> list[Picture]:
    """Every plot that the trace has data for.

    Raises:
        InvalidConfigError: matplotlib is not installed.
    """
    made: list[Picture] = []
    if trace.records:
        metrics, where = trace.metrics, regime(trace)
        if trace.truncated:
            where += ", the last line was cut short and is left out"
        if metrics.draft_rounds:
            made.append(("depth-by-round", _depths(trace.records, metrics, where)))
        made.append(("time-by-round", _times(trace.records, metrics, where)))
        if metrics.draft_rounds:
            made.append(("acceptance-by-position", _positions(metrics, where)))
    return made


def regime(trace: Trace) -> str:
    """Under which settings the trace was recorded, in a line."""
    settings = trace.settings
    parts = [setting(settings)]
    sampling = settings.get("sampling")
    if isinstance(sampling, dict) and "temperature" in sampling:
        several = settings.get("temperatures", [sampling["temperature"]])
        parts.append(f"temperature {' then '.join(map(str, several))}")
    if trace.lossy:
        parts.append("lossy verification")
    return ", ".join(part for part in parts if part)


def _depths(records: Sequence[RoundRecord], metrics: SpeculationMetrics, where: str) -> bytes:
    """Bars of the depth drafted to, and inside them of the tokens accepted."""
    per_bar, places, (depth, accepted) = _bars(
        records, lambda record: mean(record.depth), lambda record: mean(record.accepted)
    )
    figure, ((axes,),) = canvas.canvas(
        f"{metrics.accepted:,} of {metrics.drafted:,} drafted tokens were accepted, "
        f"{metrics.acceptance_length:.2f} tokens emitted a round that drafted",
        ("Depth drafted to, and tokens accepted, by round." + _stretches(per_bar), where),
        height=3.0,
    )
    canvas.dress(axes, grid="y", x="round", y="tokens")
    drawn = [
        axes.bar(places, heights, per_bar * 0.9, color=color)
        for heights, color in ((depth, canvas.SKY), (accepted, canvas.BLUE))
    ]
    axes.set_xlim(0.5, len(records) + 0.5)
    axes.locator_params(integer=True)
    canvas.legend(figure, drawn, ("depth drafted to", "accepted"), 2)
    return canvas.png(figure)


def _times(records: Sequence[RoundRecord], metrics: SpeculationMetrics, where: str) -> bytes:
    """Stacked bars of milliseconds; what is far above the others is cut off, and said so."""
    per_bar, places, parts = _bars(
        records,
        lambda record: 1e3 * record.draft_s,
        lambda record: 1e3 * record.target_s,
        lambda record: 1e3 * (record.total_s - record.draft_s - record.target_s),
    )
    totals = [sum(bar) for bar in zip(*parts, strict=True)]
    usual = 1.25 * sorted(totals)[ceil(_SHOWN * len(totals)) - 1 if len(totals) > 10 else -1]
    cut = [total for total in totals if total > usual]
    draft, target, rest = (
        percent(seconds / metrics.total_s if metrics.total_s else None)
        for seconds in (metrics.draft_s, metrics.target_s, metrics.other_s)
    )
    note = f" Bars above are cut off, the longest at {max(cut):.0f} ms." if cut else ""
    figure, ((axes,),) = canvas.canvas(
        f"Of all rounds' time {draft} is drafting, {target} the target, {rest} the rest",
        (
            "Time of each round; the first of a request reads its prompt."
            + _stretches(per_bar)
            + note,
            where,
        ),
        height=3.0,
    )
    canvas.dress(axes, grid="y", x="round", y="ms")
    floor = [0.0] * len(places)
    drawn = []
    for heights, (_, color) in zip(parts, SPLIT, strict=True):
        drawn.append(axes.bar(places, heights, per_bar * 0.9, floor, color=color))
        floor = [below + height for below, height in zip(floor, heights, strict=True)]
    axes.set_xlim(0.5, len(records) + 0.5)
    axes.set_ylim(0, usual or 1)
    axes.locator_params(axis="x", integer=True)
    canvas.legend(figure, drawn, [name for name, _ in SPLIT], len(SPLIT))
    return canvas.png(figure)


def _positions(metrics: SpeculationMetrics, where: str) -> bytes:
    """Bars of acceptance by position, with intervals and the rounds that they rest on."""
    figure, ((axes,),) = canvas.canvas(
        f"The first drafted token is accepted in {100 * metrics.per_position[0]:.0f}% of rounds",
        (
            "Share of the rounds that drafted a token at a position in which it was accepted, with "
            "95% intervals (Wilson 1927); below each position, how many rounds drafted it.",
            where,
        ),
        height=3.0,
    )
    canvas.dress(axes, grid="y", x="position in the draft (rounds)", y="accepted (%)")
    places = range(1, len(metrics.per_position) + 1)
    shares = [100 * share for share in metrics.per_position]
    ends = [
        wilson(accepted, drafted)
        for accepted, drafted in zip(metrics.accepted_at, metrics.drafted_at, strict=True)
    ]
    errors = [
        [max(0.0, share - 100 * low) for share, (low, _) in zip(shares, ends, strict=True)],
        [max(0.0, 100 * high - share) for share, (_, high) in zip(shares, ends, strict=True)],
    ]
    axes.bar(places, shares, 0.7, color=canvas.SKY)
    axes.errorbar(places, shares, errors, fmt="o", color=canvas.BLUE, markersize=5, capsize=3)
    names = [f"{place}\n({count})" for place, count in zip(places, metrics.drafted_at, strict=True)]
    axes.set_xticks(places, names)
    axes.set_ylim(0, 104)
    return canvas.png(figure)


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """The 95% interval of a probability from independent trials (Wilson 1927)."""
    z = 1.96
    share, scale = successes / trials, 1 + z * z / trials
    middle = (share + z * z / (2 * trials)) / scale
    half = z * sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials)) / scale
    return middle - half, middle + half


def _bars(
    records: Sequence[RoundRecord], *figures: Callable[[RoundRecord], float]
) -> tuple[int, list[float], list[list[float]]]:
    """Means of figures over stretches of rounds: rounds in each, their middles, the means."""
    per_bar = ceil(len(records) / MOST_BARS)
    starts = range(0, len(records), per_bar)
    stretches = [records[start : start + per_bar] for start in starts]
    middles = [
        start + (len(stretch) + 1) / 2 for start, stretch in zip(starts, stretches, strict=True)
    ]
    means = [[mean(map(value, stretch)) for stretch in stretches] for value in figures]
    return per_bar, middles, means


def _stretches(per_bar: int) -> str:
    return "" if per_bar == 1 else f" Each bar is the mean of {per_bar} rounds."
