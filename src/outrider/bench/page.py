"""A trace or a result as one self-contained HTML page: the verdict first, then what it rests on."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from math import ceil
from pathlib import Path
from statistics import fmean, median
from typing import Any

from ..config.validation import unreadable
from ..engine.trace import Trace, is_trace, read_trace
from ..errors import InvalidConfigError
from . import svg
from .records import Results
from .tables import HEADINGS, NOTE, cells, remarks, verdicts

MOST_COLUMNS = 120
"""More rounds than that are drawn as means over stretches of them."""

_STYLE = """
:root{color-scheme:light dark;--quiet:#57606a;--line:#d0d7de;--good:#1a7f37;--bad:#cf222e}
@media (prefers-color-scheme:dark){
:root{--quiet:#9198a1;--line:#3d444d;--good:#3fb950;--bad:#f85149}}
body{font:15px/1.5 system-ui,sans-serif;max-width:860px;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem;line-height:1.25}h2{font-size:1.1rem;margin-top:2rem}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
td,th{padding:.25rem .5rem;text-align:right;border-bottom:1px solid var(--line)}
td:first-child,th:first-child{text-align:left}
th[scope=rowgroup]{padding-top:1rem}
.quiet{color:var(--quiet)}.faster{color:var(--good)}.slower{color:var(--bad)}
.chart{width:100%;height:auto;margin:1rem 0}.wide{overflow-x:auto}
"""


def read_report(path: Path) -> Trace | Results:
    """Read a trace (`--trace`) or a result file (`outrider bench --out`).

    Raises:
        InvalidConfigError: the file cannot be read, or is neither.
    """
    expected = "a trace that --trace wrote, or the result.json of outrider bench"
    try:
        if is_trace(path):
            return read_trace(path)
        return Results.from_document(json.loads(path.read_bytes()))
    except OSError as error:
        raise unreadable("FILE", path, expected, error) from error
    except (RecursionError, ValueError) as error:
        if isinstance(error, InvalidConfigError) and error.field == "trace":
            raise
        reason = str(error)
    hint = "files of python -m benchmarks are read by python -m benchmarks tables"
    raise InvalidConfigError("FILE", str(path), f"{expected}; {hint} ({reason})")


def render_report(found: Trace | Results) -> str:
    """Render a trace or a result as one self-contained HTML page with SVG pictures."""
    return _bench(found) if isinstance(found, Results) else _trace(found)


def _bench(results: Results) -> str:
    parts = []
    if results.measurements:
        title = "Tokens per second over plain decoding's, with 95% intervals"
        parts += [
            _section("Verdict", _listed(verdicts(results))),
            svg.bars(title, list(_bars(results))),
            _section("Figures", f'<p class="quiet">{escape(NOTE)}.</p>', _figures(results)),
        ]
    if notes := list(remarks(results)):
        parts.append(_section("Remarks", _listed(notes)))
    parts.append(_section("Environment", _facts(results.environment)))
    return _html(f"outrider bench: {results.environment.get('target', 'no model')}", parts)


def _bars(results: Results) -> Iterable[svg.Bar]:
    """The speedups of all candidates under a heading for each trial."""
    for trial, members in results.trials.items():
        drawn = [found for found in members if found.speedup and found is not members[0]]
        if drawn:
            yield svg.Bar(trial)
        for found in drawn:
            low, high = (found.low, found.high) if found.bounded else (None, None)
            kind = "a" if found.candidate.system == "outrider" else "b"
            yield svg.Bar(found.label, found.speedup, low, high, kind)


def _figures(results: Results) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in HEADINGS)
    rows = [f"<tr>{head}</tr>"]
    for trial, members in results.trials.items():
        rows.append(f'<tr><th scope="rowgroup" colspan="{len(HEADINGS)}">{escape(trial)}</th></tr>')
        for found in members:
            line = "".join(f"<td>{escape(cell)}</td>" for cell in cells(found))
            rows.append(f'<tr class="{found.outcome}">{line}</tr>')
    return f'<div class="wide"><table>{"".join(rows)}</table></div>'


def _trace(trace: Trace) -> str:
    metrics, records = trace.metrics, trace.records
    parts = []
    if trace.truncated:
        parts.append("<p><strong>The last line was cut short, and is left out.</strong></p>")
    if metrics.draft_rounds:
        tokens = [
            (fmean(record.accepted), fmean(record.depth) - fmean(record.accepted))
            for record in records
        ]
        parts.append(
            _by_round("Drafted tokens of a round: accepted (blue), refused (grey)", tokens, "ab")
        )
        title = "Share of the drafts that reached a position in which it was accepted"
        shares = [
            svg.Bar(f"position {at}", share) for at, share in enumerate(metrics.per_position, 1)
        ]
        parts.append(svg.bars(title, shares, unit=""))
    if records:
        title = "Milliseconds of a round: target (blue), drafting (yellow), the rest (grey)"
        times = [
            (
                1e3 * one.target_s,
                1e3 * one.draft_s,
                1e3 * max(0.0, one.total_s - one.target_s - one.draft_s),
            )
            for one in records
        ]
        parts.append(_by_round(title, times, "acb", 4 * median(map(sum, times))))
    parts.append(_section("Figures", _listed(str(metrics).splitlines())))
    parts.append(_section("Settings", _facts(trace.settings)))
    length = metrics.acceptance_length
    headline = "Nothing was drafted" if length is None else f"{length:.2f} tokens a drafting round"
    return _html(f"{headline}, {metrics.emitted:,} tokens in {metrics.rounds:,} rounds", parts)


def _by_round(
    title: str, stacks: Sequence[Sequence[float]], kinds: str, most: float | None = None
) -> str:
    """Columns over rounds, cut off at `most`; means over stretches of them where there are many."""
    each = ceil(len(stacks) / MOST_COLUMNS)
    means = [
        [fmean(values) for values in zip(*stacks[first : first + each], strict=True)]
        for first in range(0, len(stacks), each)
    ]
    if each > 1:
        title += f"; a column is the mean of {each} rounds"
    longest = max(map(sum, means))
    if most is not None and longest > most:
        title += f"; cut off, the longest is {longest:.0f}"
    return svg.columns(title, means, kinds, most)


def _section(heading: str, *parts: str) -> str:
    return f"<section><h2>{escape(heading)}</h2>{''.join(parts)}</section>"


def _listed(lines: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"


def _facts(values: Mapping[str, Any]) -> str:
    return f'<pre class="wide">{escape(json.dumps(values, indent=2))}</pre>'


def _html(headline: str, parts: Sequence[str]) -> str:
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(headline)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{escape(headline)}</h1>{''.join(parts)}</body></html>\n"
    )
