"""Plots of a benchmark: speedups, acceptance by position, time per round, what a forward costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..engine.metrics import SpeculationMetrics
from . import canvas
from .canvas import Picture
from .records import BenchResult, ForwardTime, Measurement
from .verdicts import Regime, is_baseline, none_faster, outcome, regimes, setting, verdicts

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FEWEST_ROUNDS = 20
"""A position that fewer rounds drafted says too little to be drawn."""

MOST_SERIES = len(canvas.SERIES)

_ROW = 0.235
"""Inches."""

_REACH = 1.4
"""How many times as far as the fastest an axis of speedups reaches, where intervals are wider."""

_OUTCOMES = {
    "faster": (canvas.BLUE, "o", canvas.BLUE),
    "not told apart": (canvas.QUIET, "s", "white"),
    "slower": (canvas.RED, "v", canvas.RED),
}
"""Colour, marker and filling."""

SPLIT = (("draft", canvas.ORANGE), ("target", canvas.BLUE), ("rest", canvas.GREY))


def draw(result: BenchResult, directory: Path) -> list[Path]:
    """Write every plot that the result has data for into a folder, as PNG.

    Returns:
        Their paths.

    Raises:
        InvalidConfigError: matplotlib is not installed.
        OSError: the folder cannot be written.
    """
    return canvas.save(pictures(result), directory)


def pictures(result: BenchResult) -> list[Picture]:
    """Every plot that the result has data for; one of each for each batch size and dtype.

    Raises:
        InvalidConfigError: matplotlib is not installed.
    """
    found = regimes(result)
    made: list[Picture] = []
    for regime in found:
        table = _Table.of(result, regime)
        ending = "" if len(found) == 1 else f"-batch-{regime.batch}-{regime.dtype}"
        for name, draw_one in (
            ("speedup", _speedup),
            ("acceptance-by-position", _acceptance),
            ("time-per-round", _time),
        ):
            data = draw_one(table)
            if data is not None:
                made.append((name + ending, data))
    if result.curve:
        made.append(("forward-times", _curve(result)))
    return made


@dataclass(frozen=True, slots=True)
class _Table:
    """The measurements of one regime by workload and temperature.

    Attributes:
        where: models, machine, batch and dtype, for a note.
        measurements: of the regime.
        best: the best contender that speculates, for each workload and temperature, see `Verdict`.
    """

    where: str
    measurements: tuple[Measurement, ...]
    best: tuple[Measurement, ...]

    @staticmethod
    def of(result: BenchResult, regime: Regime) -> _Table:
        """Of one regime of a result."""
        where = ", ".join(part for part in (setting(result.provenance), regime.label) if part)
        if result.partial:
            where += "; interrupted, so this is part of the run"
        best = [verdict.best for verdict in verdicts(result) if verdict.regime == regime]
        return _Table(where, tuple(regime.of(result.measurements)), tuple(best))

    @property
    def temperatures(self) -> list[float]:
        """In order."""
        return sorted({found.temperature for found in self.measurements})

    @property
    def workloads(self) -> list[str]:
        """In the order of the measurements."""
        return list(dict.fromkeys(found.workload for found in self.measurements))

    def only(self, chosen: Sequence[Measurement]) -> _Table:
        """Some of its measurements."""
        return _Table(self.where, tuple(chosen), self.best)

    def rows(self) -> list[tuple[str, str | None]]:
        """Of a plot with a line for each contender below each workload; None is the heading."""
        listed: list[tuple[str, str | None]] = []
        for workload in self.workloads:
            listed.append((workload, None))
            of_it = (found for found in self.measurements if found.workload == workload)
            labels = dict.fromkeys(found.label for found in of_it)
            listed += [(workload, label) for label in labels]
        return listed

    def at(self, temperature: float) -> Iterator[tuple[int, Measurement]]:
        """The measurements at a temperature, each with the number of its row."""
        number = {row: place for place, row in enumerate(self.rows())}
        for found in self.measurements:
            if found.temperature == temperature:
                yield number[found.workload, found.label], found


def _speedup(table: _Table) -> bytes | None:
    """Dots and whiskers over a line at 1."""
    shown = table.only(
        [f for f in table.measurements if f.speedup is not None and not is_baseline(f)]
    )
    if not shown.measurements:
        return None
    notes = (
        "Tokens a second over those of Outrider's plain decoding (dashed line, 1.0), with 95% "
        "intervals (bootstrap and Student's t). Circles are faster, triangles slower, "
        "hollow squares not told apart; bold is the best speculation; an interval that ends in an "
        "arrow goes on.",
        table.where,
    )
    reach = _REACH * max(1.0, *(f.speedup for f in shown.measurements if f.speedup))
    figure, axes_rows = canvas.canvas(
        _speedup_finding(table.best),
        notes,
        height=_ROW * len(shown.rows()) + 0.75,
        columns=len(shown.temperatures),
        sharex=True,
        sharey=True,
    )
    for temperature, axes in zip(shown.temperatures, axes_rows[0], strict=True):
        canvas.dress(axes, grid="x", title=_temperature(temperature), x="speedup (times)")
        axes.axvline(1, color=canvas.BLACK, linestyle="--", linewidth=1.2)
        for row, found in shown.at(temperature):
            assert found.speedup is not None
            color, marker, filling = _OUTCOMES[outcome(found)]
            low = found.speedup if found.low is None else found.low
            high = min(found.speedup if found.high is None else found.high, reach)
            axes.plot([low, high], [row, row], color=color, linewidth=2, solid_capstyle="butt")
            if high == reach:
                axes.plot(reach, row, ">", color=color, markersize=5)
            axes.plot(found.speedup, row, marker, color=color, mfc=filling, markersize=6.5)
            told = f"{found.speedup:.2f}" + " (partial)" * found.partial
            canvas.write_beside(axes, high, row, told, color, bold=found in table.best)
    canvas.label_rows(axes_rows[0], _names(shown))
    speeds = [
        f for found in shown.measurements for f in (found.low, found.high, found.speedup) if f
    ]
    least, most = min(1.0, *speeds), min(max(1.0, *speeds), reach)
    span = most - least
    axes_rows[0][0].set_xlim(least - 0.06 * span, most + 0.22 * span)
    return canvas.png(figure)


def _time(table: _Table) -> bytes | None:
    """Stacked bars of milliseconds."""
    shown = table.only(
        [f for f in table.measurements if f.decoding is not None and f.decoding.total_s > 0]
    )
    if not shown.measurements:
        return None
    several = any(found.batch > 1 for found in shown.measurements)
    unit = "ms a round" + " and sequence" * several
    notes = (
        "Mean time of a round, split into drafting, the target's forward pass and the rest, the "
        "target's reading of the prompt aside; beside it the tokens that a round emits.",
        table.where,
    )
    figure, axes_rows = canvas.canvas(
        _split_finding(shown.measurements),
        notes,
        height=_ROW * len(shown.rows()) + 1.05,
        columns=len(shown.temperatures),
        sharex=True,
        sharey=True,
    )
    longest = 0.0
    for temperature, axes in zip(shown.temperatures, axes_rows[0], strict=True):
        canvas.dress(axes, grid="x", title=_temperature(temperature), x=unit)
        for row, found in shown.at(temperature):
            metrics = found.decoding
            assert metrics is not None
            longest = max(longest, stack(axes, row, metrics))
            tokens = metrics.emitted / metrics.rounds
            total = 1e3 * metrics.total_s / metrics.rounds
            canvas.write_beside(axes, total, row, f"{total:.1f} ms, {tokens:.1f} tok.")
    canvas.label_rows(axes_rows[0], _names(shown))
    axes_rows[0][0].set_xlim(0, longest * 1.9)
    marks = axes_rows[0][0].containers[: len(SPLIT)]
    canvas.legend(figure, marks, [name for name, _ in SPLIT], len(SPLIT))
    return canvas.png(figure)


def stack(axes: Axes, row: float, metrics: SpeculationMetrics) -> float:
    """A bar of a mean round's milliseconds, draft, target and rest; returns its length."""
    start = 0.0
    for (_, color), seconds in zip(
        SPLIT, (metrics.draft_s, metrics.target_s, metrics.other_s), strict=True
    ):
        length = 1e3 * seconds / metrics.rounds
        axes.barh(row, length, 0.7, start, color=color, edgecolor="white", linewidth=0.6)
        start += length
    return start


