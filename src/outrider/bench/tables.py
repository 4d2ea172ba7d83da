"""Results for people: a table for the terminal, Markdown, and the verdict of each trial."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from .records import Measurement, Results
from .speedup import Speedup

HEADINGS = ("candidate", "tokens/s", "speedup", "95% interval", "length", "rate", "same")

NOTE = (
    "tokens/s: from the request to the last token, without the target's prefill; "
    "speedup: over plain decoding on the same prompts; 95% interval: Student's t over prompts, of "
    "which one in twenty misses by chance; length: tokens emitted by a round that drafts; rate: "
    "drafted tokens that were kept; same: batches of prompts whose tokens are those of plain "
    "decoding, where they have to be"
)

MOST_ERRORS = 3
"""So many of a measurement's are reported."""

NEAR = 1.25
"""An interval around 1 whose ends are no further apart says that there is no clear difference."""

BUSY = 0.15
"""Plain decoding whose speed varies by more, in standard deviations, is on a busy machine."""

_STYLES = {"faster": "green", "slower": "red", "undecided": ""}
_RANKS = {"faster": 2, "undecided": 1, "slower": 0}


def rendered(results: Results) -> RenderableType:
    """Lay results out for a terminal: a table, what it means, and what is missing from it."""
    parts: list[RenderableType] = [figures(results)] if results.measurements else []
    parts.append(Text(f"{NOTE}\n", style="dim"))
    parts += [Text(line, style="bold") for line in verdicts(results)]
    return Group(*parts, *(Text(line) for line in remarks(results)))


def figures(results: Results) -> Table:
    """Lay the figures of all candidates out as a table, trial by trial."""
    shown = table(HEADINGS[0], right=HEADINGS[1:])
    for trial, members in results.trials.items():
        shown.add_row(Text(trial, style="bold"))
        for found in members:
            first, *others = cells(found)
            shown.add_row(f"  {first}", *others, style=_STYLES[found.outcome])
        shown.add_row()
    return shown


def table(*headings: str, right: Sequence[str] = ()) -> Table:
    """Make a table without a frame: columns to the left, then columns of figures."""
    made = Table(
        box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=True, show_edge=False
    )
    for heading in headings:
        made.add_column(heading)
    for heading in right:
        made.add_column(heading, justify="right", no_wrap=True)
    return made


def as_markdown(results: Results) -> str:
    """Write results as Markdown: a table a trial, the verdicts, and where the figures come from."""
    lines = ["# outrider bench", ""]
    for trial, members in results.trials.items():
        rows = [cells(found) for found in members]
        lines += [f"## {trial}", "", markdown_table(HEADINGS, rows), ""]
    lines += [f"- {line}" for line in (*verdicts(results), *remarks(results))]
    lines += ["", f"{NOTE[0].upper()}{NOTE[1:]}.", "", "## Environment", ""]
    lines += [f"- {name}: {value}" for name, value in results.environment.items()]
    return "\n".join(lines) + "\n"


def markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write a Markdown table: a first column of words, then columns of numbers."""
    ruler = ["---", *["---:"] * (len(headings) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (headings, ruler, *rows))


def cells(found: Measurement) -> list[str]:
    """Return a measurement as texts, one for each heading."""
    metrics = found.metrics
    length = metrics and metrics.acceptance_length
    rate = metrics and metrics.acceptance_rate
    idle = "no draft" if metrics is not None and not found.candidate.plain else ""
    interval = f"{found.low:.2f}–{found.high:.2f}" if found.bounded else "too few"
    return [
        found.label,
        f"{found.tokens_per_s:.1f}",
        "–" if found.speedup is None else f"{found.speedup:.2f}x",
        "" if found.low is None else interval,
        idle if length is None else f"{length:.2f}",
        "" if rate is None else f"{rate:.0%}",
        "" if found.identical is None else f"{found.identical}/{len(found.tokens)}",
    ]


def best_of(members: Sequence[Measurement]) -> Measurement | None:
    """Choose the candidate that a trial speaks for: the fastest of the surest outcome.

    Outrider's own that speculate; None where there are none with a speedup.
    """
    own = [
        found
        for found in members
        if found.candidate.system == "outrider" and not found.candidate.plain and found.speedup
    ]
    return max(own, key=lambda found: (_RANKS[found.outcome], found.speedup), default=None)


def verdicts(results: Results) -> Iterator[str]:
    """Say for each trial whether to speculate, and how."""
    for trial, members in results.trials.items():
        best = best_of(members)
        if best is not None:
            yield f"{trial}: {verdict(best, members)}"


def verdict(best: Measurement, members: Sequence[Measurement]) -> str:
    """Say what a trial comes to, in a clause; plain decoding is the first of its members."""
    said = compared(best.label, Speedup(best.speedup or 0.0, best.low, best.high), members[:1])
    peers = [found for found in members if found.candidate.system != "outrider" and found.speedup]
    ahead = max(peers, key=lambda found: found.speedup or 0.0, default=None)
    if ahead is not None and (ahead.speedup or 0.0) > max(best.speedup or 0.0, 1.0):
        said += f"; {ahead.label}, at {ahead.speedup:.2f}x, is ahead of that"
    return said


def compared(label: str, gain: Speedup, plain: Sequence[Measurement]) -> str:
    """Say how fast a candidate is beside plain decoding, and if nobody can tell, why.

    `plain` has the measurements of plain decoding that `gain` rests on.
    """
    low, high = gain.low, gain.high
    said = f"{label} is {gain.ratio:.2f}x as fast as plain decoding"
    if low is None or high is None:
        one = "prompt" if plain[0].batch == 1 else "batch of prompts"
        return f"one {one} has no interval: on it {said}"
    if low > 1:
        return f"{said} (95% interval {low:.2f} to {high:.2f})"
    if high < 1:
        return f"turn it off: plain decoding is faster (at best {said})"
    said = f"{label} is between {low:.2f}x and {high:.2f}x as fast as plain decoding"
    if high <= NEAR * low:
        return f"no clear difference: {said}"
    rates = [np.divide(each.tokens, each.seconds) for each in plain]
    varied = max(float(each.std(ddof=1) / each.mean()) for each in rates)
    count = f"{plain[0].prompts} " if plain[0].prompts else ""
    why = f"the {count}prompts differ too much"
    if varied > BUSY:
        why = f"the machine was busy: plain decoding alone varied by {varied:.0%}"
    return f"cannot tell on this machine: {said}; {why}"


def remarks(results: Results) -> Iterator[str]:
    """Say what readers have to know beside the figures."""
    if results.partial:
        yield "partial: the run was interrupted, and this is what had been measured"
    for found in results.measurements:
        where = f"{found.label}, {found.trial}"
        if found.speedup is None:
            yield f"{where}: tokens that were asked for are missing, so there is no speedup"
        total = len(found.tokens)
        if found.identical is not None and found.identical < total:
            why = "" if found.errors else "; rounding explains it"
            others = f"{total - found.identical} of {total}"
            yield f"{where}: other tokens than plain decoding in {others}{why}"
        yield from (f"{where}: {each}" for each in found.errors[:MOST_ERRORS])
        if found.metrics is not None and found.metrics.draft_failures:
            yield f"{where}: the drafter failed in {found.metrics.draft_failures} rounds"
    yield from (f"missing: {each}" for each in results.missing)
    yield from (f"left out: {each}" for each in results.skipped)
