"""`outrider bench`: what speculation brings, beside plain decoding and other systems."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from ..bench import BenchOptions
from .files import make_folder
from .flags import flags_of, listed, plain
from .options import Shown, group, titled
from .signals import terminable

DETAILS = """All candidates decode the same prompts in turn, in one process, beside plain decoding
(the same engine without a draft) and other systems on the same weights. Tokens are counted from
ids; end-of-text is ignored. Clocks run from the request to the last token, but for the target's
prefill. Ctrl-C and SIGTERM keep what was measured; the exit status is 130 or 143 then. It is 1
where a lossless candidate at temperature 0 wrote another token than plain decoding, and their
logits are further apart than rounding explains: the first such token is named.
"""

app = App(name="bench", help_epilogue=DETAILS)

OPTIONS = flags_of(
    BenchOptions,
    listed(
        BenchOptions,
        max_tokens="-m",
        k="-k",
        draft="--draft-model",
        trees=("--tree-shape", "--trees"),
        temps=("--temperature", "--temp", "--temps"),
        batches=("--batch", "--batches"),
    ),
)()

Form = Literal["table", "json", "md"]


@app.default
def bench(
    *,
    options: Annotated[Any, titled("What is measured")] = OPTIONS,
    output: Annotated[Form, Parameter(alias="-o", group=group("Output"))] = "table",
    as_json: Annotated[bool, Parameter(name="--json", group=group("Output"))] = False,
    out: Annotated[str | None, Parameter(group=group("Output"))] = None,
    shown: Annotated[Shown, titled("Output")] = Shown(),
) -> int:
    """Measure speculation beside plain decoding and other systems.

    Args:
        output: what to print.
        as_json: print one JSON object; the same as -o json.
        out: write result.json, result.md and a page into this new folder; with --quick it is
            outrider-bench-DATE without being asked for.
    """
    asked: BenchOptions = plain(BenchOptions, options)
    with terminable() as interruption, _folder(out, asked.quick) as folder:
        from ..bench.page import render_report
        from ..bench.run import run_bench
        from ..bench.tables import as_markdown, rendered
        from . import terminal

        terminal.quiet()
        with terminal.progress(terminal.messages(), "timing") as advance:
            results = run_bench(asked, advance)
        if not results.measurements:
            raise KeyboardInterrupt("interrupted before anything was measured")
        texts = {"json": json.dumps(results.document()) + "\n", "md": as_markdown(results)}
        if folder is not None:
            for form, text in texts.items():
                (folder / f"result.{form}").write_bytes(text.encode())
            (folder / "index.html").write_bytes(render_report(results).encode())
            print(f"written to {folder}", file=sys.stderr)
        if output == "table" and not as_json:
            terminal.output(shown.color).print(rendered(results))
        else:
            print(texts["json" if as_json else output], end="")
        if results.partial:
            print("outrider: interrupted; this is what had been measured", file=sys.stderr)
            return interruption()
    return int(any(found.wrong for found in results.measurements))


@contextmanager
def _folder(asked: str | None, quick: bool) -> Iterator[Path | None]:
    """Make the folder for the results before anything is measured; one that stays empty goes."""
    if asked is None and not quick:
        yield None
        return
    name = asked or f"outrider-bench-{datetime.now():%Y%m%d-%H%M%S}"
    path = make_folder("--out", name, empty=True)
    try:
        yield path
    finally:
        with suppress(OSError):  # one with results in it stays
            path.rmdir()