def _acceptance(table: _Table) -> bytes | None:
    """A line for each contender, a panel for each workload and temperature."""
    drawn = table.only([f for f in table.measurements if f.metrics and _positions(f.metrics)])
    labels = _fastest_labels(drawn.measurements)
    if not labels:
        return None
    left_out = len({f.label for f in drawn.measurements}) - len(labels)
    some = f" The {len(labels)} fastest contenders; {left_out} are left out." if left_out else ""
    notes = (
        "Share of the rounds that drafted a token at a position in which it was accepted; "
        f"positions that at least {FEWEST_ROUNDS} rounds drafted.{some}",
        table.where,
    )
    rows, columns = len(drawn.workloads), len(drawn.temperatures)
    figure, panels = canvas.canvas(
        _acceptance_finding(drawn.measurements),
        notes,
        height=1.75 * rows + 0.5 + 0.22 * -(-len(labels) // 2),
        rows=rows,
        columns=columns,
        sharex=True,
        sharey=True,
    )
    marks = {}
    for workload, row in zip(drawn.workloads, panels, strict=True):
        for temperature, axes in zip(drawn.temperatures, row, strict=True):
            last = workload == drawn.workloads[-1]
            canvas.dress(
                axes,
                grid="y",
                title=f"{canvas.shortened(workload)}, {_temperature(temperature)}",
                x="position in the draft" if last else "",
                y="accepted (%)" if temperature == drawn.temperatures[0] else "",
            )
            for found in drawn.measurements:
                place = found.workload, found.temperature
                if place != (workload, temperature) or found.label not in labels:
                    continue
                assert found.metrics is not None
                number = labels.index(found.label)
                shares = _positions(found.metrics)
                (marks[found.label],) = axes.plot(
                    range(1, len(shares) + 1),
                    [100 * share for share in shares],
                    marker=canvas.MARKERS[number],
                    color=canvas.SERIES[number],
                    markersize=5.5,
                    linewidth=1.6,
                )
    panels[0][0].set_ylim(0, 104)
    deepest = max(len(_positions(f.metrics)) for f in drawn.measurements if f.metrics)
    panels[0][0].set_xlim(0.5, deepest + 0.5)
    panels[0][0].locator_params(axis="x", integer=True)
    canvas.legend(figure, [marks[label] for label in labels], labels, 2)
    return canvas.png(figure)


def _curve(result: BenchResult) -> bytes:
    """Milliseconds of the target's forward against tokens in it, with quartiles."""
    by_rows: dict[int, list[ForwardTime]] = {}
    for point in sorted(result.curve, key=lambda point: (point.rows, point.width)):
        by_rows.setdefault(point.rows, []).append(point)
    notes = (
        "Median time of the target's forward pass against the tokens in it, t(n); the band holds "
        "the middle half of the timings. A round that drafts k tokens is a forward of k + 1.",
        setting(result.provenance),
    )
    figure, ((axes,),) = canvas.canvas(
        _curve_finding(next(iter(by_rows.values()))), notes, height=3.6
    )
    canvas.dress(
        axes, grid="y", x="tokens in the forward pass (sequences x tokens of each)", y="ms"
    )
    for place, (rows, points) in enumerate(by_rows.items()):
        number = place % MOST_SERIES
        tokens = [point.rows * point.width for point in points]
        axes.fill_between(
            tokens,
            [1e3 * point.low for point in points],
            [1e3 * point.high for point in points],
            color=canvas.SERIES[number],
            alpha=0.25,
            linewidth=0,
        )
        axes.plot(
            tokens,
            [1e3 * point.seconds for point in points],
            marker=canvas.MARKERS[number],
            color=canvas.SERIES[number],
            linewidth=1.8,
            markersize=5.5,
            label="1 sequence" if rows == 1 else f"{rows} sequences",
        )
    counts = sorted({point.rows * point.width for point in result.curve})
    if counts[-1] > 64 * counts[0]:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:.0f}")
    elif len(counts) <= 12:
        axes.set_xticks(counts)
    axes.set_ylim(bottom=0)
    if len(by_rows) > 1:
        axes.legend(frameon=False, fontsize=9.5)
    return canvas.png(figure)


