"""`outrider report`: a trace or a benchmark's result as a table and a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App

from ..bench import Results
from ..bench.formats import speculation, timing
from ..errors import InvalidConfigError
from .files import make_folder
from .options import Output, titled

if TYPE_CHECKING:
    from ..engine.trace import Trace

app = App(name="report")


@app.default
def report(
    file: Path,
    /,
    *,
    out: str | None = None,
    output: Annotated[Output, titled("Output")] = Output(),
) -> None:
    """Summarise what a run recorded: print a table, and write a page (HTML, one file).

    Args:
        file: a trace that --trace wrote, or outrider bench's result.json.
        out: write the page into this folder; without it beside the file, under its name and
            -report.
    """
    if (file / "result.json").is_file():
        raise InvalidConfigError("FILE", str(file), f"a file: name {file / 'result.json'}")
    from ..bench import read_report, render_report

    found = read_report(file)
    folder = make_folder("--out", out or file.with_name(f"{file.stem}-report"))
    page = folder / "index.html"
    page.write_bytes(render_report(found).encode())
    if output.as_json:
        print(json.dumps(_document(found) | {"files": [str(page)]}))
        return
    _show(found, output.color)
    print(f"\nwritten: {page}")


def _document(found: Trace | Results) -> dict[str, Any]:
    """Make the object that `--json` prints, but for the files."""
    if isinstance(found, Results):
        return {"kind": "bench", "result": found.document()}
    metrics = found.metrics
    return {
        "kind": "trace",
        "truncated": found.truncated,
        "outrider": found.outrider,
        "settings": found.settings,
        "emitted": metrics.emitted,
        "speculation": speculation(metrics),
        "depths": metrics.depths,
        "timing": timing(metrics),
    }


def _show(found: Trace | Results, color: str) -> None:
    from rich.text import Text

    from ..bench.tables import rendered
    from .terminal import output

    console = output(color)
    if isinstance(found, Results):
        console.print(rendered(found))
        return
    settings = found.settings
    names = [str(settings[name]) for name in ("target", "method", "device") if name in settings]
    console.print(Text(f"outrider {found.outrider}: a trace of {', '.join(names)}", "dim"))
    console.print(Text(str(found.metrics)) if found.records else "no rounds are in it")
    if found.truncated:
        console.print(Text("the trace was cut short: its last line is not whole", "bold"))
