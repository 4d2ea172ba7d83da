"""The result as a table: for each workload and temperature, what each contender is worth."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from .records import BenchResult, Measurement
from .verdicts import caution, is_baseline, outcome, verdicts

HEADINGS = (
    *("contender", "tokens/s", "speedup", "95% interval"),
    *("length", "ceiling", "rate", "same"),
)

NOTE = (
    "tokens/s: from the request to the last token, the target's reading of the prompt aside; "
    "speedup: over Outrider's plain decoding on the same prompts; length: tokens emitted by a "
    "round that drafts; ceiling: the most that any lossless verification emits on average from "
    "such drafts, estimated from them; rate: drafted tokens that were kept; same: stretches whose "
    "tokens agree with plain decoding, where they have to"
)

_WIDE = 100
"""Columns of a terminal that has room for all."""

_LEFT_OUT = ("ceiling", "rate")
"""What a narrower one has no room for."""

_VAGUE = 100
"""An interval with ends this many times apart says that there are too few stretches to tell."""

_STYLES = {"faster": "green", "slower": "red", "not told apart": ""}


def rendered(result: BenchResult, width: int = _WIDE) -> RenderableType:
    """For a terminal of so many columns: a table, what it means, and what is missing from it."""
    left_out = () if width >= _WIDE else _LEFT_OUT
    places = [place for place, heading in enumerate(HEADINGS) if heading not in left_out]
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    for place in places:
        table.add_column(HEADINGS[place], justify="right" if place else "left", no_wrap=place > 0)
    for where, members in _groups(result):
        table.add_row(Text(where, style="bold"))
        for found in members:
            style = _STYLES[outcome(found)] if found.speedup and not is_baseline(found) else ""
            told = cells(found)
            told[0] = f"  {told[0]}"
            table.add_row(*(told[place] for place in places), style=style)
        table.add_row()
    parts: list[RenderableType] = [table] if result.measurements else []
    parts += [Text(line, style="bold") for line in closing(result)]
    parts += [Text(line) for line in remarks(result)]
    parts.append(Text(f"\n{NOTE}", style="dim"))
    if left_out:
        wider = f"{' and '.join(left_out)}: in a terminal of {_WIDE} columns, and in files"
        parts.append(Text(wider, style="dim"))
    return Group(*parts)


def as_markdown(result: BenchResult) -> str:
    """The same for a page: a table a regime, the verdicts, and where the figures come from."""
    lines = ["# outrider bench", ""]
    if result.partial:
        lines += ["**Partial: the run was interrupted.**", ""]
    for where, members in _groups(result):
        lines += [f"## {where}", "", _row(HEADINGS), _row(["---", *["---:"] * (len(HEADINGS) - 1)])]
        lines += [*(_row(cells(found)) for found in members), ""]
    lines += [f"- {line}" for line in (*closing(result), *remarks(result))]
    lines += ["", f"{NOTE[0].upper()}{NOTE[1:]}.", "", "## Provenance", ""]
    lines += [f"- {name}: {value}" for name, value in result.provenance.items()]
    return "\n".join(lines) + "\n"


def cells(found: Measurement) -> list[str]:
    """A measurement, a text for each heading."""
    metrics = found.metrics
    length = rate = ceiling = None
    if metrics is not None:
        length, rate, ceiling = metrics.acceptance_length, metrics.acceptance_rate, metrics.ceiling
    interval = "" if is_baseline(found) or found.speedup is None else told_interval(found, "–")
    return [
        found.label,
        f"{found.tokens_per_s:.1f}",
        "–" if found.speedup is None else f"{found.speedup:.2f}x",
        interval,
        ("no draft" if found.idle else "") if length is None else f"{length:.2f}",
        "" if ceiling is None else f"{ceiling:.2f}",
        "" if rate is None else f"{rate:.0%}",
        "" if found.identical is None else f"{found.identical}/{len(found.tokens)}",
    ]


def told_interval(found: Measurement, unknown: str) -> str:
    """The interval of its speedup, if there are enough stretches for one."""
    if found.low is None or found.high is None:
        return unknown
    return f"{found.low:.2f}–{found.high:.2f}" if found.high <= _VAGUE * found.low else "too few"


def closing(result: BenchResult) -> Iterator[str]:
    """For each workload and regime, whether to speculate, and how."""
    several = len({(found.batch, found.dtype) for found in result.measurements}) > 1
    for verdict in verdicts(result):
        best, peer = verdict.best, verdict.peer
        where = f"{verdict.workload}, temperature {verdict.temperature:g}"
        if several:
            where += f", {verdict.regime.label}"
        told = f"{best.contender.label} is {best.speedup:.2f}x as fast as plain decoding"
        if verdict.outcome == "slower":
            told = f"slower than plain: do not speculate (at best {best.speedup:.2f}x)"
        elif verdict.outcome == "not told apart":
            told = f"not told apart from plain, more prompts may tell (at best {told})"
        elif verdict.ahead is not None:
            label, times = verdict.ahead.contender.label, verdict.ahead.speedup
            told += f"; {label}, at {times:.2f}x, was not told apart from plain"
        if peer is not None:
            told += f"; {peer.label}, at {peer.speedup:.2f}x, is ahead of that"
        yield f"{where}: {told}"


def remarks(result: BenchResult) -> Iterator[str]:
    """What readers have to know beside the figures."""
    chance = caution(result)
    if chance is not None:
        yield chance
    if result.partial:
        yield "partial: the run was interrupted, and this is what had been measured"
    for name, count in result.provenance.get("settings", {}).get("predictions", {}).items():
        yield f"{name}: prompts with a prediction, which only prediction and hybrid see: {count}"
    for found in result.measurements:
        where = f"{found.contender.label}, {found.workload}, temperature {found.temperature:g}"
        metrics = found.metrics
        if found.speedup is None:
            yield f"{where}: tokens that were asked for are missing, so there is no speedup"
        if found.identical is not None and found.identical < len(found.tokens):
            yield (
                f"{where}: other tokens than plain decoding in {_less(found)} of "
                f"{len(found.tokens)} stretches; rounding can flip a near-tie"
            )
        if metrics is not None and metrics.draft_failures:
            yield f"{where}: the drafter failed in {metrics.draft_failures} rounds"
    for each in result.missing:
        yield f"missing: {each}"
    for each in result.skipped:
        yield f"left out: {each}"


def _less(found: Measurement) -> int:
    return len(found.tokens) - (found.identical or 0)


def _groups(result: BenchResult) -> Iterator[tuple[str, list[Measurement]]]:
    """Measurements of one workload and regime, beside a heading."""
    several = len({(found.batch, found.dtype) for found in result.measurements}) > 1

    def where(found: Measurement) -> str:
        heading = f"{found.workload}, temperature {found.temperature:g}"
        return f"{heading}, batch {found.batch}, {found.dtype}" if several else heading

    for heading, members in groupby(result.measurements, key=where):
        yield heading, list(members)


def _row(values: list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(values)} |"
