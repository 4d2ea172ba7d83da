"""What `outrider certify` shows: a table for each tier, and one last line."""

from __future__ import annotations

import math
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .. import __version__
from ..certify.cases import FACTORS, Measured
from ..certify.checks import TOLERANCE
from ..certify.controls import Verdict
from ..certify.covering import Coverage
from ..certify.exact import ExactTier
from ..certify.statistics import ALTERNATIVES, FALSE_ALARM_RATE, TOKENS, StatisticalTier
from .parser import one_line

WIDTH = 100
SHOWN_FAILURES = 8


class Screen:
    """Standard output: as wide as the terminal, or 100 columns where there is none.

    Args:
        color: whether to colour verdicts.
    """

    def __init__(self, color: bool) -> None:
        self.console = Console(
            width=None if sys.stdout.isatty() else WIDTH,
            color_system="standard" if color else None,
            force_terminal=color or None,
            no_color=not color,
            highlight=False,
        )

    def title(self, part: str | None, models: Mapping[str, Any] | None) -> None:
        """What is certified, and on which models the statistical tier runs."""
        what = "the engine as it ships" if part is None else f"{part}, in the engine as it ships"
        self._say(f"outrider {__version__}: certificate of {what}", "bold")
        if models is not None:
            draft = models["draft"] or "prompt lookup"
            self._say(
                f"statistical tier: target {models['target']}, draft {draft}, {models['device']}, "
                f"{models['dtype']}",
                "dim",
            )

    def exact(self, tier: ExactTier, seconds: float) -> None:
        """The largest error of every method with every drafter, then the other checks."""
        outputs = sum(item.outputs for item in tier.measured)
        self._heading("exact tier", seconds, tier.passed)
        self._say(
            f"The engine enumerated: {len(tier.measured)} cases, each on a random model pair of "
            f"its own, {outputs:,} outputs. They cover {_covered(tier.coverage)} of settings that "
            f"may occur ({', '.join(FACTORS)}). {_compared(tier)}"
        )
        self._print(_matrix(tier.measured))
        failures = _failures(tier.measured)
        if failures:
            self.console.print()
        for line in failures:
            self._say(line, "red")
        problems = {_without_numbers(item.problem) for item in tier.measured if item.problem}
        table = _table("check", "found", "verdict")
        for finding in tier.findings:
            said = finding.said
            if _without_numbers(said) in problems:
                said = "raised the same"
            table.add_row(finding.check, said, _verdict(finding.passed))
        self._print(table)

    def statistical(self, tier: StatisticalTier, seconds: float) -> None:
        """One line a test."""
        self._heading("statistical tier", seconds, tier.passed)
        shares = " and ".join(f"{alternative:g}" for alternative in ALTERNATIVES)
        self._say(
            f"The engine under Philox, seed {tier.seed}, {tier.samples:,} continuations of "
            f"{TOKENS} tokens a cell, against the law of the target's own full forward. G-tests at "
            f"each position given the tokens before it; false-alarm rate {FALSE_ALARM_RATE:g} for "
            f"all {len(tier.positions)} together (Holm). Power: the least chance of rejecting a "
            f"law that is off by a total variation of {shares} on the bins tested there."
        )
        table = _table("\ncell", right=("\ntoken", "\nsamples", "\ndf", "\nG", "\np", *_powers()))
        table.add_column("\nverdict")
        previous = ""
        for item in tier.positions:
            table.add_row(
                "" if item.cell == previous else item.cell,
                str(item.position),
                f"{item.fit.samples:,}",
                str(item.fit.freedom),
                f"{item.fit.statistic:.1f}",
                _p_value(item.fit.p_value),
                *(f"{power:.0%}" for power in item.power),
                _verdict(item.passed),
            )
            previous = item.cell
        self._print(table)

    def controls(self, verdicts: Sequence[Verdict], seconds: float) -> None:
        """One line a fault."""
        rejected = sum(not item.planted.passed for item in verdicts)
        sound = sum(item.sound.passed for item in verdicts)
        self._heading("negative controls", seconds, all(item.passed for item in verdicts))
        self._say(
            f"{len(verdicts)} planted faults, {rejected} rejected by the check that must reject "
            f"them; the same checks pass without the fault, {sound} of {len(verdicts)}."
        )
        table = _table("planted fault (where it was found)", "rejected by")
        for item in verdicts:
            fault = Text.assemble(item.fault, (f" ({item.source})", "dim"))
            by = f"{item.planted.check}: {item.planted.said}"
            table.add_row(fault, by if item.passed else Text(f"NOT BY {by}", _style(False)))
        self._print(table)

    def verdict(self, passed: bool, tiers: Mapping[str, bool]) -> None:
        """The last line."""
        self.console.print()
        if passed:
            self._say(f"PASS: {', '.join(tiers)}", _style(True))
            return
        parts = (f"{name} {'passed' if good else 'failed'}" for name, good in tiers.items())
        self._say(f"FAIL: {', '.join(parts)}", _style(False))

    def _heading(self, name: str, seconds: float, passed: bool) -> None:
        heading = Text.assemble(f"{name}, {seconds:.0f} s: ", _verdict(passed))
        self.console.print()
        self.console.rule(heading, align="left", style="dim")

    def _print(self, table: Table) -> None:
        self.console.print()
        self.console.print(table)

    def _say(self, text: str, style: str = "") -> None:
        for line in Text(text, style=style).wrap(self.console, self.console.width):
            line.rstrip()
            self.console.print(line)


