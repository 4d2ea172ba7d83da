"""A benchmark as one HTML file: the verdict first, then what it rests on."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from . import markup
from .canvas import Picture
from .markup import Row, cell
from .records import BenchResult, Measurement
from .summary import UNKNOWN, depths, number, percent, positions, time_split
from .tables import told_interval
from .verdicts import Verdict, caution, is_baseline, none_faster, outcome, regime, setting, verdicts

_KINDS = {"faster": "good", "slower": "bad", "not told apart": ""}


def page(result: BenchResult, pictures: Sequence[Picture] | None = None) -> str:
    """The whole page.

    Args:
        result: what was measured.
        pictures: name and PNG of each plot; a page without plots if None.
    """
    parts = [markup.paragraph(setting(result.provenance), "quiet")]
    if result.partial:
        parts.append(
            markup.paragraph(
                "Partial: the run was interrupted. What had been measured by then is below.",
                "banner",
            )
        )
    found = verdicts(result)
    if found:
        chance = caution(result)
        note = "" if chance is None else markup.paragraph(f"{chance.capitalize()}.", "quiet")
        parts.append(markup.section("Verdict", _verdicts(found), note))
    if pictures:
        parts.append(markup.section("Plots", markup.plots(pictures)))
    if result.measurements:
        parts.append(markup.section("Speed", _SPEED_NOTE, _speeds(result)))
    drafting = [
        found for found in result.measurements if found.metrics and found.metrics.draft_rounds
    ]
    if drafting:
        parts.append(
            markup.section("Acceptance beside its ceiling", _CEILING_NOTE, _acceptance(drafting))
        )
    if result.missing:
        parts.append(markup.section("Missing", markup.listed(result.missing)))
    if result.skipped:
        heading = f"Rows of prompt files left out: {len(result.skipped)}"
        parts.append(markup.section(heading, markup.listed(result.skipped)))
    if result.provenance:
        parts.append(markup.section("Provenance", markup.pairs(markup.flat(result.provenance))))
    return markup.html_page(_headline(found), parts)


_SPEED_NOTE = markup.paragraph(
    "Tokens a second from the request to the last token, the target's reading of the prompt aside. "
    "Speedup is over Outrider's plain decoding, with a 95% interval (bootstrap and Student's t). "
    "Identical: timed stretches whose tokens are those of plain decoding.",
    "quiet",
)

_CEILING_NOTE = markup.paragraph(
    "Length: tokens emitted by a round that drafts, correction or bonus included. Ceiling: the "
    "most that any lossless verification emits on average from such drafts, estimated from them: "
    "a share of it can be above 100% by chance. Times of rounds leave out the target's reading of "
    "the prompt.",
    "quiet",
)


def _headline(found: Sequence[Verdict]) -> str:
    if not found:
        return "Benchmark of speculative decoding"
    won = [verdict for verdict in found if verdict.outcome == "faster"]
    if not won:
        return none_faster([verdict.outcome for verdict in found])
    best = max(won, key=lambda verdict: verdict.best.speedup or 0.0)
    where = f"{best.workload}, temperature {best.temperature:g}"
    everywhere = "every comparison" if len(won) == len(found) else f"{len(won)} of {len(found)}"
    comparisons = "" if len(won) == len(found) else " comparisons"
    return (
        f"Speculate: up to {number(best.best.speedup)} times as fast ({where}), faster in "
        f"{everywhere}{comparisons}"
    )


def _verdicts(found: Sequence[Verdict]) -> str:
    headings = (("", ""), ("speedup", "figure"), ("with", "text"))
    several = len({verdict.regime for verdict in found}) > 1
    rows: list[Row] = []
    for workload in dict.fromkeys(verdict.workload for verdict in found):
        rows.append(markup.group(workload, len(headings)))
        rows += (_verdict_row(each, several) for each in found if each.workload == workload)
    return markup.table(headings, rows)


def _verdict_row(verdict: Verdict, several: bool) -> Row:
    where = f"temperature {verdict.temperature:g}"
    where += f", {verdict.regime.label}" if several else ""
    best, told = verdict.best, verdict.best.contender.label
    if verdict.outcome == "slower":
        told = f"do not speculate here (best: {told})"
    elif verdict.outcome == "not told apart":
        told = f"not told apart from plain decoding (best: {told})"
    if verdict.ahead is not None:
        ahead = verdict.ahead
        told += (
            f"; {ahead.contender.label}, at {number(ahead.speedup)} times, was not told apart "
            "from plain decoding"
        )
    if verdict.peer is not None:
        sure = "" if outcome(verdict.peer) == "faster" else ", if not surely"
        told += (
            f"; {verdict.peer.label}, at {number(verdict.peer.speedup)} times "
            f"Outrider's plain decoding, is ahead of that{sure}"
        )
    return (
        cell(where),
        cell(f"{number(best.speedup)}×", f"figure {_KINDS[verdict.outcome]}"),
        cell(told, "text"),
    )


def _speeds(result: BenchResult) -> str:
    headings = (
        ("contender", ""),
        ("tokens/s", "figure"),
        ("speedup", "figure"),
        ("95% interval", "figure"),
        ("identical", "figure"),
        ("stretches", "figure"),
    )
    rows: list[Row] = []
    for place, members in _grouped(result.measurements):
        rows.append(markup.group(place, len(headings)))
        rows += map(_speed_row, members)
    return markup.table(headings, rows)


def _speed_row(found: Measurement) -> Row:
    kind, times = "", f"{number(found.speedup)}×"
    if found.speedup is None:
        times = UNKNOWN
    elif not is_baseline(found):
        kind = _KINDS[outcome(found)]
    interval = UNKNOWN if is_baseline(found) else told_interval(found, UNKNOWN)
    stretches = len(found.seconds)
    same = UNKNOWN if found.identical is None else f"{found.identical} of {stretches}"
    return (
        cell(found.label + ", drafted nothing" * found.idle),
        cell(f"{found.tokens_per_s:.1f}" if any(found.seconds) else UNKNOWN, "figure"),
        cell(times, f"figure {kind}"),
        cell(interval, "figure"),
        cell(same, "figure"),
        cell(f"{stretches}" + " (partial)" * found.partial, "figure"),
    )


def _acceptance(measurements: Sequence[Measurement]) -> str:
    headings = (
        ("contender", ""),
        ("length", "figure"),
        ("ceiling", "figure"),
        ("of ceiling", "figure"),
        ("rate", "figure"),
        ("by position", ""),
        ("rounds by depth", ""),
        ("time of a round", ""),
    )
    rows: list[Row] = []
    for place, members in _grouped(measurements):
        rows.append(markup.group(place, len(headings)))
        for found in members:
            metrics, decoding = found.metrics, found.decoding
            assert metrics is not None
            assert decoding is not None
            rows.append(
                (
                    cell(found.label),
                    cell(number(metrics.acceptance_length), "figure"),
                    cell(number(metrics.ceiling), "figure"),
                    cell(percent(metrics.ceiling_share), "figure"),
                    cell(percent(metrics.acceptance_rate), "figure"),
                    cell(positions(metrics)),
                    cell(depths(metrics)),
                    cell(time_split(decoding)),
                )
            )
    return markup.table(headings, rows)


def _grouped(measurements: Sequence[Measurement]) -> list[tuple[str, list[Measurement]]]:
    """Measurements by workload, temperature and regime, under a text that names these."""

    def place(found: Measurement) -> str:
        return f"{found.workload}, temperature {found.temperature:g}, {regime(found).label}"

    places = list(dict.fromkeys(map(place, measurements)))
    ordered = sorted(measurements, key=lambda found: places.index(place(found)))
    return [(name, list(members)) for name, members in groupby(ordered, place)]
