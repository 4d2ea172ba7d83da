"""What `outrider demo` shows: two lanes of text while they race, then a table and a verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

from rich.console import Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from .. import __version__
from .terminal import colored, output, piece

if TYPE_CHECKING:
    from ..bench import Measurement, Results
    from ..bench.race import Lane, OutriderRunner
    from ..config.params import SpeculativeConfig
    from ..engine.outputs import Origin, StreamEvent

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
    """Standard output; origins of tokens are marked by brackets where there are no colours."""

    def __init__(self, color: str) -> None:
        self.console = output(color)
        self.live = Live(console=self.console, auto_refresh=False)
        self._drawn = 0.0

    def title(self, facts: Mapping[str, Any], config: SpeculativeConfig) -> None:
        """Print what races."""
        self.console.print(Text(f"outrider {__version__}: plain against speculative", "bold"))
        for line in (
            f"target {facts['target']}, {facts['runtime']} on {facts['device']}, {facts['dtype']}",
            f"method {facts['method']}, {facts['draft'] or 'no draft model'}, up to "
            f"{config.deepest} tokens a round, {config.verification} verification",
        ):
            self.console.print(Text(line, style="dim"))

    def draw(self, where: str, lanes: Sequence[Lane]) -> None:
        """Draw both lanes, on a terminal now and then, and at their end everywhere."""
        ended = all(lane.run is not None for lane in lanes)
        if ended or (self.console.is_terminal and monotonic() - self._drawn >= FRAME_S):
            self.live.update(self._frame(where, *lanes), refresh=True)
            self._drawn = monotonic()

    def results(self, results: Results) -> None:
        """Print the table, what its figures mean, the verdict, and whether texts are equal."""
        from ..bench.tables import rendered

        self.console.print()
        self.console.print(rendered(results))
        self.console.print()
        for _plain, found in results.trials.values():
            self.console.print(Text(sameness(found)))

    def _frame(self, where: str, plain: Lane, speculative: Lane) -> Group:
        lanes = Table.grid(expand=True)
        lanes.add_column(ratio=1)
        lanes.add_column(ratio=1)
        lanes.add_row(self._lane("plain", plain), self._lane("speculative", speculative))
        counts = Counter(event.origin for event in _events(speculative))
        legend = Text()
        for origin, name in ORIGINS.items():
            legend += piece(name, origin, colored(self.console)) + Text(f" {counts[origin]}   ")
        return Group(Text(where, style="dim"), lanes, legend)

    def _lane(self, name: str, lane: Lane) -> Panel:
        text = Text()
        for event in _events(lane):
            shown = (event.text or "").expandtabs(4)
            if name == "plain":
                text += Text(shown)
            else:
                text += piece(shown, event.origin, colored(self.console))
        lines = text.wrap(self.console, self.console.width // 2 - 4)[-HEIGHT:]
        tokens = len(_events(lane))
        speed = f"{tokens / lane.seconds:.0f} tokens/s" if lane.seconds else ""
        state = f"{lane.seconds:.2f} s" if lane.run is None else f"done, {lane.seconds:.2f} s"
        return Panel(
            Text("\n").join(lines),
            title=f"{name} {speed}",
            subtitle=f"{tokens} tokens, {state}",
            height=HEIGHT + 2,
        )


def _events(lane: Lane) -> list[StreamEvent]:
    return cast("OutriderRunner", lane.runner).events


def sameness(found: Measurement) -> str:
    """Say whether speculation wrote the same texts as plain decoding, where it has to."""
    where, count = f"temperature {found.temperature:g}", len(found.tokens)
    if found.identical is not None:
        return f"{where}: {found.identical} of {count} texts equal with and without speculation"
    if found.candidate.lossy:
        return f"{where}: lossy verification, speculative texts are of another distribution"
    return f"{where}: the two texts are different draws from the same distribution"
