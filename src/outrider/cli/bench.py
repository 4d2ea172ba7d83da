"""`outrider bench`: what speculation brings, beside plain decoding and other systems."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from ..bench import BenchOptions
from .files import make_folder
from .flags import flags_of, listed, plain
from .options import Shown, titled
from .signals import terminable

DETAILS = """All candidates decode the same prompts in turn, in one process, beside plain decoding
(the same engine without a draft) and other systems on the same weights. Tokens are counted from
ids; end-of-text is ignored. Clocks run from the request to the last token, but for the target's
prefill. Ctrl-C and SIGTERM keep what was measured. The exit status is 1 where a
lossless candidate at temperature 0 wrote another token than plain decoding, and their logits are
further apart than rounding explains: the first such token is named.
"""

app = App(name="bench", help_epilogue=DETAILS)

OPTIONS = flags_of(
    BenchOptions, listed(BenchOptions, max_tokens="-m", k="-k", draft="--draft-model")
)()


@dataclass(frozen=True, kw_only=True)
class Formats:
    """What is printed and written.

    Attributes:
        output: what to print.
        json: print one JSON object; the same as -o json.
        out: write result.json, .md, .csv and a page into this new folder; with --quick it is
            outrider-bench-DATE without being asked for.
    """

    output: Annotated[Literal["table", "json", "md", "csv"], Parameter(alias="-o")] = "table"
    json: bool = False
    out: str | None = None


@app.default
def bench(
    *,
    options: Annotated[Any, titled("What is measured")] = OPTIONS,
    formats: Annotated[Formats, titled("Output")] = Formats(),
    shown: Annotated[Shown, titled("Output")] = Shown(),
) -> int:
    """Measure speculation beside plain decoding and other systems."""
    asked: BenchOptions = plain(BenchOptions, options)
    with terminable() as interruption, _folder(formats.out, asked.quick) as folder:
        from rich.console import Console

        from ..bench import render_report, run_bench
        from ..bench.formats import as_csv
        from ..bench.tables import as_markdown, rendered
        from .terminal import output, progress, quiet

        quiet()
        with progress(Console(stderr=True), "timing") as advance:
            results = run_bench(asked, advance)
        if not results.measurements:
            raise KeyboardInterrupt("interrupted before anything was measured")
        texts = {
            "json": json.dumps(results.document()) + "\n",
            "md": as_markdown(results),
            "csv": as_csv(results),
        }
        if folder is not None:
            for form, text in texts.items():
                (folder / f"result.{form}").write_bytes(text.encode())
            (folder / "index.html").write_bytes(render_report(results).encode())
            print(f"written to {folder}", file=sys.stderr)
        if formats.output == "table" and not formats.json:
            output(shown.color).print(rendered(results))
        else:
            print(texts["json" if formats.json else formats.output], end="")
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
