"""`outrider bench`: what speculation brings, beside plain decoding and other systems."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from ..bench import BenchOptions
from ..errors import InvalidConfigError
from .files import make_folder, write
from .flags import flags_of, listed, plain
from .options import Shown, titled
from .signals import terminable

if TYPE_CHECKING:
    from ..bench import Results

DETAILS = """All candidates decode the same prompts in turn, in one process, beside plain decoding
(the same engine without a draft) and other systems on the same weights. Tokens are counted from
ids; end-of-text is ignored. Clocks run from the request to the last token, but for the target's
reading of the prompt. Ctrl-C and SIGTERM keep what was measured. The exit status is 1 where a
lossless candidate at temperature 0 wrote another token than plain decoding, and their logits are
further apart than rounding explains: the first such token is named.
"""

app = App(name="bench", help_epilogue=DETAILS)

OPTIONS = flags_of(
    BenchOptions, listed(BenchOptions, max_tokens="-m", k="-k", draft="--draft-model")
)()

Format = Literal["table", "json", "jsonl", "md", "csv", "vllm"]


@dataclass(frozen=True, kw_only=True)
class Formats:
    """What is printed and written.

    Attributes:
        output: what to print.
        json: print one JSON object; the same as -o json.
        jsonl: print a line of JSON a measurement; the same as -o jsonl.
        md: print Markdown; the same as -o md.
        csv: print CSV; the same as -o csv.
        out: write result.json, .md, .csv and a page into this new folder; with --quick it is
            outrider-bench-DATE without being asked for.
    """

    output: Annotated[Format, Parameter(alias="-o")] = "table"
    json: bool = False
    jsonl: bool = False
    md: bool = False
    csv: bool = False
    out: str | None = None

    @property
    def chosen(self) -> Format:
        """The format that was asked for.

        Raises:
            InvalidConfigError: several were.
        """
        names: tuple[Format, ...] = ("json", "jsonl", "md", "csv")
        asked = [name for name in names if getattr(self, name)]
        if len(asked) > 1:
            raise InvalidConfigError(f"--{asked[1]}", True, f"one format; drop --{asked[0]}")
        return asked[0] if asked else self.output


@app.default
def bench(
    *,
    options: Annotated[Any, titled("What is measured")] = OPTIONS,
    formats: Annotated[Formats, titled("Output")] = Formats(),
    shown: Annotated[Shown, titled("Output")] = Shown(),
) -> int:
    """Measure speculation beside plain decoding and other systems."""
    form = formats.chosen
    asked: BenchOptions = plain(BenchOptions, options)
    with terminable() as interruption, _folder(formats.out, asked.quick) as folder:
        from rich.console import Console

        from ..bench import run_bench
        from ..bench.formats import as_csv, as_json, as_jsonl, as_vllm
        from ..bench.tables import as_markdown, rendered
        from .terminal import output, progress, quiet

        quiet()
        with progress(Console(stderr=True), "timing") as advance:
            results = run_bench(asked, advance)
        if not results.measurements:
            raise KeyboardInterrupt("interrupted before anything was measured")
        if folder is not None:
            _write(results, folder)
        if form == "table":
            console = output(shown.color)
            console.print(rendered(results))
        else:
            writers = {
                "json": as_json,
                "jsonl": as_jsonl,
                "md": as_markdown,
                "csv": as_csv,
                "vllm": as_vllm,
            }
            print(writers[form](results).rstrip("\n"))
        if results.partial:
            print("outrider: interrupted; this is what had been measured", file=sys.stderr)
            return interruption.status
    return int(any(found.wrong for found in results.measurements))


@contextmanager
def _folder(asked: str | None, quick: bool) -> Iterator[Path | None]:
    """Make the folder for the results before anything is measured; one that stays empty goes."""
    if asked is None and not quick:
        yield None
        return
    name = asked or f"outrider-bench-{datetime.now():%Y%m%d-%H%M%S}"
    new = not Path(name).expanduser().exists()
    path = make_folder("--out", name, empty=True)
    try:
        yield path
    finally:
        if new and not any(path.iterdir()):
            path.rmdir()


def _write(results: Results, folder: Path) -> None:
    from ..bench import render_report
    from ..bench.formats import as_csv, as_json
    from ..bench.tables import as_markdown

    write(folder / "result.json", (as_json(results) + "\n").encode())
    write(folder / "result.md", as_markdown(results).encode())
    write(folder / "result.csv", as_csv(results).encode())
    write(folder / "index.html", render_report(results).encode())
    print(f"written to {folder}", file=sys.stderr)
