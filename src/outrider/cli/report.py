"""`outrider report`: a trace as a summary and a page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter
from rich.console import Group, RenderableType
from rich.text import Text

from ..config.validation import read_text, real, unreadable
from ..errors import InvalidConfigError
from ..integrations.engine_records import Engine, read_records
from . import terminal
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
        html, facts, shown = _of_engine(source, file, cost_ratio)
    elif cost_ratio is not None:
        raise InvalidConfigError("--cost-ratio", cost_ratio, "--from beside it, or none")
    else:
        html, facts, shown = _of_trace(file)
    page = make_folder("--out", out or file.with_name(f"{file.stem}-report")) / "index.html"
    page.write_bytes(html.encode())
    if output.as_json:
        print(json.dumps(facts | {"files": [str(page)]}))
        return
    terminal.output(output.color).print(shown)
    print(f"\nwritten: {page}")


def _of_trace(file: Path) -> tuple[str, dict[str, Any], RenderableType]:
    """Return the page of a trace, its figures as JSON takes them, and what is shown of it."""
    from ..engine.trace import is_trace, read_trace
    from .trace_page import trace_page

    try:
        if not is_trace(file):
            raise InvalidConfigError("FILE", str(file), EXPECTED)
        trace = read_trace(file)
    except OSError as error:
        raise unreadable("FILE", file, EXPECTED, error) from error
    metrics, settings = trace.metrics, trace.settings
    facts = {
        "kind": "trace",
        "truncated": trace.truncated,
        "outrider": trace.outrider,
        "settings": settings,
        "emitted": metrics.emitted,
        "depths": metrics.depths,
        **figures(metrics),
    }
    named = (settings.get(name) for name in ("target", "draft", "method", "device"))
    names = dict.fromkeys(str(each) for each in named if each is not None)
    shown = [
        Text(f"outrider {trace.outrider}: a trace of {', '.join(names)}", "dim"),
        Text(str(metrics) if trace.records else "no rounds are in it"),
    ]
    if trace.truncated:
        shown += [Text("the trace was cut short: its last line is not whole", "bold")]
    return trace_page(trace), facts, Group(*shown)


def _of_engine(
    source: Engine, file: Path, cost_ratio: float | None
) -> tuple[str, dict[str, Any], RenderableType]:
    """Return the page of what another engine recorded, its figures, and what is shown of it."""
    from ..bench.page import page
    from .report_records import as_json, shown

    if cost_ratio is not None:
        real("--cost-ratio", cost_ratio, "a number >= 0", lambda each: each >= 0)
    found = read_records(source, read_text("FILE", file), str(file))
    facts, rows = {"kind": source, **as_json(found, cost_ratio)}, shown(found, cost_ratio)
    return page(f"{source}: {found.length:.2f} tokens a round", rows, facts), facts, rows
