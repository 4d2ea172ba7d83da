"""`outrider report`: a trace as a summary and a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from ..config.validation import read_text, real, unreadable
from ..errors import InvalidConfigError
from ..integrations.engine_records import Engine, read_records
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
    source: Annotated[Engine | None, Parameter(name="--from")] = None,
    cost_ratio: float | None = None,
    out: str | None = None,
    output: Annotated[Output, titled("Output")] = Output(),
) -> None:
    """Summarise what a run recorded, and write a page of it (HTML, one file).

    Args:
        file: a trace that --trace wrote; with --from what another engine recorded: the JSON of its
            answers (one, a list, or a line each), or of vLLM the text of /metrics.
        source: the engine that recorded the file.
        cost_ratio: with --from: what a draft step costs beside a forward of the target.
        out: write the page into this folder; without it beside the file, under its name and
            -report.
    """
    if source is not None:
        _of_engine(source, file, cost_ratio, out, output)
        return
    if cost_ratio is not None:
        raise InvalidConfigError("--cost-ratio", cost_ratio, "--from beside it, or none")
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


def _of_engine(
    source: Engine, file: Path, cost_ratio: float | None, out: str | None, output: Output
) -> None:
    """Show what another engine recorded, and write the page of it."""
    from ..bench.page import page as html
    from . import terminal
    from .report_records import as_json, shown

    if cost_ratio is not None:
        real("--cost-ratio", cost_ratio, "a number >= 0", lambda each: each >= 0)
    found = read_records(source, read_text("FILE", file), str(file))
    folder = make_folder("--out", out or file.with_name(f"{file.stem}-report"))
    page, facts = folder / "index.html", {"kind": source, **as_json(found, cost_ratio)}
    title = f"{source}: {found.length:.2f} tokens a round"
    page.write_text(html(title, shown(found, cost_ratio), facts), encoding="utf-8")
    if output.as_json:
        print(json.dumps(facts | {"files": [str(page)]}))
        return
    terminal.output(output.color).print(shown(found, cost_ratio))
    print(f"\nwritten: {page}")
