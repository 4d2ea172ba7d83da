"""Results for people: a table for the terminal, Markdown, and the verdict of each trial."""

from __future__ import annotations

import json
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

NEAR = 1.25
"""An interval around 1 whose ends are no further apart says that there is no clear difference."""

BUSY = 0.15
"""Plain decoding whose speed varies by more, in standard deviations, is named as the reason."""

_STYLES = {-1: "red", 0: "", 1: "green"}


def rendered(results: Results) -> RenderableType:
    """Lay results out: a table, what it means, and what is missing from it."""
    said = [Text(line, style="bold") for line in verdicts(results)]
    note = Text(f"{NOTE}\n", style="dim")
    return Group(figures(results), note, *said, *map(Text, remarks(results)))


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
    """Write results as Markdown: a table, what it means, and where the figures come from."""
    rows = [[f"{each.trial}: {cells(each)[0]}", *cells(each)[1:]] for each in results.measurements]
    said = "\n".join(f"- {line}" for line in (*verdicts(results), *remarks(results)))
    facts = json.dumps(results.environment, indent=2)
    shown = markdown_table(HEADINGS, rows)
    return f"# outrider bench\n\n{shown}\n\n{said}\n\n{NOTE}\n\n```json\n{facts}\n```\n"


def markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write a Markdown table: a first column of words, then columns of numbers."""
    ruler = ["---", *["---:"] * (len(headings) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (headings, ruler, *rows))


def cells(found: Measurement) -> list[str]:
    """Return a measurement as texts, one for each heading."""
    metrics = found.metrics
    length, rate = metrics and metrics.acceptance_length, metrics and metrics.acceptance_rate
    idle = "no draft" if metrics is not None and not found.candidate.plain else ""
    gain = found.speedup
    interval = f"{gain.low:.2f}–{gain.high:.2f}" if gain and gain.low is not None else ""
    return [
        found.candidate.label,
        f"{found.tokens_per_s:.1f}",
        f"{gain.ratio:.2f}x" if gain else "–",
        interval if len(interval) < 15 else "too few",
        idle if length is None else f"{length:.2f}",
        "" if rate is None else f"{rate:.0%}",
        "" if found.identical is None else f"{found.identical}/{len(found.tokens)}",
    ]


def verdicts(results: Results) -> Iterator[str]:
    """Say for each trial whether to speculate and how: of Outrider's the fastest, if surely so."""
    for trial, members in results.trials.items():
        drafting = [each for each in members if each.speedup and not each.candidate.plain]
        own = [each for each in drafting if each.candidate.system == "outrider"]
        if own:
            best = max(own, key=lambda each: (each.outcome, _ratio(each)))
            said = _compared(best, members[0])
            ahead = max(members, key=_ratio)
            if ahead.candidate.system != "outrider":
                said += f"; {ahead.candidate.label}, at {_ratio(ahead):.2f}x, is ahead of that"
            yield f"{trial}: {said}"


def _ratio(found: Measurement) -> float:
    """Return a speed over plain decoding's, 0 where it is not known."""
    return found.speedup.ratio if found.speedup else 0.0


def _compared(found: Measurement, plain: Measurement) -> str:
    """Say how fast a candidate is beside plain decoding, and if that is open, why."""
    label, gain = found.candidate.label, found.speedup or Speedup(1.0)
    low, high = gain.low, gain.high
    said = f"{label} is {gain.ratio:.2f}x as fast as plain decoding"
    if low is None or high is None:
        one = "prompt" if plain.batch == 1 else "batch of prompts"
        return f"one {one} has no interval: on it {said}"
    if low > 1:
        return f"{said} (95% interval {low:.2f} to {high:.2f})"
    if high < 1:
        return f"turn it off: plain decoding is faster (at best {said})"
    said = f"{label} is between {low:.2f}x and {high:.2f}x as fast as plain decoding"
    if high <= NEAR * low:
        return f"no clear difference: {said}"
    rates = np.divide(plain.tokens, plain.seconds)
    varied = float(rates.std(ddof=1) / rates.mean())
    busy = f"plain decoding's own speed varied by {varied:.0%}: a busy machine, or unlike prompts"
    why = busy if varied > BUSY else "the prompts differ too much"
    return f"cannot tell on this machine: {said}; {why}"


def remarks(results: Results) -> Iterator[str]:
    """Say what readers have to know beside the figures."""
    if results.partial:
        yield "partial: the run was interrupted, and this is what had been measured"
    for found in results.measurements:
        where, total = f"{found.candidate.label}, {found.trial}", len(found.tokens)
        if found.speedup is None:
            yield f"{where}: tokens that were asked for are missing, so there is no speedup"
        if found.identical is not None and found.identical < total:
            why = "" if found.errors else "; rounding explains it"
            others = f"{total - found.identical} of {total}"
            yield f"{where}: other tokens than plain decoding in {others}{why}"
        yield from (f"{where}: {each}" for each in found.errors[:3])
        if found.metrics is not None and found.metrics.draft_failures:
            yield f"{where}: the drafter failed in {found.metrics.draft_failures} rounds"
    yield from (f"missing: {each}" for each in results.missing)
    yield from (f"left out: {each}" for each in results.skipped)
