"""What `outrider certify` shows: a table for each tier, and one last line."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from .. import __version__
from ..certify.cases import FACTORS, LEFT_OUT, Measured
from ..certify.ceilings import PAIRS, VOCABULARY, Reached
from ..certify.checks import TOLERANCE
from ..certify.controls import Verdict
from ..certify.covering import Coverage
from ..certify.exact import ExactTier
from ..certify.statistics import ALTERNATIVES, FALSE_ALARM_RATE, TOKENS, StatisticalTier
from .parser import one_line
from .screen import standard_output, table

SHOWN_FAILURES = 8

CEILINGS = (
    f"Expected tokens of a round, exactly, beside what no lossless verification can exceed, on the "
    f"first of {len(PAIRS)} random pairs ({VOCABULARY} tokens). Token is recursive rejection on "
    "trees, block is traversal; the share is block's, of the least bound. A dash: the bound does "
    "not apply. Chains attain the block value; the oracle bound is of trees that no draw decides."
)


class Screen:
    """Standard output: as wide as the terminal, or 100 columns where there is none.

    Args:
        color: whether to colour verdicts.
    """

    def __init__(self, color: bool) -> None:
        self.console = standard_output(color)

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
            f"may occur ({', '.join(FACTORS)}). {_compared(tier)} "
            f"No case has: {'; '.join(f'{what} ({why})' for what, why in LEFT_OUT.items())}."
        )
        self._print(_matrix(tier.measured))
        failures = _failures(tier.measured)
        if failures:
            self.console.print()
        for line in failures:
            self._say(line, "red")
        problems = {_without_numbers(item.problem) for item in tier.measured if item.problem}
        found = table("check", "found", "verdict")
        for finding in tier.findings:
            said = finding.said
            if _without_numbers(said) in problems:
                said = "raised the same"
            found.add_row(finding.check, said, _verdict(finding.passed))
        self._print(found)
        if tier.reached:
            self.console.print()
            self._say(CEILINGS)
            self._print(_ceilings(tier.reached))

    def statistical(self, tier: StatisticalTier, seconds: float) -> None:
        """One line a test."""
        self._heading("statistical tier", seconds, tier.passed)
        shares = " and ".join(f"{alternative:g}" for alternative in ALTERNATIVES)
        self._say(
            f"The engine under Philox, seed {tier.seed}, {tier.samples:,} continuations of "
            f"{TOKENS} tokens a cell, against the distribution of the target's own full forward. G-tests at "
            f"each position given the tokens before it; false-alarm rate {FALSE_ALARM_RATE:g} for "
            f"all {len(tier.positions)} together (Holm). Power: the least chance of rejecting a "
            f"distribution that is off by a total variation of {shares} on the bins tested there."
        )
        found = table("\ncell", right=("\ntoken", "\nsamples", "\ndf", "\nG", "\np", *_powers()))
        found.add_column("\nverdict")
        previous = ""
        for item in tier.positions:
            found.add_row(
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
        self._print(found)
        self.console.print()
        self._say(
            "Of the same rounds: tokens emitted, and rounds that kept a first token, beside the "
            "most that any lossless verification of such drafts reaches on average, as estimated "
            "from them (± 95%). A dash: no ceiling is known of such drafts."
        )
        self._print(_speculation(tier))

    def controls(self, verdicts: Sequence[Verdict], seconds: float) -> None:
        """One line a fault."""
        rejected = sum(not item.planted.passed for item in verdicts)
        sound = sum(item.sound.passed for item in verdicts)
        self._heading("negative controls", seconds, all(item.passed for item in verdicts))
        self._say(
            f"{len(verdicts)} planted faults, {rejected} rejected by the check that must reject "
            f"them; the same checks pass without the fault, {sound} of {len(verdicts)}."
        )
        found = table("planted fault (where it was found)", "rejected by")
        for item in verdicts:
            fault = Text.assemble(item.fault, (f" ({item.source})", "dim"))
            by = f"{item.planted.check}: {item.planted.said}"
            found.add_row(fault, by if item.passed else Text(f"NOT BY {by}", _style(False)))
        self._print(found)

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

    def _print(self, found: Table) -> None:
        self.console.print()
        self.console.print(found)

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
        return "An exception was raised in every case: no distribution could be compared."
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
    found = table("largest error", right=methods)
    for drafter in drafters:
        cells = []
        for method in methods:
            values = {"method": method, "drafter": drafter}
            errors = [item.error for item in measured if values.items() <= item.case.values.items()]
            good = max(errors, default=0.0) < TOLERANCE
            cells.append(Text(_error(max(errors)) if errors else "–", "" if good else "red"))
        found.add_row(drafter, *cells)
    return found


def _ceilings(reached: Sequence[Reached]) -> Table:
    """Those of the first pair, and whatever failed."""
    bounds = ("block\nvalue", "transport\noptimum", "cover\nbound", "oracle\nbound")
    found = table("\ndrafts", right=("\ntoken", "\nblock", *bounds, "\nshare"))
    found.add_column("\nverdict")
    for item in reached:
        if item.pair and item.passed:
            continue
        pair = f", pair {item.pair + 1}" if item.pair else ""
        shape = "-".join(map(str, item.shape))
        figures = (
            *item.tokens.values(),
            *(item.block_value, item.transport, item.cover, item.oracle),
        )
        found.add_row(
            f"{item.drafter} {shape}{pair}",
            *("–" if figure is None else f"{figure:.4f}" for figure in figures),
            f"{item.shares['block']:.1%}",
            _verdict(item.passed),
        )
    return found


def _speculation(tier: StatisticalTier) -> Table:
    """What the rounds of each cell reached of their ceilings."""
    right = ("rounds that\ndrafted", "accept\nlength", "\nceiling", "\nof it")
    found = table("\ncell", right=(*right, "kept a\nfirst token", "\nceiling", "\nof it"))
    for name, metrics in tier.speculation.items():
        found.add_row(
            name,
            f"{metrics.draft_rounds:,}",
            _plain(metrics.acceptance_length),
            _within(metrics.ceiling, metrics.ceiling_error),
            _within(metrics.ceiling_share, metrics.ceiling_share_error, share=True),
            _plain(next(iter(metrics.per_position), None)),
            _within(metrics.first_ceiling, metrics.first_ceiling_error),
            _within(metrics.first_ceiling_share, metrics.first_ceiling_share_error, share=True),
        )
    return found


def _plain(figure: float | None) -> str:
    return "–" if figure is None else f"{figure:.3f}"


def _within(figure: float | None, error: float | None, share: bool = False) -> str:
    """A figure and the half width of its 95% interval; a dash where it is not known."""
    if figure is None or error is None:
        return "–"
    kind = ".1%" if share else ".3f"
    return f"{figure:{kind}} ± {1.96 * error:{kind}}"


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
