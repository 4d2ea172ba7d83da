"""`outrider report`: a trace as a summary and a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from cyclopts import App

from ..config.validation import unreadable
from ..errors import InvalidConfigError
from .figures import figures
from .files import make_folder
from .options import Output, titled

app = App(name="report")

EXPECTED = "a trace that --trace wrote; outrider bench writes the page of a result.json beside it"


@app.default
def report(
    file: Path,
    /,
    *,
    out: str | None = None,
    output: Annotated[Output, titled("Output")] = Output(),
) -> None:
    """Summarise what a run recorded, and write a page of it (HTML, one file).

    Args:
        file: a trace that --trace wrote.
        out: write the page into this folder; without it beside the file, under its name and
            -report.
    """
    from rich.text import Text

    from ..engine.trace import is_trace, read_trace
    from . import terminal
    from .trace_page import trace_page

    try:
        if not is_trace(file):
            raise InvalidConfigError("FILE", str(file), EXPECTED)
        trace = read_trace(file)
    except OSError as error:
        raise unreadable("FILE", file, EXPECTED, error) from error
    metrics, settings = trace.metrics, trace.settings
    folder = make_folder("--out", out or file.with_name(f"{file.stem}-report"))
    page = folder / "index.html"
    page.write_bytes(trace_page(trace).encode())
    if output.as_json:
        found = {
            "kind": "trace",
            "truncated": trace.truncated,
            "outrider": trace.outrider,
            "settings": settings,
            "emitted": metrics.emitted,
            "depths": metrics.depths,
            **figures(metrics),
            "files": [str(page)],
        }
        print(json.dumps(found))
        return
    console = terminal.output(output.color)
    names = [str(settings[name]) for name in ("target", "method", "device") if name in settings]
    console.print(Text(f"outrider {trace.outrider}: a trace of {', '.join(names)}", "dim"))
    console.print(Text(str(metrics)) if trace.records else "no rounds are in it")
    if trace.truncated:
        console.print(Text("the trace was cut short: its last line is not whole", "bold"))
    print(f"\nwritten: {page}")
