"""`outrider generate`: continue a prompt."""

from __future__ import annotations

import json
import re
import secrets
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter, Token

from ..config.params import SamplingParams
from ..config.structured import StructuredOutput
from ..config.validation import read_text, texts
from ..errors import InvalidConfigError
from .figures import figures
from .flags import flags_of, plain, split
from .options import (
    SPECULATION,
    Drafting,
    Models,
    Output,
    Prompt,
    Setup,
    check_trace,
    group,
    titled,
)

if TYPE_CHECKING:
    from rich.console import Console

    from ..engine.decoder import SpeculativeDecoder
    from ..engine.outputs import Choice, GenerationOutput, StreamEvent

EXAMPLES = """Examples:

  outrider generate -p "def fib(n):" --temp 0 --stop $'\\n\\n'

  outrider generate -p "import os" --frequency-penalty 0.5 --bad-words sys

  outrider generate -p "answer = " --choice True --choice False --temp 0

  outrider generate -p "settings = " --json-schema schema.json --seed 2

  outrider generate -f prompt.txt --target MODEL --draft MODEL --logprobs 3 --json
"""

app = App(name="generate", help_epilogue=EXAMPLES)

_BIAS = re.compile(r"(\d+)(?:=|(?=[+-]))(.+)")


def _bias(_kind: Any, tokens: Sequence[Token]) -> tuple[tuple[int, float], ...]:
    """Read ID=X, or ID+X and ID-X."""
    found = []
    for token in tokens:
        parts = _BIAS.fullmatch(token.value)
        try:
            if parts is None:
                raise ValueError
            found.append((int(parts[1]), float(parts[2])))
        except ValueError:
            expected = "a token id and a number in [-100, 100], such as 42=-1.5"
            raise InvalidConfigError("logit_bias", token.value, expected) from None
    return tuple(found)


def _file(_kind: Any, tokens: Sequence[Token]) -> str:
    return read_text(tokens[0].keyword or "file", tokens[0].value)


def _schema(kind: Any, tokens: Sequence[Token]) -> str:
    """Read JSON text, which begins with a brace, or a file of it."""
    (token,) = tokens
    return token.value if token.value.lstrip().startswith("{") else _file(kind, tokens)


def _prediction(kind: Any, tokens: Sequence[Token]) -> str:
    """Read a text, or @PATH."""
    (token,) = tokens
    if token.value.startswith("@"):
        return _file(kind, [token.evolve(value=token.value[1:])])
    return token.value


_TEXTS = Annotated[tuple[str, ...], Parameter(allow_leading_hyphen=True)]
_AS_THEY_ARE = (
    *("top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"),
    *("min_tokens", "include_stop_str_in_output", "ignore_eos", "logprobs", "seed"),
)
SAMPLING = flags_of(
    SamplingParams,
    {
        **dict.fromkeys(_AS_THEY_ARE),
        "max_tokens": Parameter(alias="-m"),
        "temperature": Parameter(alias="--temp"),
        "logit_bias": Annotated[
            tuple[tuple[int, float], ...], Parameter(converter=_bias, n_tokens=1, metavar="ID=X")
        ],
        "stop": _TEXTS,
        "allowed_token_ids": Parameter(alias="--allowed-token-id", converter=split, n_tokens=1),
        "stop_token_ids": Parameter(alias="--stop-token-id", converter=split, n_tokens=1),
        "n": Parameter(name="-n"),
        "prediction": Annotated[
            str | None, Parameter(converter=_prediction, metavar="TEXT|@PATH", n_tokens=1)
        ],
    },
)()

if TYPE_CHECKING:
    Form = StructuredOutput
else:
    Form = flags_of(
        StructuredOutput,
        {
            "json_schema": Annotated[
                str | None, Parameter(converter=_schema, metavar="PATH|JSON", n_tokens=1)
            ],
            "regex": None,
            "grammar": Parameter(converter=_file, metavar="PATH", n_tokens=1),
            "choice": _TEXTS | None,
        },
    )


@app.default
def generate(
    *,
    prompt: Annotated[Prompt, titled("Prompt (standard input without one)")] = Prompt(),
    models: Annotated[Models, titled("Models")] = Models(),
    sampling: Annotated[Any, titled("Sampling and stopping")] = SAMPLING,
    bad_words: Annotated[_TEXTS, Parameter(group=group("Sampling and stopping"))] = (),
    form: Annotated[Form | None, titled("Form of the text")] = None,
    drafting: Annotated[Drafting, titled("Drafting")] = Drafting(),
    speculation: Annotated[Any, titled("Speculation")] = SPECULATION,
    trace: Annotated[str | None, Parameter(group=group("Trace"))] = None,
    output: Annotated[Output, titled("Output")] = Output(),
) -> None:
    """Continue a prompt, and show how many tokens came from the draft.

    Args:
        bad_words: never emit the tokens that the tokenizer makes of this text, or of it after a
            space; may be repeated.
        trace: write every round to this file, a line of JSON each; outrider report reads it.
    """
    text = prompt.read(piped=True) or ""
    texts("--bad-words", bad_words)
    setup = Setup.of(models, drafting, speculation)
    params: SamplingParams = plain(
        SamplingParams,
        sampling,
        seed=secrets.randbits(63) if sampling.seed is None else sampling.seed,
        structured_output=None if form is None else plain(StructuredOutput, form),
    )
    _check_prediction(params.prediction, setup.method)
    check_trace(trace)

    from ..engine.requests import banned
    from .models import load, traced
    from .terminal import messages

    console = messages()
    loaded = load(setup, console)
    params = replace(params, bad_words=banned("--bad-words", bad_words, loaded.tokenizer))
    settings = loaded.settings(params, setup.config)
    with traced(trace, settings, setup.config) as on_round:
        decoder = loaded.decoder(setup.config, on_round)
        if output.as_json:
            with console.status("generating"):
                found = decoder.generate(text, params)
            print(json.dumps(_document(text, found, decoder, settings)))
        else:
            _show(decoder, text, params, output, console)


