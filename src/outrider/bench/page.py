"""A trace or a result as one self-contained HTML page: the verdict first, then what it rests on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from math import ceil
from pathlib import Path
from statistics import fmean, median
from typing import Any

from .. import SpeculationMetrics
from ..engine.trace import Trace, is_trace, read_trace
from ..errors import InvalidConfigError
from ..types.records import RoundRecord
from . import svg
from .records import Measurement, Results
from .tables import HEADINGS, NOTE, best_of, cells, remarks, verdict, verdicts

MOST_COLUMNS = 120
"""More rounds than that are drawn as means over stretches of them."""

EXPECTED = "a trace that --trace wrote, or the result.json of outrider bench"

_STYLE = """
:root{color-scheme:light dark;--quiet:#57606a;--line:#d0d7de;--good:#1a7f37;--bad:#cf222e}
@media (prefers-color-scheme:dark){:root{--quiet:#9198a1;--line:#3d444d;--good:#3fb950;--bad:#f85149}}
body{font:15px/1.5 system-ui,sans-serif;max-width:860px;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem;line-height:1.25}h2{font-size:1.1rem;margin-top:2rem}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
td,th{padding:.25rem .5rem;text-align:right;border-bottom:1px solid var(--line)}
td:first-child,th:first-child{text-align:left}th[scope=rowgroup]{padding-top:1rem}
.quiet{color:var(--quiet)}.faster{color:var(--good)}.slower{color:var(--bad)}
.chart{width:100%;height:auto;margin:1rem 0}.wide{overflow-x:auto}
"""


def read(path: Path) -> Trace | Results:
    """See `read_report`."""
    try:
        if is_trace(path):
            return read_trace(path)
        return Results.from_document(json.loads(path.read_bytes()))
    except OSError as error:
        reason = error.strerror or type(error).__name__
    except InvalidConfigError as error:
        if error.field == "trace":
            raise
        reason = str(error)
    except (RecursionError, ValueError) as error:
        reason = str(error)
    raise InvalidConfigError("FILE", str(path), f"{EXPECTED} ({reason})")


def render(found: Trace | Results) -> str:
    """See `render_report`."""
    return _bench(found) if isinstance(found, Results) else _trace(found)


def summary(metrics: SpeculationMetrics) -> list[tuple[str, str]]:
    """What rounds did and where their time went: names and figures, with their units."""
    total = metrics.total_s or 1.0
    lines = [
        ("rounds", f"{metrics.rounds:,}, of which {metrics.draft_rounds:,} drafted"),
        ("tokens emitted", f"{metrics.emitted:,}"),
        ("tokens drafted", f"{metrics.drafted:,}"),
        ("tokens accepted", f"{metrics.accepted:,}"),
        ("acceptance rate", _or_dash(metrics.acceptance_rate, ".1%")),
        ("acceptance length", _or_dash(metrics.acceptance_length, ".2f")),
        ("accepted by position", ", ".join(f"{each:.0%}" for each in metrics.per_position) or "–"),
        (
            "time of rounds",
            f"{metrics.draft_s / total:.0%} drafting, {metrics.target_s / total:.0%} target, "
            f"{metrics.other_s / total:.0%} the rest",
        ),
        ("tokens per second", f"{_or_dash(metrics.tokens_per_s, '.1f')}, prompts included"),
    ]
    if metrics.draft_failures:
        lines.append(("drafter failed in", f"{metrics.draft_failures:,} rounds"))
    if metrics.lossy:
        lines.append(("lossy", "the output's distribution is not the target's"))
    return lines


def speedup_picture(title: str, trials: Mapping[str, Sequence[Measurement]]) -> str:
    """Draw the speedups of all candidates, trial by trial, as SVG."""
    rows: list[svg.Bar] = []
    for trial, members in trials.items():
        drawn = [found for found in members if found.speedup and not found.candidate.baseline]
        if drawn:
            rows.append(svg.Bar(trial, 0.0))
        rows += [
            svg.Bar(
                found.label,
                found.speedup or 0.0,
                found.low,
                found.high,
                "a" if found.candidate.system == "outrider" else "b",
            )
            for found in drawn
        ]
    return svg.bars(title, rows)


def _bench(results: Results) -> str:
    best = {trial: best_of(members) for trial, members in results.trials.items()}
    parts = [_quiet(_machine(results.environment))]
    if results.partial:
        parts.append("<p><strong>Partial: the run was interrupted.</strong></p>")
    if results.measurements:
        parts.append(_section("Verdict", _listed(verdicts(results))))
        title = "Tokens per second over plain decoding's, with 95% intervals"
        parts.append(speedup_picture(title, results.trials))
        parts.append(_section("Figures", _quiet(f"{NOTE}."), _figures(results)))
    notes = list(remarks(results))
    if notes:
        parts.append(_section("Remarks", _listed(notes)))
    parts.append(_section("Environment", _pairs(_flat(results.environment))))
    return _html(_headline([found for found in best.values() if found is not None]), parts)


def _headline(best: Sequence[Measurement]) -> str:
    """What to do, in a line, by the best candidate of each trial."""
    won = [found for found in best if found.outcome == "faster"]
    if won:
        top = max(won, key=lambda found: found.speedup or 0.0)
        return (
            f"Faster in {len(won)} of {len(best)} trials, most in {top.trial}: {verdict(top, [])}"
        )
    if not best:
        return "Benchmark of speculative decoding"
    if all(found.outcome == "slower" for found in best):
        return "Turn it off: plain decoding is faster in every trial"
    return "Undecided, or slower than plain decoding, in every trial: more prompts may tell"


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
    metrics = trace.metrics
    parts = [_quiet(_machine(trace.settings))]
    if trace.truncated:
        parts.append("<p><strong>The last line was cut short, and is left out.</strong></p>")
    if metrics.draft_rounds:
        title = "Drafted tokens of a round: accepted (blue), refused (grey)"
        parts.append(
            _by_round(
                title,
                trace.records,
                ("a", "b"),
                lambda one: (fmean(one.accepted), fmean(one.depth) - fmean(one.accepted)),
            )
        )
        parts.append(
            svg.columns(
                "Share of the drafts that reached a position in which it was accepted",
                [[100 * share] for share in metrics.per_position],
                labels=[str(place + 1) for place in range(len(metrics.per_position))],
                unit="%",
            )
        )
    if trace.records:
        parts.append(
            _by_round(
                "Milliseconds of a round: target (blue), drafting (yellow), the rest (grey)",
                trace.records,
                ("a", "c", "b"),
                lambda one: (
                    1e3 * one.target_s,
                    1e3 * one.draft_s,
                    max(0.0, 1e3 * (one.total_s - one.target_s - one.draft_s)),
                ),
                most=4e3 * median(one.total_s for one in trace.records),
            )
        )
    parts.append(_section("Figures", _pairs(summary(metrics))))
    parts.append(_section("Settings", _pairs(_flat(trace.settings))))
    length = metrics.acceptance_length
    headline = "Nothing was drafted" if length is None else f"{length:.2f} tokens a drafting round"
    return _html(f"{headline}, {metrics.emitted:,} tokens in {metrics.rounds:,} rounds", parts)


def _by_round(
    title: str,
    records: Sequence[RoundRecord],
    kinds: Sequence[str],
    stack_of: Callable[[RoundRecord], Sequence[float]],
    most: float | None = None,
) -> str:
    """Columns over rounds, cut off at `most`; means over stretches of them where there are many."""
    each = ceil(len(records) / MOST_COLUMNS)
    stacks = [stack_of(record) for record in records]
    means = [
        [fmean(values) for values in zip(*stacks[first : first + each], strict=True)]
        for first in range(0, len(stacks), each)
    ]
    shown = title if each == 1 else f"{title}; a column is the mean of {each} rounds"
    longest = max(map(sum, means))
    if most is not None and longest > most:
        shown += f"; cut off, the longest is {longest:.0f}"
    return svg.columns(shown, means, kinds=kinds, most=most)


def _machine(facts: Mapping[str, Any]) -> str:
    """Models and machine in a line, as far as they are known."""
    names = ("target", "draft", "device", "dtype", "threads")
    return ", ".join(f"{name} {facts[name]}" for name in names if facts.get(name) is not None)


def _flat(values: Mapping[str, Any], above: str = "") -> list[tuple[str, str]]:
    """The leaves of nested mappings, with their paths."""
    found: list[tuple[str, str]] = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            found += _flat(value, f"{above}{name}.")
        else:
            found.append((f"{above}{name}", str(value)))
    return found


def _or_dash(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _quiet(text: str) -> str:
    return f'<p class="quiet">{escape(text)}</p>'


def _section(heading: str, *parts: str) -> str:
    return f"<section><h2>{escape(heading)}</h2>{''.join(parts)}</section>"


def _listed(lines: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"


def _pairs(pairs: Iterable[tuple[str, str]]) -> str:
    rows = "".join(f"<tr><td>{escape(name)}</td><td>{escape(v)}</td></tr>" for name, v in pairs)
    return f'<div class="wide"><table>{rows}</table></div>'


def _html(headline: str, parts: Sequence[str]) -> str:
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(headline)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{escape(headline)}</h1>{''.join(parts)}</body></html>\n"
    )
