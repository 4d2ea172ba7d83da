"""What `outrider demo` shows: two lanes of text while they race, then a table and a verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING

from rich.console import Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from .. import __version__
from .terminal import MARKS, STYLES, colored, output, table

if TYPE_CHECKING:
    from ..engine.outputs import Origin
    from .race import Comparison, Lane, Side

HEIGHT = 12
"""Lines of text in a lane."""

FRAME_S = 0.1
"""Seconds between two pictures of the race."""

ORIGINS: dict[Origin, str] = {
    "draft": "accepted draft",
    "correction": "correction",
    "bonus": "bonus",
}


class Screen:
    """Standard output; as wide as the terminal, or 100 columns where there is none.

    Args:
        color: "auto", "always" or "never"; origins of tokens are marked by brackets without it.
        prompts: how many there are.
    """

    def __init__(self, color: str, prompts: int) -> None:
        self.console = output(color)
        self.live = Live(console=self.console, auto_refresh=False)
        self._prompts = prompts
        self._drawn = 0.0

    def title(self, facts: Sequence[str]) -> None:
        """Print what races."""
        self.console.print(Text(f"outrider {__version__}: plain against speculative", "bold"))
        for fact in facts:
            self.console.print(Text(fact, style="dim"))

    def at(self, temperature: float) -> Callable[[int, Lane, Lane], None]:
        """Give what draws the lanes of the races at a temperature."""

        def draw(index: int, plain: Lane, speculative: Lane) -> None:
            done = plain.done and speculative.done
            if not done and (not self.console.is_terminal or monotonic() - self._drawn < FRAME_S):
                return
            where = f"temperature {temperature:g}, prompt {index + 1} of {self._prompts}"
            self.live.update(self._frame(where, plain, speculative), refresh=True)
            self._drawn = monotonic()

        return draw

    def results(self, comparisons: Sequence[Comparison]) -> None:
        """Print the table, what its figures mean, and the verdict."""
        self.console.print()
        self.console.print(_table(comparisons))
        self.console.print(Text(NOTE, style="dim"))
        for comparison in comparisons:
            self.console.print(Text(comparison.sameness()))
        verdicts = "; ".join(comparison.verdict() for comparison in comparisons)
        self.console.print(Text(f"\nspeculative against plain: {verdicts}", style="bold"))

    def _frame(self, where: str, plain: Lane, speculative: Lane) -> Group:
        lanes = Table.grid(expand=True)
        lanes.add_column(ratio=1)
        lanes.add_column(ratio=1)
        lanes.add_row(self._lane("plain", plain), self._lane("speculative", speculative))
        counts = Counter(event.origin for event in speculative.events)
        legend = Text()
        for origin, name in ORIGINS.items():
            legend += self._piece(name, origin) + Text(f" {counts[origin]}   ")
        return Group(Text(where, style="dim"), lanes, legend)

    def _lane(self, name: str, lane: Lane) -> Panel:
        width = self.console.width // 2 - 4
        text = Text()
        for event in lane.events:
            piece = (event.text or "").expandtabs(4)
            text += self._piece(piece, event.origin) if name != "plain" else Text(piece)
        lines = text.wrap(self.console, width)[-HEIGHT:]
        tokens = len(lane.events)
        pace = f"{tokens / lane.lap_s:.0f} tokens/s" if lane.lap_s else ""
        state = f"done, {lane.lap_s:.2f} s" if lane.done else f"{lane.lap_s:.2f} s"
        return Panel(
            Text("\n").join(lines),
            title=f"{name} {pace}",
            subtitle=f"{tokens} tokens, {state}",
            height=HEIGHT + 2,
        )

    def _piece(self, text: str, origin: Origin) -> Text:
        """A token's text, styled by its origin, or marked where there is no colour."""
        core = text.strip()
        if not core:
            return Text(text)
        before, after = text[: text.index(core)], text[text.index(core) + len(core) :]
        if colored(self.console):
            return Text(before).append(core, STYLES.get(origin, "")).append(after)
        opening, closing = MARKS.get(origin, ("", ""))
        return Text(f"{before}{opening}{core}{closing}{after}")


NOTE = (
    "length: tokens emitted a round that drafted, correction or bonus included; rate: drafted\n"
    "tokens that were accepted, and the same for each of the first positions\n"
)
POSITIONS = 6


def _table(comparisons: Sequence[Comparison]) -> Table:
    figures = ("tokens/s", "speedup", "length", "rate", "by position, %", "ms/round")
    found = table("temp", "decoding", right=figures)
    for comparison in comparisons:
        found.add_row(f"{comparison.temperature:g}", "plain", *_cells(comparison.plain, 1.0))
        speculative = _cells(comparison.speculative, comparison.speedup)
        lossy = " (lossy)" if comparison.speculative.metrics.lossy else ""
        found.add_row("", f"speculative{lossy}", *speculative, style="bold")
    return found


def _cells(side: Side, speedup: float) -> list[str]:
    metrics = side.metrics
    rate, length = metrics.acceptance_rate, metrics.acceptance_length
    return [
        f"{side.tokens_per_s:.1f}",
        f"{speedup:.2f}x",
        "–" if length is None else f"{length:.2f}",
        "–" if rate is None else f"{rate:.1%}",
        " ".join(f"{100 * share:.0f}" for share in metrics.per_position[:POSITIONS]) or "–",
        f"{side.ms_per_round:.1f}",
    ]
