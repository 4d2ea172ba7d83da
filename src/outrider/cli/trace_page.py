"""A trace as one self-contained HTML page: its figures, and a picture of its rounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil
from statistics import fmean

from rich.console import Group
from rich.table import Table
from rich.text import Text

from ..bench.page import page
from ..engine.trace import Trace
from ..types.records import RoundRecord

COLUMNS, BAR = 100, 24
"""Letters of a picture that has a column a round, and of the longest bar."""

BLUE, GREY = "#0969da", "#8c959f"


def trace_page(found: Trace) -> str:
    """Render a trace as a page: what became of its drafts, where time went, and its rounds."""
    metrics = found.metrics
    length = metrics.acceptance_length
    headline = "Nothing was drafted" if length is None else f"{length:.2f} tokens a drafting round"
    headline += f", {metrics.emitted:,} tokens in {metrics.rounds:,} rounds"
    text = f"{metrics}\n" + "the last line was cut short, and is left out\n" * found.truncated
    spent = {"target": metrics.target_s, "drafting": metrics.draft_s, "rest": metrics.other_s}
    shares = {f"time, {name}": spent[name] / (metrics.total_s or 1) for name in spent}
    shares |= {f"accepted, token {n}": share for n, share in enumerate(metrics.per_position, 1)}
    bars = Table.grid(padding=(0, 1))
    for name, share in shares.items():
        bars.add_row(name, f"{share:.0%}", Text("█" * round(share * BAR), BLUE))
    return page(headline, Group(Text(text), bars, *_rounds(found.records)), found.settings)


def _rounds(records: Sequence[RoundRecord]) -> Iterator[Text]:
    """Draw the tokens of each round as a column, or those of a few rounds on average."""
    each = ceil(len(records) / COLUMNS) or 1
    groups = [records[first : first + each] for first in range(0, len(records), each)]
    accepted = [fmean(fmean(record.accepted) for record in group) for group in groups]
    drafted = [fmean(fmean(record.depth) for record in group) for group in groups]
    yield Text(f"\ndrafted tokens by round, {each} a column: accepted blue, refused grey\n")
    for token in range(round(max(drafted, default=0)), 0, -1):
        line = Text()
        for kept, tried in zip(accepted, drafted, strict=True):
            style = BLUE if kept >= token - 0.5 else GREY
            line.append("█" if tried >= token - 0.5 else " ", style)
        yield line
