"""`outrider report`: a trace or a benchmark's result as a table, plots and a page."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from ..errors import InvalidConfigError
from . import figures
from .files import make_folder, write
from .options import Output, titled

if TYPE_CHECKING:
    from ..bench.records import BenchResult
    from ..engine.trace import Trace

app = App(name="report")


@app.default
def report(
    file: Path,
    *,
    out: Annotated[str | None, Parameter()] = None,
    output: Annotated[Output, titled("Output")] = Output(),
) -> None:
    """Summarise what a run recorded: a table, plots (PNG) and a page (HTML, one file).

    Args:
        file: a trace that --trace wrote, or outrider bench's result.json.
        out: write plots and page into this folder; without it beside the file, under its name and
            -report.
    """
    found = _read(file)
    folder = make_folder("--out", out or file.with_name(f"{file.stem}-report"))

    from rich.console import Console

    with Console(stderr=True).status("drawing"):
        written = _write(found, folder)
    if output.as_json:
        print(json.dumps(_document(found) | {"files": [str(each) for each in written]}))
    else:
        _show(found, output.color)
        print(f"\nwritten: {len(written) - 1} plots and {written[-1]}")


def _read(path: Path) -> Trace | BenchResult:
    """Read a trace or a result.

    Raises:
        InvalidConfigError: it cannot be read, or is neither.
    """
    from ..bench.documents import from_document
    from ..engine.trace import is_trace, read_trace

    expected = "a trace that --trace wrote, or outrider bench's result.json"
    if (path / "result.json").is_file():
        raise InvalidConfigError("FILE", str(path), f"{expected}: name {path / 'result.json'}")
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


def _write(found: Trace | BenchResult, folder: Path) -> list[Path]:
    """Write plots, if they can be drawn, and, last, the page; return their paths."""
    from ..bench import canvas, plots, trace_plots
    from ..bench.page import page
    from ..bench.records import BenchResult
    from ..bench.trace_page import trace_page

    is_bench = isinstance(found, BenchResult)
    pictures: Any = ()
    try:
        pictures = plots.pictures(found) if is_bench else trace_plots.pictures(found)  # type: ignore[arg-type]
    except InvalidConfigError as error:
        print(f"outrider: no plots: {error}", file=sys.stderr)
    written = canvas.save(pictures, folder)
    made = page(found, pictures) if is_bench else trace_page(found, pictures)  # type: ignore[arg-type]
    write(folder / "index.html", made.encode())
    return [*written, folder / "index.html"]


def _document(found: Trace | BenchResult) -> dict[str, Any]:
    """Make the object that `--json` prints, but for the files."""
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


def _show(found: Trace | BenchResult, color: str) -> None:
    """Print the table."""
    from rich.text import Text

    from ..bench.records import BenchResult
    from ..bench.summary import summary
    from ..bench.tables import rendered
    from ..bench.trace_page import CUT_SHORT
    from ..bench.trace_plots import regime
    from .terminal import output, table

    console = output(color)
    if isinstance(found, BenchResult):
        console.print(rendered(found, console.width))
        return
    console.print(Text(regime(found), style="dim"))
    listed = table("", "")
    listed.show_header = False
    for name, figure in summary(found.metrics):
        listed.add_row(Text(name), Text(figure))
    console.print(listed)
    if not found.records:
        console.print(Text("no rounds are in it", style="bold"))
    if found.truncated:
        console.print(Text(CUT_SHORT, style="bold"))
