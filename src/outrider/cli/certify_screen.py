"""What `outrider certify` shows: a heading, a sentence and a table for each tier, and a verdict."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from .. import __version__
from ..bench.tables import table
from .terminal import output

if TYPE_CHECKING:
    from ..certify.cases import Measured
    from ..certify.controls import Verdict
    from ..certify.exact import ExactTier
    from ..certify.statistics import StatisticalTier
    from ..types.finding import Finding

SHOWN_FAILURES = 8


class Screen:
    """Standard output; as wide as the terminal, or 100 columns where there is none."""

    def __init__(self, color: str) -> None:
        self.console = output(color)

    def title(self, part: str | None, models: Mapping[str, Any] | None) -> None:
        """Print what is certified, and on which models the statistical tier runs."""
        what = "the engine as it ships" if part is None else f"{part}, in the engine as it ships"
        self._say(f"outrider {__version__}: certificate of {what}", "bold")
        if models is not None:
            draft = models["draft"] or "prompt lookup"
            where = f"{models['runtime']} on {models['device']}, {models['dtype']}"
            self._say(f"models: target {models['target']}, draft {draft}, {where}", "dim")

    def exact(self, tier: ExactTier, seconds: float) -> None:
        """Print the largest error by drafter and method, then failures and checks."""
        from ..certify.cases import FACTORS, LEFT_OUT
        from ..certify.kits.runner import TOLERANCE

        self._heading("exact tier", seconds, tier.passed)
        compared = [item.error for item in tier.measured if item.problem is None]
        largest = f"{_error(max(compared))}, allowed {TOLERANCE:g}" if compared else "unknown"
        self._say(
            f"The engine enumerated: {len(tier.measured)} cases on random models of their own, "
            f"{sum(item.outputs for item in tier.measured):,} outputs, every triple of settings "
            f"({', '.join(FACTORS)}). Largest error of a probability: {largest}; "
            f"{len(tier.measured) - len(compared)} cases raised an exception. No case has: "
            f"{'; '.join(f'{what} ({why})' for what, why in LEFT_OUT.items())}."
        )
        methods = list(dict.fromkeys(item.case.values["method"] for item in tier.measured))
        drafters = dict.fromkeys(item.case.values["drafter"] for item in tier.measured)
        errors = table("largest error", right=methods)
        for drafter in drafters:
            cells = [_largest(tier.measured, method, drafter) for method in methods]
            errors.add_row(drafter, *cells)
        self._print(errors)
        for line in _failures(tier.measured):
            self._say(line, "red")
        self._checks(tier.findings)

    def statistical(self, tier: StatisticalTier, seconds: float) -> None:
        """Print one line a way of speculating."""
        from ..certify.statistics import FALSE_ALARM_RATE, TOKENS

        self._heading("statistical tier", seconds, tier.passed)
        self._say(
            f"The engine under Philox, seed {tier.seed}, {tier.samples:,} continuations of "
            f"{TOKENS} tokens a cell, against the target's own full forward. Evidence: what bets "
            f"on features of the tokens hold, rejected at {1 / FALSE_ALARM_RATE:,.0f} for all "
            f"cells together (a false-alarm rate of {FALSE_ALARM_RATE:g}). Found: by how much the "
            "likeliest token's probability may be off before that is seen with a probability of .9."
        )
        found = table("cell", right=("tokens", "evidence", "found"))
        found.add_column("verdict")
        for item in tier.tests:
            found.add_row(
                item.way,
                f"{item.tokens:,}",
                f"{math.exp(min(700.0, item.highest_log_e)) * item.share:.2g}",
                f"{item.distance_found:.3f}",
                _verdict(item.passed),
            )
        self._print(found)

    def controls(self, verdicts: Sequence[Verdict], seconds: float) -> None:
        """Print one line a fault."""
        rejected = sum(not item.with_fault.passed for item in verdicts)
        sound = sum(item.without.passed for item in verdicts)
        self._heading("negative controls", seconds, all(item.passed for item in verdicts))
        self._say(
            f"{len(verdicts)} planted faults, {rejected} rejected by the check that must reject "
            f"them; the same checks pass without the fault, {sound} of {len(verdicts)}."
        )
        found = table("planted fault (where it was found)", "rejected by")
        for item in verdicts:
            by = f"{item.with_fault.name}: {item.with_fault.detail}"
            found.add_row(
                Text.assemble(item.fault, (f" ({item.source})", "dim")),
                Text(by) if item.passed else Text(f"NOT BY {by}", "bold red"),
            )
        self._print(found)

    def runtime(self, findings: Sequence[Finding], seconds: float) -> None:
        """Print one line a property."""
        self._heading("runtime tier", seconds, all(item.passed for item in findings))
        self._checks(findings)

    def verdict(self, passed: bool, tiers: Mapping[str, bool]) -> None:
        """Print the last line."""
        self.console.print()
        parts = (f"{name} {'passed' if good else 'failed'}" for name, good in tiers.items())
        line = f"PASS: {', '.join(tiers)}" if passed else f"FAIL: {', '.join(parts)}"
        self._say(line, "green" if passed else "bold red")

    def _heading(self, name: str, seconds: float, passed: bool) -> None:
        self.console.print()
        heading = Text.assemble(f"{name}, {seconds:.0f} s: ", _verdict(passed))
        self.console.rule(heading, align="left", style="dim")

    def _checks(self, findings: Iterable[Finding]) -> None:
        checks = table("check", "found", "verdict")
        for finding in findings:
            checks.add_row(finding.name, Text(finding.detail), _verdict(finding.passed))
        self._print(checks)

    def _print(self, found: Any) -> None:
        self.console.print()
        self.console.print(found)

    def _say(self, text: str, style: str = "") -> None:
        self.console.print(Text(text, style))


def _largest(measured: Iterable[Measured], method: str, drafter: str) -> Text:
    """The largest error of a drafter with a method; a dash where there is no case."""
    values = {"method": method, "drafter": drafter}
    found = [item for item in measured if values.items() <= item.case.values.items()]
    if not found:
        return Text("–")
    good = all(item.passed for item in found)
    return Text(_error(max(item.error for item in found)), "" if good else "red")


def _failures(measured: Sequence[Measured]) -> list[str]:
    """What was raised, messages that differ in numbers alone once; then errors, the worst first."""
    first: dict[str, str] = {}
    raised: Counter[str] = Counter()
    for item in measured:
        if item.problem is not None:
            key = re.sub(r"[-+.\d]+", "0", item.problem)
            raised[first.setdefault(key, " ".join(item.problem.split()))] += 1
    lines = [f"FAIL  {count} cases: {text}" for text, count in raised.most_common()]
    biased = [item for item in measured if not item.passed and item.problem is None]
    for item in sorted(biased, key=lambda item: item.error, reverse=True):
        settings = "; ".join(f"{name} {value}" for name, value in item.case.values.items())
        lines.append(f"FAIL  error {_error(item.error)}: {settings}")
    more = len(lines) - SHOWN_FAILURES
    return lines if more <= 0 else [*lines[:SHOWN_FAILURES], f"... and {more} more"]


def _error(error: float) -> str:
    if error == 0:
        return "0"
    return f"{error:.0e}" if math.isfinite(error) else "raised"


def _verdict(passed: bool) -> Text:
    return Text("pass" if passed else "FAIL", "green" if passed else "bold red")