def _names(table: _Table) -> list[tuple[str, bool]]:
    return [
        (workload if label is None else label, label is None) for workload, label in table.rows()
    ]


def _temperature(temperature: float) -> str:
    return f"temperature {temperature:g}"


def _positions(metrics: SpeculationMetrics) -> list[float]:
    """Acceptance by position, as far as enough rounds drafted."""
    pairs = zip(metrics.per_position, metrics.drafted_at, strict=True)
    return [share for share, drafted in pairs if drafted >= FEWEST_ROUNDS]


def _fastest_labels(measurements: Sequence[Measurement]) -> list[str]:
    """The contenders that a plot has room for, in order, the fastest on average if not all."""
    speeds: dict[str, list[float]] = {}
    for found in measurements:
        speeds.setdefault(found.label, []).append(found.speedup or 0.0)
    kept = sorted(speeds, key=lambda label: -sum(speeds[label]) / len(speeds[label]))[:MOST_SERIES]
    return [label for label in speeds if label in kept]


def _speedup_finding(best: Sequence[Measurement]) -> str:
    """How often the best speculation beats plain decoding, and by how much at most."""
    if not best:
        return "Speedup over plain decoding"
    won = [found for found in best if outcome(found) == "faster"]
    if not won:
        return none_faster([outcome(found) for found in best])
    most = max(won, key=lambda found: found.speedup or 0.0)
    return (
        f"Speculation wins {len(won)} of {len(best)} comparisons with plain decoding, by up to "
        f"{most.speedup:.2f} times ({canvas.shortened(most.workload)}, "
        f"{_temperature(most.temperature)})"
    )


