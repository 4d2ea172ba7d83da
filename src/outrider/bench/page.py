"""A trace or a result as one self-contained HTML page: pictures over what a terminal shows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from io import StringIO
from math import ceil
from statistics import fmean
from typing import Any

from rich.console import Console, RenderableType
from rich.text import Text

from ..engine.trace import Trace
from ..types.records import RoundRecord
from . import svg
from .records import Results
from .tables import rendered

MOST_COLUMNS = 120
"""More rounds than that are drawn as means over stretches of them."""

WIDTH = 110
"""Of the text on a page, in characters."""

_STYLE = """
:root{color-scheme:light dark}
body{font:15px/1.5 system-ui,sans-serif;max-width:860px;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem;line-height:1.25}
pre{font-size:12px;overflow-x:auto}
@media (prefers-color-scheme:dark){pre{filter:brightness(1.8)}}
.chart{width:100%;height:auto;margin:1rem 0}
"""


def render_report(found: Trace | Results) -> str:
    """Render a trace or a result as one self-contained HTML page with SVG pictures."""
    return _bench(found) if isinstance(found, Results) else _trace(found)


def _bench(results: Results) -> str:
    title = "Tokens per second over plain decoding's, with 95% intervals"
    pictures = [svg.bars(title, list(_speedups(results)))] if results.measurements else []
    headline = f"outrider bench: {results.environment.get('target', 'no model')}"
    return _html(headline, pictures, rendered(results), results.environment)


def _speedups(results: Results) -> Iterator[svg.Bar]:
    """The speedups of all candidates under a heading for each trial."""
    for trial, members in results.trials.items():
        yield svg.Bar(trial)
        for found in members[1:]:
            low, high = (found.low, found.high) if found.bounded else (None, None)
            kind = "a" if found.candidate.system == "outrider" else "b"
            if found.speedup:
                yield svg.Bar(found.label, found.speedup, low, high, kind)


def _trace(trace: Trace) -> str:
    metrics = trace.metrics
    text = str(metrics)
    if trace.truncated:
        text += "\nThe last line was cut short, and is left out."
    pictures = []
    if metrics.total_s:
        spent = {"target": metrics.target_s, "drafting": metrics.draft_s, "rest": metrics.other_s}
        rows = [svg.Bar("time of rounds")]
        rows += [svg.Bar(name, seconds / metrics.total_s) for name, seconds in spent.items()]
        rows += [svg.Bar("drafts at each position")]
        rows += [svg.Bar(f"position {n}", each) for n, each in enumerate(metrics.per_position, 1)]
        title = "Where the time goes, and which drafts that reach a position are accepted: shares"
        pictures.append(svg.bars(title, rows, unit=""))
    if metrics.draft_rounds:
        pictures.append(_drafted(trace.records))
    length = metrics.acceptance_length
    headline = "Nothing was drafted" if length is None else f"{length:.2f} tokens a drafting round"
    headline += f", {metrics.emitted:,} tokens in {metrics.rounds:,} rounds"
    return _html(headline, pictures, Text(text), trace.settings)


def _drafted(records: Sequence[RoundRecord]) -> str:
    """Draw what was drafted in each round, or on average in each few where there are many."""
    each = ceil(len(records) / MOST_COLUMNS)
    stacks = []
    for first in range(0, len(records), each):
        some = records[first : first + each]
        accepted = fmean(fmean(record.accepted) for record in some)
        stacks.append((accepted, fmean(fmean(record.depth) for record in some) - accepted))
    title = "Drafted tokens of a round, from the first to the last: accepted (blue), refused (grey)"
    return svg.columns(title + f"; means of {each} rounds" * (each > 1), stacks, "ab")


def _html(
    headline: str, pictures: Sequence[str], text: RenderableType, facts: Mapping[str, Any]
) -> str:
    """Put a page together; `text` is printed as on a terminal."""
    console = Console(file=StringIO(), record=True, width=WIDTH, highlight=False)
    console.print(text)
    printed = console.export_html(code_format="<pre>{code}</pre>", inline_styles=True)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(headline)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{escape(headline)}</h1>{''.join(pictures)}{printed}"
        f"<pre>{escape(json.dumps(facts, indent=2))}</pre></body></html>\n"
    )