def _check_prediction(prediction: object, method: str) -> None:
    """Refuse a prediction that nothing drafts from, and a drafter without one."""
    if prediction is None and method == "prediction":
        raise InvalidConfigError("--method", method, "--prediction TEXT beside it")
    if prediction is not None and method not in ("hybrid", "prediction"):
        expected = "--method hybrid, or --method prediction beside it"
        raise InvalidConfigError("--prediction", prediction, expected)


def _show(
    decoder: SpeculativeDecoder,
    prompt: str,
    params: SamplingParams,
    output: Output,
    console: Console,
) -> None:
    """Print the continuations as they come, and their figures below on standard error."""
    from . import terminal

    colors = terminal.colored(terminal.output(output.color))
    choices: list[list[StreamEvent]] = [[] for _ in range(params.n)]
    with console.status("generating") as waiting:
        try:
            for event in decoder.stream(prompt, params):
                choices[event.choice].append(event)
                if params.n == 1:
                    waiting.stop()
                    print(_painted([event], colors), end="", flush=True)
        finally:
            if params.n == 1 and choices[0]:
                print(flush=True)
    for index, events in enumerate(choices):
        if params.n > 1:
            reason = events[-1].finish_reason
            print(f"--- continuation {index + 1} of {params.n} (ended by {reason}) ---")
            print(_painted(events, colors))
    sys.stdout.flush()
    if params.structured_output and any(each[-1].finish_reason == "length" for each in choices):
        _say(f"cut by --max-tokens {params.max_tokens}: not yet a whole text of the form")
    for index, events in enumerate(choices if params.logprobs is not None else ()):
        _say("log-probabilities" + (f" of continuation {index + 1}:" if params.n > 1 else ":"))
        _say(*_lines(events, decoder.tokenizer))
    _say(f"{decoder.metrics}" + ("" if params.greedy else f"; seed {params.seed}"))


def _painted(events: Iterable[StreamEvent], colors: bool) -> str:
    from .terminal import painted

    return "".join(painted(event.text or "", event.origin, colors) for event in events)


def _say(*lines: str) -> None:
    print(*lines, sep="\n", file=sys.stderr)


def _lines(events: Iterable[StreamEvent], tokenizer: Any) -> Iterator[str]:
    yield "logprob  token (the likeliest)"
    for event in events:
        top = ", ".join(
            f"{tokenizer.decode([token])!r} {value:.3f}"
            for token, value in event.top_logprobs or ()
        )
        beside = f" ({top})" if top else ""
        yield f"{event.logprob:7.3f}  {tokenizer.decode([event.token_id])!r}{beside}"


def _document(
    prompt: str, output: GenerationOutput, decoder: SpeculativeDecoder, settings: dict[str, Any]
) -> dict[str, Any]:
    """Make the object that `--json` prints.

    Text, tokens, depths and log-probabilities are the first choice's, the figures those of all
    choices together.
    """
    choices = [_choice(choice, decoder) for choice in output.choices]
    first = {
        name: value for name, value in choices[0].items() if name not in ("index", "speculation")
    }
    document = {
        "prompt": prompt,
        **first,
        "seed": output.seed,
        "usage": {
            "prompt_tokens": len(output.prompt_token_ids),
            "completion_tokens": sum(len(choice.token_ids) for choice in output.choices),
        },
        **figures(decoder.metrics),
        "config": settings,
    }
    return document | ({"choices": choices} if len(choices) > 1 else {})


def _choice(choice: Choice, decoder: SpeculativeDecoder) -> dict[str, Any]:
    names = ("index", "text", "token_ids", "finish_reason", "depths")
    found: dict[str, Any] = {name: getattr(choice, name) for name in names}
    found["speculation"] = figures(choice.metrics)["speculation"]
    if choice.logprobs is not None:
        found["logprobs"] = [
            _entry(entry.token_id, entry.logprob, decoder.tokenizer)
            | {"top_logprobs": [_entry(*pair, decoder.tokenizer) for pair in entry.top]}
            for entry in choice.logprobs
        ]
    return found


def _entry(token_id: int, logprob: float, tokenizer: Any) -> dict[str, Any]:
    return {"token_id": token_id, "token": tokenizer.decode([token_id]), "logprob": logprob}