def _split_finding(measurements: Sequence[Measurement]) -> str:
    """Which part of a round takes the most, among contenders that draft."""
    totals = [0.0, 0.0, 0.0]
    for found in measurements:
        metrics = found.decoding
        if metrics is not None and metrics.draft_rounds:
            parts = metrics.draft_s, metrics.target_s, metrics.other_s
            totals = [total + part for total, part in zip(totals, parts, strict=True)]
    if not any(totals):
        return "Where the time of a round goes"
    draft, target, rest = (100 * total / sum(totals) for total in totals)
    return (
        f"Where drafts are made, {draft:.0f}% of the time goes into them, {target:.0f}% into the "
        f"target, {rest:.0f}% into the rest"
    )


def _acceptance_finding(measurements: Sequence[Measurement]) -> str:
    """Between which shares the first drafted token is accepted."""
    firsts = [
        (100 * _positions(found.metrics)[0], canvas.shortened(found.workload, 24))
        for found in measurements
        if found.metrics
    ]
    (least, where_least), (most, where_most) = min(firsts), max(firsts)
    return (
        f"The first drafted token is accepted in {least:.0f}% ({where_least}) to {most:.0f}% "
        f"({where_most}) of rounds"
    )


def _curve_finding(points: Sequence[ForwardTime]) -> str:
    """What more tokens in a forward cost, of the fewest sequences measured."""
    first = points[0]
    chosen = next((point for point in points if point.width >= 5), points[-1])
    if chosen is first:
        return f"A forward pass over {_tokens(first)} takes {1e3 * first.seconds:.1f} ms"
    return (
        f"A forward over {_tokens(chosen)} takes "
        f"{chosen.seconds / first.seconds:.2f} times as long as one over {_tokens(first)}"
    )


def _tokens(point: ForwardTime) -> str:
    count = point.rows * point.width
    return "1 token" if count == 1 else f"{count} tokens"
