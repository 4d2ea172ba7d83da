"""`outrider tune`: the fastest settings for a pair of models and its prompts."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from ..bench import Results, TuneOptions
from .files import check_file, make_folder, replace_file
from .flags import flags_of, listed, plain
from .options import Output, group, titled
from .signals import terminable

if TYPE_CHECKING:
    from ..bench.forecast import Forecast
    from ..bench.tune import Recommendation

EXAMPLES = """Examples:

    outrider tune
    outrider tune --target model.gguf
    outrider tune --target MODEL --draft MODEL --temp 0.7 --save tuned.toml
    outrider generate --config tuned.toml -p "def fib(n):"

The exit status is 1 where a lossless configuration wrote another token at temperature 0 than plain
decoding, with logits further apart than rounding explains; 130 after Ctrl-C, 143 after SIGTERM.
"""

NOTE = (
    "other engines have fixed depths: these are the best at each batch size by what was predicted; "
    "costs were measured with Outrider, and another engine's are its own"
)

NO_DEPTH = "no fixed depth pays here: engines without an adaptive one do best to decode plainly"

PYTHON = """pair = outrider.load(config={!r})
decoder = outrider.SpeculativeDecoder(
    pair.target, pair.drafter, tokenizer=pair.tokenizer, config=pair.config
)"""

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
    """Find out whether speculation pays for a model and its prompts, and with which settings.

    Plain decoding writes texts while rounds are timed; from both the speed of every configuration
    is predicted, and the best two are raced beside plain decoding. Ctrl-C ends it with what is
    known by then.

    Args:
        save: write what is recommended to this TOML file, for --config.
        out: write tune.json into this folder.
    """
    asked: TuneOptions = plain(TuneOptions, options)
    if save is not None:
        check_file("--save", save)
    folder = None if out is None else make_folder("--out", out)
    with terminable() as interruption:
        from ..bench.tune import run_tune
        from .terminal import messages, progress, quiet

        quiet()
        with progress(messages(), "tuning", unit="s") as advance:
            found = run_tune(asked, advance)
        text = json.dumps(found.document())
        if save is not None and found.forecasts:
            early = ", ended early" if found.partial else ""
            comments = (f"found by outrider tune{early}", *found.verdict)
            replace_file(save, toml(found.settings(), comments))
        elif save is not None:
            print(f"outrider: {save} is not written: there is no answer yet", file=sys.stderr)
        if folder is not None:
            (folder / "tune.json").write_bytes(text.encode())
        if output.as_json:
            print(text)
        else:
            _show(found, output.color, save)
        if found.partial:
            print("outrider: interrupted; this is what had been measured", file=sys.stderr)
            return interruption()
    return int(any(each.wrong for each in found.measurements))


def toml(settings: Mapping[str, Any], comments: tuple[str, ...] = ()) -> str:
    """Write flat settings as TOML, under lines of comment.

    JSON's strings, numbers, booleans and lists are TOML's.
    """
    lines = [f"# {' '.join(comment.split())}" for comment in comments]
    for name, value in settings.items():
        if value is not None:
            lines.append(f"{name} = {json.dumps(value, ensure_ascii=False)}")
    return "\n".join(lines) + "\n"


def _flags(settings: Mapping[str, Any]) -> str:
    """Write settings as a command line."""
    texts = {
        name: "x".join(map(str, value)) if isinstance(value, list) else str(value)
        for name, value in settings.items()
    }
    words = [f"--{name} {shlex.quote(text)}" for name, text in texts.items()]
    return " ".join(["outrider generate", *words])


def _best_of_each(forecasts: Sequence[Forecast]) -> list[Forecast]:
    """Return each drafter's first forecast, of adaptive and of fixed depths, and those raced."""
    found: dict[tuple[str, bool], Forecast] = {}
    for each in forecasts:
        found.setdefault((each.candidate.drafter, each.bounded), each)
    return [each for each in forecasts if each.raced or each in found.values()]


def _cells(found: Forecast) -> tuple[str, ...]:
    """Return a row of the table: what prediction and race say together, and each of them."""
    from ..bench.speedup import gain

    expected = gain(found.stretches)
    low, high = expected.low, expected.high
    return (
        found.candidate.label,
        f"{found.estimate.ratio:.2f}x",
        f"{expected.ratio:.2f}x",
        "" if low is None or high is None else _interval(low, high),
        f"{gain(found.raced).ratio:.2f}x" if found.raced else "",
        "" if found.off is None else f"{found.off - 1:+.0%}",
    )


def _interval(low: float, high: float) -> str:
    """Write an interval, unless it is so wide that it says nothing."""
    return f"{low:.2f} to {high:.2f}" if high < 100 * low else "too few prompts"


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
    if found.forecasts:
        headings = ("estimate", "predicted", "95% interval", "raced", "prediction off")
        shown = table("configuration", right=headings)
        for each in _best_of_each(found.forecasts):
            shown.add_row(*_cells(each))
        console.print(shown)
    if found.measurements:
        console.print(Text("the race", "bold"))
        console.print(figures(Results(facts, found.measurements)))
    for line in found.skipped:
        console.print(Text(f"left out: {line}", "dim"))
    for line in found.verdict:
        console.print(Text(line, "bold"))
    if not found.forecasts:
        return
    console.print(Text(f"\n{_flags(found.settings())}"), soft_wrap=True)
    if saved is not None:
        console.print(Text(f"saved: outrider generate --config {saved}, or in Python"))
        console.print(Text(PYTHON.format(saved), "dim"), soft_wrap=True)
    for export in found.exports:
        console.print(Text(f"\n{export.system}", "bold"))
        console.print(Text(export.text), soft_wrap=True)
        for note in export.notes:
            console.print(Text(f"- {note}", "dim"))
    if found.schedule:
        console.print(Text(f"\n{NOTE if found.exports else NO_DEPTH}", "dim"))
