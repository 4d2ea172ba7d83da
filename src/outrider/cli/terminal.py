"""What is printed on a terminal: a console, a table, progress, and tokens by their origin."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from time import monotonic
from typing import TYPE_CHECKING

from rich.color import ColorSystem
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.status import Status
from rich.style import Style
from rich.text import Text

from ..bench.options import silent

if TYPE_CHECKING:
    from ..engine.outputs import Origin

WIDTH = 100
"""Columns where there is no terminal."""

PAUSE_S, LONG_S = 2.0, 20.0
"""Seconds between lines about progress where there is no terminal: of other steps, of the same."""

STYLES = {
    "draft": Style(color="green"),
    "correction": Style(color="yellow", bold=True, underline=True),
}
MARKS = {"correction": ("⟨", "⟩"), "bonus": ("«", "»")}

Advance = Callable[[int, int, str], None]
"""Takes how many steps are done, of how many, and what comes next."""


def output(color: str = "auto") -> Console:
    """Make the console of standard output; "auto" has colours on a terminal without NO_COLOR.

    FORCE_COLOR would have rich take a file for a terminal, and draw things anew in it.
    """
    return Console(
        width=None if sys.stdout.isatty() else WIDTH,
        color_system="standard" if color == "always" else "auto",
        force_terminal=None if sys.stdout.isatty() else False,
        no_color={"always": False, "never": True}.get(color),
        highlight=False,
    )


def messages() -> Console:
    """Make the console of standard error."""
    return Console(stderr=True, force_terminal=None if sys.stderr.isatty() else False)


def colored(console: Console) -> bool:
    """Say whether colours are printed."""
    return console.color_system is not None and not console.no_color


@contextmanager
def progress(
    console: Console, name: str, *, unit: str = "done", logged: bool = True
) -> Iterator[Advance]:
    """Show a progress bar on a terminal, gone at the end; elsewhere lines, if it is `logged`."""
    if not console.file.isatty():
        yield _lines(name, unit) if logged else silent
        return
    columns = (
        TextColumn(name),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)

        def advance(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=what)

        yield advance


def _lines(name: str, unit: str) -> Advance:
    """Make what says on standard error which step comes next, seldom enough for a log."""
    said, last = "", -PAUSE_S

    def advance(done: int, total: int, what: str) -> None:
        nonlocal said, last
        if monotonic() - last >= (LONG_S if what == said else PAUSE_S):
            said, last = what, monotonic()
            print(f"outrider: {name}: {what} ({done} of {total} {unit})", file=sys.stderr)

    return advance


class _Said(logging.Handler):
    """Shows what is logged: steps beside a spinner, warnings above it."""

    def __init__(self, status: Status) -> None:
        super().__init__(logging.INFO)
        self._status = status

    def emit(self, record: logging.LogRecord) -> None:
        """Show a record."""
        text = record.getMessage()
        if record.levelno >= logging.WARNING:
            self._status.console.print(f"outrider: {text}", markup=False, highlight=False)
        else:
            self._status.update(escape(text))


@contextmanager
def said(status: Status) -> Iterator[None]:
    """Show what the library logs in this block at a spinner."""
    log, handler = logging.getLogger("outrider"), _Said(status)
    level = log.level
    log.addHandler(handler)
    log.setLevel(min(logging.INFO, level) if level else logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


def painted(text: str, origin: Origin, colors: bool) -> str:
    """Colour a token's text, for a stream that shows colours."""
    style = STYLES.get(origin) if colors else None
    core = text.strip()
    if style is None or not core:
        return text
    return text.replace(core, style.render(core, color_system=ColorSystem.STANDARD))


def piece(text: str, origin: Origin, colors: bool) -> Text:
    """Style a token's text by its origin, or put ⟨corrections⟩ and «bonus tokens» in brackets."""
    core = text.strip()
    if not core:
        return Text(text)
    before, after = text.split(core, 1)
    if colors:
        return Text.assemble(before, (core, STYLES.get(origin, "")), after)
    opening, closing = MARKS.get(origin, ("", ""))
    return Text(f"{before}{opening}{core}{closing}{after}")


def quiet() -> None:
    """Keep the progress bars and hints of the libraries that load models off the terminal."""
    if find_spec("transformers") is None:
        return
    import transformers

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
