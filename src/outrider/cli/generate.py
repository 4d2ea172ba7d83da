"""`outrider generate`: continue a prompt."""

from __future__ import annotations

import json
import secrets
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from . import figures, log_probabilities, options, request_flags
from .paint import Paint, colored, unpainted, wants_color
from .parser import HelpFormatter
from .prompts import given_or_piped_prompt
from .tracing import add_trace_flag, check_trace_flag, tracing

if TYPE_CHECKING:
    from rich.console import Console

    from ..config.params import SamplingParams
    from ..engine.decoder import SpeculativeDecoder
    from ..engine.outputs import Choice, GenerationOutput, StreamEvent
    from ..sampling.logprobs import TokenLogprob
    from .models import Loaded

_EXAMPLES = """examples:
  outrider generate -p "def fib(n):" --temp 0 --stop $'\\n\\n'
  outrider generate -p "import os" --frequency-penalty 0.5 --bad-words sys --seed 7
  outrider generate -p "answer = " --choice True --choice False --temp 0
  outrider generate -p "settings = " --json-schema schema.json --seed 2
  outrider generate -f prompt.txt --target MODEL --draft MODEL --logprobs 3 --json
"""


def configure(parser: ArgumentParser) -> None:
    """Add the flags of this subcommand."""
    parser.set_defaults(run=run)
    parser.usage = "%(prog)s [-p TEXT | -f PATH] [flag ...]"
    parser.formatter_class = HelpFormatter
    parser.epilog = _EXAMPLES
    options.add_prompt_flags(parser, "standard input is read")
    options.add_model_flags(parser)
    request_flags.add_sampling_flags(parser)
    request_flags.add_shaping_flags(parser)
    request_flags.add_structure_flags(parser)
    request_flags.add_stopping_flags(parser)
    request_flags.add_prediction_flag(parser)
    request_flags.add_report_flags(parser)
    options.add_speculation_flags(parser, (*options.METHODS, "prediction"))
    add_trace_flag(parser, "what every round did")
    options.add_output_flags(parser, "text, seed, depths, acceptance, timing and settings")


def run(args: Namespace) -> None:
    """Read the prompt, load the models, and print the continuations."""
    prompt = given_or_piped_prompt(args)
    config = options.speculative_config(args)
    request_flags.check_together(args)
    form = request_flags.structured_output(args)
    params = options.sampling_params(args, structured_output=form)
    if params.seed is None:
        params = replace(params, seed=secrets.randbits(63))
    options.speculation_method(args)
    check_trace_flag(args)

    from rich.console import Console

    from .models import load

    console = Console(stderr=True)
    loaded = load(args, console)
    params = replace(params, bad_words=request_flags.bad_words(args.bad_texts, loaded.tokenizer))
    settings = loaded.settings(params, config)

    from ..engine.decoder import SpeculativeDecoder

    with tracing(args, settings, loaded.drafter, config) as on_round:
        decoder = SpeculativeDecoder(
            loaded.target,
            loaded.drafter,
            tokenizer=loaded.tokenizer,
            config=config,
            on_round=on_round,
        )
        if args.json:
            with console.status("generating"):
                output = decoder.generate(prompt, params)
            document = _document(prompt, output, decoder, settings)
            print(json.dumps(document))
        else:
            _show(args, prompt, params, decoder, loaded, console)


def _show(
    args: Namespace,
    prompt: str,
    params: SamplingParams,
    decoder: SpeculativeDecoder,
    loaded: Loaded,
    console: Console,
) -> None:
    """Print the continuations as they come, and their figures below."""
    paint = colored if wants_color(args.color) else unpainted
    told: list[list[TokenLogprob]] = [[] for _ in range(params.n)]
    reasons: list[str | None] = [None] * params.n
    events = _noted(decoder.stream(prompt, params), told, reasons)
    if params.n == 1:
        _print_live(events, paint, console)
    else:
        _print_choices(events, paint, console, reasons)
    sys.stdout.flush()
    if params.structured_output is not None and "length" in reasons:
        print(
            f"cut by --max-tokens {params.max_tokens}: not yet a whole text of the form",
            file=sys.stderr,
        )
    for index, of_choice in enumerate(told):
        if of_choice:
            heading = f" of continuation {index + 1}" if params.n > 1 else ""
            print(f"log-probabilities{heading}:", file=sys.stderr)
            lines = log_probabilities.lines(of_choice, loaded.tokenizer)
            print(*lines, sep="\n", file=sys.stderr)
    print(f"{decoder.metrics}; seed {params.seed}", file=sys.stderr)


def _noted(
    events: Iterator[StreamEvent], told: list[list[TokenLogprob]], reasons: list[str | None]
) -> Iterator[StreamEvent]:
    """The events; their choice's log-probabilities and why it ended are noted on the way."""
    from ..sampling.logprobs import TokenLogprob

    for event in events:
        if event.logprob is not None:
            entry = TokenLogprob(event.token_id, event.logprob, event.top_logprobs or ())
            told[event.choice].append(entry)
        reasons[event.choice] = event.finish_reason
        yield event


def _print_live(events: Iterator[StreamEvent], paint: Paint, console: Console) -> None:
    with console.status("reading the prompt"):
        first = next(events)
    print(paint(first.text or "", first.origin), end="", flush=True)
    for event in events:
        print(paint(event.text or "", event.origin), end="", flush=True)
    print()


def _print_choices(
    events: Iterator[StreamEvent], paint: Paint, console: Console, reasons: list[str | None]
) -> None:
    n = len(reasons)
    texts = [""] * n
    with console.status(f"generating {n} continuations"):
        for event in events:
            texts[event.choice] += paint(event.text or "", event.origin)
    for index, (text, reason) in enumerate(zip(texts, reasons, strict=True)):
        print(f"--- continuation {index + 1} of {n} (ended by {reason}) ---\n{text}")


def _document(
    prompt: str, output: GenerationOutput, decoder: SpeculativeDecoder, settings: dict[str, Any]
) -> dict[str, Any]:
    """The object that `--json` prints.

    Text, tokens, depths and log-probabilities are the first choice's, the figures those of all
    choices together.
    """
    first = output.choices[0]
    choices = [_choice(choice, decoder) for choice in output.choices]
    document = {
        "prompt": prompt,
        "text": first.text,
        "token_ids": first.token_ids,
        "finish_reason": first.finish_reason,
        "seed": output.seed,
        "depths": first.depths,
        "usage": {
            "prompt_tokens": len(output.prompt_token_ids),
            "completion_tokens": sum(len(choice.token_ids) for choice in output.choices),
        },
        "speculation": figures.speculation(decoder.metrics),
        "timing": figures.timing(decoder.metrics),
        "config": settings,
    }
    document |= _log_probabilities(first, decoder)
    return document | ({"choices": choices} if len(choices) > 1 else {})


def _log_probabilities(choice: Choice, decoder: SpeculativeDecoder) -> dict[str, Any]:
    if choice.logprobs is None or decoder.tokenizer is None:
        return {}
    return {"logprobs": log_probabilities.entries(choice.logprobs, decoder.tokenizer)}


def _choice(choice: Choice, decoder: SpeculativeDecoder) -> dict[str, Any]:
    return {
        "index": choice.index,
        "text": choice.text,
        "token_ids": choice.token_ids,
        "finish_reason": choice.finish_reason,
        "depths": choice.depths,
        "speculation": figures.speculation(choice.metrics),
    } | _log_probabilities(choice, decoder)