def _failures(measured: Sequence[Measured]) -> list[str]:
    """What was raised, each message once, and the cases with an error, the worst first.

    Messages that differ in their numbers alone are one; the first of them stands for all.
    """
    first: dict[str, str] = {}
    raised: Counter[str] = Counter()
    for item in measured:
        if item.problem is not None:
            raised[first.setdefault(_without_numbers(item.problem), item.problem)] += 1
    biased = [item for item in measured if not item.passed and item.problem is None]
    lines = [f"FAIL  {_cases(count)}: {one_line(text)}" for text, count in raised.most_common()]
    for item in sorted(biased, key=lambda item: item.error, reverse=True):
        settings = "; ".join(f"{name} {value}" for name, value in item.case.values.items())
        lines.append(f"FAIL  error {_error(item.error)}: {settings}")
    more = len(lines) - SHOWN_FAILURES
    return lines if more <= 0 else [*lines[:SHOWN_FAILURES], f"... and {more} more"]


def _compared(tier: ExactTier) -> str:
    """The largest error, or that there is none to tell of every case."""
    compared = [item.error for item in tier.measured if item.problem is None]
    if not compared:
        return "An exception was raised in every case: no law could be compared."
    of = f"of any output {_error(max(compared))}, allowed {TOLERANCE:g}."
    if not tier.raised:
        return f"Largest error in the probability {of}"
    return (
        f"An exception was raised in {_cases(tier.raised)}; in the others, the largest error in "
        f"the probability {of}"
    )


def _cases(count: int) -> str:
    return "1 case" if count == 1 else f"{count} cases"


def _without_numbers(text: str) -> str:
    return re.sub(r"-?\d+(\.\d+)?(e[-+]?\d+)?", "0", text)


def _matrix(measured: Sequence[Measured]) -> Table:
    """The largest error by drafter and method."""
    methods = list(dict.fromkeys(item.case.values["method"] for item in measured))
    drafters = list(dict.fromkeys(item.case.values["drafter"] for item in measured))
    table = _table("largest error", right=methods)
    for drafter in drafters:
        cells = []
        for method in methods:
            values = {"method": method, "drafter": drafter}
            errors = [item.error for item in measured if values.items() <= item.case.values.items()]
            good = max(errors, default=0.0) < TOLERANCE
            cells.append(Text(_error(max(errors)) if errors else "–", "" if good else "red"))
        table.add_row(drafter, *cells)
    return table


def _table(*headings: str, right: Sequence[str] = ()) -> Table:
    table = Table(
        box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=True, show_edge=False
    )
    for heading in headings:
        table.add_column(heading)
    for heading in right:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _covered(coverage: Sequence[Coverage]) -> str:
    names = {2: "pairs", 3: "triples"}
    return " and ".join(
        f"{item.covered:,} of {item.possible:,} {names[item.size]}" for item in coverage
    )


def _powers() -> tuple[str, ...]:
    return tuple(f"power\nat {alternative:g}" for alternative in ALTERNATIVES)


def _error(error: float) -> str:
    if error == 0:
        return "0"
    return f"{error:.0e}" if math.isfinite(error) else "raised"


def _p_value(value: float) -> str:
    return f"{value:.3f}" if value >= 0.001 else f"{value:.0e}"


def _verdict(passed: bool) -> Text:
    return Text("pass" if passed else "FAIL", _style(passed))


def _style(passed: bool) -> str:
    return "green" if passed else "bold red"
