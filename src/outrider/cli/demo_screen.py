"""What `outrider demo` shows: one text by origin, a table, and a verdict."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from .paint import colored, marked
from .screen import standard_output, table

if TYPE_CHECKING:
    from ..engine.outputs import Origin, StreamEvent
    from .comparison import Comparison, Side

PROMPT_LINES = 4

NOTE = (
    "tokens per s: wall clock from request to last token, sides in turn, prompts computed before;\n"
    "accept length: tokens emitted a round, correction or bonus included;\n"
    "of max: that over the most that any lossless verification emits on average from such\n"
    "drafts, as estimated from them; times: shares of a round"
)


class Screen:
    """Standard output: as wide as the terminal, or 100 columns without colour where there is none.

    Args:
        color: whether to colour; origins are marked by brackets otherwise.
    """

    def __init__(self, color: bool) -> None:
        self.console = standard_output(color)
        self._paint = colored if color else marked

    def title(self, facts: Sequence[str]) -> None:
        """What is compared."""
        self.console.print(Text(facts[0], style="bold"))
        for fact in facts[1:]:
            self.console.print(Text(fact, style="dim"))

    def continuation(self, heading: str, prompt: str, events: Iterable[StreamEvent]) -> None:
        """The end of a prompt, and its continuation as it comes, with a legend below."""
        lines = prompt.rstrip("\n").splitlines()
        cut = (
            "" if len(lines) <= PROMPT_LINES else f", its last {PROMPT_LINES} lines of {len(lines)}"
        )
        self._rule(f"prompt{cut}")
        self.console.print(Text("\n".join(lines[-PROMPT_LINES:]), style="dim"), soft_wrap=True)
        self._rule(heading)
        counts: Counter[Origin] = Counter()
        for event in events:
            counts[event.origin] += 1
            sys.stdout.write(self._paint(event.text or "", event.origin))
            sys.stdout.flush()
        sys.stdout.write("\n")
        self._rule("legend")
        labels: dict[Origin, str] = {
            "draft": "accepted draft",
            "correction": "correction",
            "bonus": "bonus",
        }
        parts = (f"{self._paint(label, name)} {counts[name]}" for name, label in labels.items())
        sys.stdout.write("   ".join(parts) + "\n\n")
        sys.stdout.flush()

    def results(self, comparisons: Sequence[Comparison]) -> None:
        """The table, what its figures mean, and the verdict."""
        self.console.print(_table(comparisons))
        self.console.print(Text(f"{NOTE}\n", style="dim"))
        for comparison in comparisons:
            self.console.print(Text(_sameness(comparison)))
        verdicts = "; ".join(comparison.verdict() for comparison in comparisons)
        self.console.print(Text(f"\nspeculative against plain: {verdicts}", style="bold"))

    def _rule(self, heading: str) -> None:
        self.console.rule(Text(heading, style="dim"), align="left", style="dim")


def _table(comparisons: Sequence[Comparison]) -> Table:
    found = table()
    for heading in ("\ntemp", "\ndecoding"):
        found.add_column(heading, no_wrap=True)
    for heading in ("tokens\nper s", "speed-\nup", "accept\nlength", "of\nmax", "accept\nrate"):
        found.add_column(heading, justify="right", no_wrap=True)
    found.add_column("accepted by\nposition, %", justify="right")
    for heading in ("draft\ntime", "target\ntime", "other\ntime", "ms per\nround"):
        found.add_column(heading, justify="right", no_wrap=True)
    for comparison in comparisons:
        temperature = f"{comparison.temperature:g}"
        found.add_row(temperature, "plain", *_cells(comparison.plain, 1.0))
        speculative = _cells(comparison.speculative, comparison.speedup)
        lossy = comparison.speculative.metrics.lossy
        found.add_row("", "speculative" + " (lossy)" * lossy, *speculative, style="bold")
    return found


def _cells(side: Side, speedup: float) -> list[str]:
    metrics = side.metrics
    rate, length, share = metrics.acceptance_rate, metrics.acceptance_length, metrics.ceiling_share
    positions = " ".join(f"{100 * share:.0f}" for share in metrics.per_position)
    return [
        f"{side.tokens_per_s:.1f}",
        f"{speedup:.2f}x",
        "–" if length is None else f"{length:.2f}",
        "–" if share is None else f"{share:.0%}",
        "–" if rate is None else f"{rate:.1%}",
        positions or "–",
        *(f"{share:.0%}" for share in side.shares),
        f"{side.ms_per_round:.1f}",
    ]


def _sameness(comparison: Comparison) -> str:
    where = f"temperature {comparison.temperature:g}"
    if comparison.temperature > 0 and comparison.speculative.metrics.lossy:
        return f"{where}: lossy verification, the speculative text is from another distribution"
    if comparison.temperature > 0:
        return f"{where}: the two texts are different draws from the same distribution"
    count, total = comparison.identical, len(comparison.plain.token_ids)
    if count == total:
        return f"{where}: the same text with and without speculation, {count} of {total} prompts"
    return (
        f"{where}: the same text for {count} of {total} prompts; rounding differs with the number "
        "of tokens in a forward pass, and can flip a near-tie"
    )
