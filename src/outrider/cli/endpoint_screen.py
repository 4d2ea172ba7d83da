"""What `outrider certify --endpoint` shows: the plan, tables, and a page for a bug report."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from ..bench.page import page as html
from ..certify.endpoint.evidence import distance_found
from ..certify.endpoint.features import FEATURES
from ..certify.endpoint.questions import GREEDY, PAIRS, plain

if TYPE_CHECKING:
    from ..certify.endpoint.client import Endpoint
    from ..certify.endpoint.promises import Promise
    from ..certify.endpoint.questions import Plan
    from ..certify.endpoint.references import Reference
    from ..certify.endpoint.run import Answer

_BAD = ("wrong", "ignored", "failed")
_WIDE, _HIGH = 720, 260
_WORDS = (
    "Each token is a draw, and bets on it are fair if it was drawn as asked for. Evidence is what "
    "bets hold that began with 1 in all: of sound servers a share of at most alpha, one in {}, "
    "ever sees so much. Honoured: not rejected, though a small fault may be missed; ignored: the "
    "texts are draws without the parameter; wrong: neither with it nor without; refused: the "
    "server takes no such request; failed: it did not answer; undecided: the texts do not say. "
    "Texts are drawn without a seed: the same request gives others."
)
_SWATCH = "display:inline-block;margin-right:1rem;padding-left:.4rem;border-left:.9rem solid "


def show_plan(
    console: Console, endpoint: Endpoint, reference: Reference, plan: Plan, seconds: float
) -> None:
    """Print what is about to be asked, what could be found, and how long it takes.

    Args:
        console: of standard output.
        endpoint: the server.
        reference: what scores texts.
        plan: how much is asked.
        seconds: that one text took, with its score.
    """
    share = plain(plan.tokens, plan.length).weight
    found = distance_found(plan.tokens, plan.alpha * share, len(FEATURES))
    minutes = plan.requests * seconds / 60
    console.print(Text(f"certifying {endpoint.model} at {endpoint.url}", "bold"))
    console.print(
        Text(
            f"reference: {reference.name}; {plan.tokens:,} tokens of ordinary texts, "
            f"{plan.parameter_tokens:,} for each parameter, {plan.requests:,} texts; a text "
            f"with its score took {seconds:.2g} s, so {minutes:.1f} minutes one after another "
            f"({plan.concurrency} are sent at once), and what is promised after that. A fault that "
            f"moves the likeliest token's probability by {found:.2g} or more is found with power "
            f".9; rate of false alarms {plan.alpha:g}",
            "dim",
        )
    )


def show(console: Console, answers: Sequence[Answer], kept: Sequence[Promise]) -> None:
    """Print tables and the verdict."""
    console.print(_tables(answers, kept))
    console.print(Text(verdict(answers, kept), "bold"))


def verdict(answers: Sequence[Answer], kept: Sequence[Promise]) -> str:
    """Return what was found, in a sentence."""
    tokens = sum(each.against.tokens for each in answers if each.question.name != PAIRS)
    found = [(each.question.name, each.verdict) for each in answers]
    found += [(each.name, each.verdict) for each in kept]
    said = [
        f"{verdict}: {', '.join(names)}"
        for verdict in (*_BAD, "refused", "undecided")
        if (names := [name for name, each in found if each == verdict])
    ]
    if any(each == "failed" for _, each in found):
        said.append("with --out the same command goes on where it failed")
    at = f"of {tokens:,} tokens, at a rate of false alarms of {answers[0].alpha:g}"
    most = max(answers, key=lambda each: each.evidence)
    open_ = [
        each.question.name
        for each in answers
        if each.verdict == "undecided" and each.against.tokens and not each.cut
    ]
    if open_:
        said.append(f"more --parameter-tokens, in a new folder, may decide {', '.join(open_)}")
    if any(each.name == GREEDY and each.verdict == "wrong" for each in kept):
        said.append("greedy text is wrong too: a reference that is another model does all of this")
    if any(each.verdict == "wrong" for each in answers):
        return f"the draws are not what was asked for ({at}); {'; '.join(said)}"
    seen = f"one that moves the likeliest token's probability by {answers[0].distance_found:.2g}"
    said.insert(0, f"{seen} would have been found with power .9")
    against = f"{most.evidence:.2g} of {1 / most.alpha:g}, is against {most.question.name}"
    said.insert(1, f"the most evidence, {against}: more tokens make it certain, or less")
    return "; ".join([f"no fault in the draws {at}", *said])


def page(found: dict[str, Any], answers: Sequence[Answer], kept: Sequence[Promise]) -> str:
    """Return one self-contained HTML page."""
    above = (
        f"<p>{escape(found['endpoint'])}, version {escape(found['version'] or 'not given')}; "
        f"reference {escape(found['reference'])}; outrider {escape(found['outrider'])}, "
        f"{found['date']}</p>"
        f"{picture(answers)}"
    )
    faults = "".join(
        f"<h2>{escape(each.question.name)}: a request that shows it</h2>"
        f"<p>{escape(each.seen_in)}; the text that speaks most against it:</p>"
        '<pre style="white-space:pre-wrap">'
        f"{escape(json.dumps(each.worst[1].body))}\n{escape(each.worst[1].text)}</pre>"
        for each in answers
        if each.rejected and each.worst[1] is not None
    )
    title = f"{found['model']}: {verdict(answers, kept)}"
    below = f"<p>{escape(_WORDS.format(round(1 / answers[0].alpha)))}</p>{faults}"
    return html(title, _tables(answers, kept), found, above=above, below=below)


def picture(answers: Sequence[Answer]) -> str:
    """Draw the evidence over tokens, as SVG; a dashed line is where a question is rejected."""
    curves = [
        (
            each.question.name,
            [(0, math.log10(each.question.weight))]
            + [
                (tokens, (value + math.log(each.question.weight)) / math.log(10))
                for tokens, value in each.against.curve
            ],
        )
        for each in answers
        if each.against.curve
    ]
    most = max((tokens for _, curve in curves for tokens, _ in curve), default=1)
    limit = -math.log10(answers[0].alpha)
    top = max(limit + 1, min(12, max((v for _, curve in curves for _, v in curve), default=0)))
    bottom = -2.0

    def at(tokens: int, value: float) -> str:
        high = (top - min(top, max(bottom, value))) / (top - bottom)
        return f"{50 + tokens / most * (_WIDE - 60):.1f},{10 + high * (_HIGH - 40):.1f}"

    lines, legend = [], []
    for index, (name, curve) in enumerate(curves):
        color = f"hsl({360 * index // len(curves)} 70% 45%)"
        points = " ".join(at(*point) for point in curve)
        lines.append(
            f'<polyline fill="none" stroke="{color}" stroke-width="1.5" points="{points}">'
            f"<title>{escape(name)}</title></polyline>"
        )
        legend.append(f'<span style="{_SWATCH}{color}">{escape(name)}</span> ')
    low, high = at(0, limit), at(most, limit)
    plain = 'fill="currentColor"'
    ticks = "".join(
        f'<text {plain} x="4" y="{float(at(0, value).split(",")[1]) + 4}">1e{value}</text>'
        for value in range(int(bottom), int(top) + 1, 2)
    )
    return (
        f'<svg viewBox="0 0 {_WIDE} {_HIGH}" role="img" aria-label="evidence over tokens">'
        f'<polyline fill="none" stroke="currentColor" stroke-dasharray="4" points="{low} {high}"/>'
        f'{"".join(lines)}{ticks}<text {plain} x="50" y="{_HIGH - 8}">evidence against each '
        f"question, over {most:,} tokens; rejected above the dashed line</text></svg>"
        f"<p>{''.join(legend)}</p>"
    )


def _tables(answers: Sequence[Answer], kept: Sequence[Promise]) -> Group:
    questions = Table(box=None, header_style="bold", padding=(0, 1))
    questions.add_column("question")
    questions.add_column("verdict")
    questions.add_column("tokens", justify="right")
    questions.add_column(f"evidence ({1 / answers[0].alpha:g} rejects)", justify="right")
    questions.add_column("seen in")
    for each in answers:
        said = each.refused or each.failed or ""
        if each.verdict == "undecided" and not each.against.tokens:
            said = "the likeliest tokens do not say; take --reference-model"
        seen = each.seen_in if each.rejected else said.partition(" answers ")[2] or said
        questions.add_row(
            each.question.name,
            Text(each.verdict, "red" if each.rejected else ""),
            f"{each.against.tokens:,}",
            f"{each.evidence:.2g}",
            seen,
        )
    others = Table(box=None, header_style="bold", padding=(0, 1))
    for name in ("promise", "verdict", ""):
        others.add_column(name)
    for item in kept:
        style = "red" if item.verdict in _BAD else ""
        others.add_row(item.name, Text(item.verdict, style), item.detail)
    return Group(questions, Text(), others)
