"""A trace or a result as one self-contained HTML page: what a terminal shows, with pictures."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from io import StringIO
from math import ceil
from statistics import fmean
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..engine.trace import Trace
from ..types.records import RoundRecord
from .records import Results
from .tables import rendered

WIDTH, COLUMNS, BAR = 120, 100, 24
"""Letters of a line, of a picture that has a column a round, and of the longest bar."""

BLUE, GREY = "#0969da", "#8c959f"

_STYLE = """
:root{color-scheme:light dark}
body{font:15px/1.4 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem}
pre{font-size:12px;line-height:1.25;overflow-x:auto}
@media (prefers-color-scheme:dark){pre{filter:brightness(1.8)}}
"""


def render_report(found: Trace | Results) -> str:
    """Render a trace or a result as one self-contained HTML page."""
    if isinstance(found, Results):
        headline = f"outrider bench: {found.environment.get('target', 'no model')}"
        return _html(headline, rendered(found, bars=BAR), found.environment)
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
    return _html(headline, Group(Text(text), bars, *_rounds(found.records)), found.settings)


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


def _html(headline: str, shown: RenderableType, facts: Mapping[str, Any]) -> str:
    """Put a page together of what a terminal shows and a JSON object."""
    console = Console(file=StringIO(), record=True, width=WIDTH, highlight=False)
    console.print(shown)
    text = console.export_html(code_format="<pre>{code}</pre>", inline_styles=True)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(headline)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{escape(headline)}</h1>{text}<pre>{escape(json.dumps(facts, indent=2))}</pre>"
        "</body></html>\n"
    )
