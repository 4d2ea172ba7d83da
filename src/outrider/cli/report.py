"""`outrider report`: a trace or a benchmark's result as a table, plots and a page."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InvalidConfigError
from . import figures, options
from .bench_files import RESULT
from .paint import wants_color

if TYPE_CHECKING:
    from rich.text import Text

    from ..bench.canvas import Picture
    from ..bench.records import BenchResult
    from ..engine.trace import Trace

PAGE = "index.html"


def configure(parser: ArgumentParser) -> None:
    """Add the arguments of this subcommand."""
    parser.description = (
        "Summarise what a run recorded: print a table, and write plots (PNG) and a page (HTML, one "
        "file) into a folder."
    )
    parser.set_defaults(run=run)
    parser.add_argument(
        "file", metavar="FILE", help="a trace that --trace wrote, or outrider bench's result.json"
    )
    options.add_output_flags(parser, "the figures, and the files written", "verdicts").add_argument(
        "--out",
        metavar="DIR",
        help="write plots and page there (default: beside FILE, under its name and -report)",
    )


def run(args: Namespace) -> None:
    """Read the file, write plots and page, and print the table."""
    path = Path(args.file)
    found = _read(path)
    directory = path.with_name(f"{path.stem}-report") if args.out is None else Path(args.out)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        expected = f"a folder that can be written ({reason})"
        raise InvalidConfigError("--out", str(directory), expected) from error

    from rich.console import Console

    with Console(stderr=True).status("drawing"):
        written = _write(found, directory)
    if args.json:
        print(json.dumps(_document(found) | {"files": [str(each) for each in written]}))
    else:
        _show(found, wants_color(args.color))
        print(f"\nwritten: {len(written) - 1} plots and {written[-1]}")


def _read(path: Path) -> Trace | BenchResult:
    """What a file holds.

    Raises:
        InvalidConfigError: it cannot be read, or is neither a trace nor a result.
    """
    from ..bench.documents import from_document
    from ..engine.trace import is_trace, read_trace

    expected = "a trace that --trace wrote, or outrider bench's result.json"
    if (path / RESULT).is_file():
        raise InvalidConfigError("FILE", str(path), f"{expected}: name {path / RESULT}")
    try:
        if is_trace(path):
            return read_trace(path)
        return from_document(json.loads(path.read_bytes()))
    except OSError as error:
        reason = error.strerror or type(error).__name__
    except (InvalidConfigError, RecursionError, ValueError) as error:
        if isinstance(error, InvalidConfigError) and error.field == "trace":
            raise
        reason = str(error)
    raise InvalidConfigError("FILE", str(path), f"{expected} ({reason})")


def _write(found: Trace | BenchResult, directory: Path) -> list[Path]:
    """Write plots, if they can be drawn, and, last, the page; returns their paths."""
    from ..bench import canvas, plots, trace_plots
    from ..bench.page import page
    from ..bench.records import BenchResult
    from ..bench.trace_page import trace_page

    pictures: Sequence[Picture] = ()
    try:
        if isinstance(found, BenchResult):
            pictures = plots.pictures(found)
        else:
            pictures = trace_plots.pictures(found)
    except InvalidConfigError as error:
        print(f"outrider: no plots: {error}", file=sys.stderr)
    written = canvas.save(pictures, directory)
    made = page(found, pictures) if isinstance(found, BenchResult) else trace_page(found, pictures)
    target = directory / PAGE
    target.write_text(made, encoding="utf-8")
    return [*written, target]


def _document(found: Trace | BenchResult) -> dict[str, Any]:
    """The object that `--json` prints, but for the files."""
    from ..bench.documents import document
    from ..bench.records import BenchResult

    if isinstance(found, BenchResult):
        return {"kind": "bench", "result": document(found)}
    metrics = found.metrics
    return {
        "kind": "trace",
        "truncated": found.truncated,
        "outrider": found.outrider,
        "settings": found.settings,
        "emitted": metrics.emitted,
        "speculation": figures.speculation(metrics),
        "depths": metrics.depths,
        "timing": figures.timing(metrics),
    }


def _show(found: Trace | BenchResult, color: bool) -> None:
    """The table on standard output."""
    from rich.text import Text

    from ..bench.records import BenchResult
    from ..bench.summary import summary
    from ..bench.tables import rendered
    from ..bench.trace_page import CUT_SHORT
    from ..bench.trace_plots import regime
    from .screen import standard_output, table

    console = standard_output(color)
    if isinstance(found, BenchResult):
        console.print(rendered(found, console.width))
        for lines in _rounds(found):
            console.print(lines)
        return
    console.print(Text(regime(found), style="dim"))
    listed = table("", "")
    listed.show_header = False
    for name, told in summary(found.metrics):
        listed.add_row(Text(name), Text(told))
    console.print(listed)
    if not found.records:
        console.print(Text("no rounds are in it", style="bold"))
    if found.truncated:
        console.print(Text(CUT_SHORT, style="bold"))


def _rounds(result: BenchResult) -> Iterator[Text]:
    """What the rounds of each contender that drafts did, in a few lines."""
    from rich.text import Text

    from ..bench.summary import depths, number, percent, positions, time_split
    from ..bench.verdicts import regime

    where = None
    for found in result.measurements:
        metrics, decoding = found.metrics, found.decoding
        if metrics is None or decoding is None or not metrics.draft_rounds:
            continue
        place = f"{found.workload}, temperature {found.temperature:g}, {regime(found).label}"
        if place != where:
            yield Text(f"\nrounds of {place}", style="bold")
        where = place
        yield Text(f"  {found.contender.label}")
        yield Text(
            f"      {metrics.rounds:,} rounds, {metrics.drafted:,} tokens drafted, "
            f"{metrics.accepted:,} accepted ({percent(metrics.acceptance_rate, 1)}), "
            f"{number(metrics.acceptance_length)} emitted a round that drafted\n"
            f"      accepted by position {positions(metrics)}; {time_split(decoding)}\n"
            f"      rounds by depth {depths(metrics)}",
            style="dim",
        )
