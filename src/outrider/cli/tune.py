"""`outrider tune`: the fastest settings for a pair of models and its prompts."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from ..bench import Results, TuneOptions
from .files import check_file, make_folder, replace_file
from .flags import flags_of, listed, plain
from .options import Output, group, titled
from .signals import terminable

if TYPE_CHECKING:
    from ..bench.tune import Recommendation

EXAMPLES = """Examples:

    outrider tune
    outrider tune --target MODEL --draft MODEL --prompts prompts.jsonl --temp 0.7 --save tuned.toml
    outrider generate --config tuned.toml -p "def fib(n):"
"""

app = App(name="tune", help_epilogue=EXAMPLES, help_format="plaintext")

OPTIONS = flags_of(
    TuneOptions, listed(TuneOptions, max_tokens="-m", temp="--temperature", draft="--draft-model")
)()


@app.default
def tune(
    *,
    options: Annotated[Any, titled("What is tried")] = OPTIONS,
    save: Annotated[str | None, Parameter(group=group("Files"))] = None,
    out: Annotated[str | None, Parameter(group=group("Files"))] = None,
    output: Annotated[Output, titled("Output")] = Output(),
) -> int:
    """Find the fastest settings for a pair of models and its prompts, or that plain decoding is.

    Short races halve the field; the last runs the best beside plain decoding and the default.

    Args:
        save: write what is recommended to this TOML file, for --config.
        out: write tune.json into this folder.
    """
    asked: TuneOptions = plain(TuneOptions, options)
    if save is not None:
        check_file("--save", save)
    folder = None if out is None else make_folder("--out", out)
    with terminable() as interruption:
        from rich.console import Console

        from ..bench.tune import run_tune
        from .terminal import progress, quiet

        quiet()
        with progress(Console(stderr=True), "racing") as advance:
            found = run_tune(asked, advance)
        text = json.dumps(found.document())
        if save is not None:
            comments = ("found by outrider tune", *found.verdict)
            replace_file(save, toml(found.settings(), comments))
        if folder is not None:
            (folder / "tune.json").write_bytes(text.encode())
        if output.as_json:
            print(text)
        else:
            _show(found, output.color, save)
        if found.partial:
            print("outrider: interrupted; this is what had been measured", file=sys.stderr)
            return interruption()
    return 0


def toml(settings: Mapping[str, Any], comments: tuple[str, ...] = ()) -> str:
    """Write flat settings as TOML, under lines of comment.

    JSON's strings, numbers, booleans and lists are TOML's.
    """
    lines = [f"# {' '.join(comment.split())}" for comment in comments]
    for name, value in settings.items():
        if value is not None:
            lines.append(f"{name} = {json.dumps(value, ensure_ascii=False)}")
    return "\n".join(lines) + "\n"


def _show(found: Recommendation, color: str, saved: str | None) -> None:
    """Print what was predicted and raced, the verdict, and what to paste elsewhere."""
    from rich.text import Text

    from ..bench.tables import figures, table
    from .terminal import output

    console = output(color)
    facts = found.environment
    names = ("target", "draft", "runtime", "device", "dtype")
    known = [str(facts[name]) for name in names if facts.get(name)]
    console.print(Text("outrider tune", "bold"), Text(", ".join(known), "dim"))
    shown = table("configuration", right=("predicted", "95% interval", "raced", "off"))
    for each in found.forecasts:
        shown.add_row(*each.cells())
    console.print(shown)
    if found.measurements:
        console.print(figures(Results(facts, found.measurements)))
    for line in found.skipped:
        console.print(Text(f"left out: {line}", "dim"))
    for line in found.verdict:
        console.print(Text(line, "bold"))
    if saved is not None:
        console.print(Text(f"saved: outrider generate --config {saved}"))
    for export in found.exports:
        console.print(Text(f"\n{export.system}", "bold"))
        console.print(Text(export.text), soft_wrap=True)
        for note in export.notes:
            console.print(Text(f"- {note}", "dim"))
