"""What every report on a terminal is printed with: a width, a table, a bar."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

WIDTH = 100

_EVERY_S = 30
"""How often a job says how far it is where there is no terminal."""

Advance = Callable[[int, int, str], None]
"""Is told how many steps are done, of how many, and what to say beside them."""


def standard_output(color: bool) -> Console:
    """Standard output: as wide as the terminal, or 100 columns where there is none.

    Args:
        color: whether to colour.
    """
    return Console(
        width=None if sys.stdout.isatty() else WIDTH,
        color_system="standard" if color else None,
        force_terminal=color or None,
        no_color=not color,
        highlight=False,
    )


def table(*headings: str, right: Sequence[str] = ()) -> Table:
    """A table without a frame: columns to the left, then columns of figures to the right."""
    made = Table(
        box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=True, show_edge=False
    )
    for heading in headings:
        made.add_column(heading)
    for heading in right:
        made.add_column(heading, justify="right", no_wrap=True)
    return made


@contextmanager
def progress(console: Console, name: str) -> Iterator[Advance]:
    """A progress bar on `console` if it is a terminal, gone at the end; else lines now and then."""
    if not console.is_terminal:
        yield _logged(console, name)
        return
    columns = (
        TextColumn(name),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)

        def advance(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=what)

        yield advance


def _logged(console: Console, name: str) -> Advance:
    """For a file that somebody follows: how far things are, once in half a minute."""
    told = monotonic()

    def advance(done: int, total: int, what: str) -> None:
        nonlocal told
        if monotonic() - told >= _EVERY_S:
            told = monotonic()
            console.print(Text(f"{name}, {done} of {total}: {what}"), soft_wrap=True)

    return advance
