"""What `outrider tune` shows: what was predicted, what was checked, what to do."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from ..bench.checks import Check, agreement, told
from ..bench.contending import PLAIN
from ..bench.exports import Export
from ..bench.tune import TuneResult, ranked
from .screen import standard_output, table

SHOWN = 10
"""How many of the configurations that were predicted are listed."""


class Screen:
    """Standard output.

    Args:
        color: whether to colour the recommendation.
    """

    def __init__(self, color: bool) -> None:
        self.console = standard_output(color)

    def show(self, result: TuneResult, exports: Sequence[Export], saved: str | None) -> None:
        """The whole report.

        Args:
            result: of the run.
            exports: of what is recommended.
            saved: where it was written to.
        """
        facts = result.provenance
        self._say(f"outrider {facts['outrider']}: tune", "bold")
        self._say(
            f"target {facts['target']}, draft {facts['draft'] or 'none'}, {facts['device']}, "
            f"{facts['dtype']}; {result.prompts} prompts of {result.workload}",
            "dim",
        )
        for skipped in result.skipped:
            self._say(f"skipped {skipped}", "dim")
        if result.predictions:
            self._predictions(result)
        if result.checks:
            self._checks(result.checks)
        if result.partial:
            self._say("\npartial: the run was interrupted", "yellow")
        found = result.recommendation
        if found is None:
            self._say("\nno recommendation: nothing was checked at every temperature", "yellow")
            return
        self._say("\nrecommended", "bold")
        if len({check.measured.temperature for check in result.checks}) > 1:
            self._say(
                "over all temperatures together: all tokens by all seconds, so that slow texts "
                "weigh more",
                "dim",
            )
        self._say(found.verdict, "bold green" if found.speculate else "bold yellow")
        if saved is not None:
            self._say(f"saved: outrider generate --config {saved}")
        for each in exports if found.speculate else ():
            self._say(f"\n{each.system}", "bold")
            self._say(each.text)
            for note in each.notes:
                self._say(f"- {note}", "dim")

    def _predictions(self, result: TuneResult) -> None:
        temperatures = list(dict.fromkeys(found.temperature for found in result.predictions))
        order = [contender for contender, _ in ranked(result.predictions)]
        listed = [*[each for each in order if not each.plain][:SHOWN], PLAIN]
        self._say(f"\npredicted: the best {len(listed) - 1} of {len(order) - 1}", "bold")
        heads = [
            head
            for temperature in temperatures
            for head in (f"temp {temperature:g}:\na round", "\ntokens/s", "\nspeedup")
        ]
        shown = table("configuration", right=heads)
        known = {(found.contender, found.temperature): found for found in result.predictions}
        for contender in listed:
            cells = []
            for temperature in temperatures:
                found = known[contender, temperature]
                gain = result.predicted_speedup(found)
                cells += [f"{found.tokens_per_round:.2f}", f"{found.tokens_per_s:.1f}"]
                cells.append(f"{gain:.2f}x")
            shown.add_row(contender.label.removeprefix("outrider "), *cells)
        self.console.print(shown)
        self._say("verification is by block where none is named", "dim")

    def _checks(self, checks: Sequence[Check]) -> None:
        self._say("\nrun beside plain decoding", "bold")
        shown = table(
            "configuration",
            right=(
                "temp",
                "predicted\ntokens/s",
                "measured\ntokens/s",
                "standard\nerror",
                "off by",
                "usually\noff by",
                "speedup",
                "95% interval",
            ),
        )
        for check in checks:
            measured, expected = check.measured, check.expected
            mark = "*" * check.rehearsed
            shown.add_row(
                measured.contender.label.removeprefix("outrider "),
                f"{measured.temperature:g}",
                "-" if expected is None else f"{expected:.1f}{mark}",
                f"{measured.tokens_per_s:.1f}",
                "-" if check.standard_error is None else f"{check.standard_error:.1f}",
                "-" if check.error is None else f"{check.error:+.1%}",
                "-" if check.usual_error is None else f"{check.usual_error:+.1%}",
                f"{measured.speedup:.2f}x",
                "-" if measured.low is None else f"{measured.low:.2f}–{measured.high:.2f}",
            )
        self.console.print(shown)
        self._say(
            "predicted: for the pace that the machine had in the run, as plain decoding shows it; "
            "standard error: of the measured at that pace, by repeats of a prompt; usually: had "
            "each round of the run taken the median of its kind, without slow moments",
            "dim",
        )
        if any(check.rehearsed for check in checks):
            self._say("* the times of a short run of the same configuration", "dim")
        for line in told(checks):
            self._say(line, "bold")
        found = agreement(checks, rehearsed=False)
        if 2 * found.close < found.of:
            self._say(
                "most are further off: the machine was busy with other work, or prompts are few; "
                "--max-prompts and --repeats steady a run"
            )

    def _say(self, line: str, style: str = "") -> None:
        self.console.print(Text(line, style), soft_wrap=True)
