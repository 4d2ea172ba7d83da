"""`outrider generate`: continue a prompt."""

from __future__ import annotations

import json
import secrets
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..config import SamplingParams
from . import figures, options
from .paint import Paint, colored, unpainted, wants_color
from .prompts import given_or_piped_prompt

if TYPE_CHECKING:
    from rich.console import Console

    from ..engine import SpeculativeDecoder
    from ..outputs import Choice, GenerationOutput, StreamEvent


def configure(parser: ArgumentParser) -> None:
    """Add the flags of this subcommand."""
    parser.set_defaults(run=run)
    options.add_prompt_flags(parser, "standard input is read")
    options.add_model_flags(parser)
    options.add_speculation_flags(parser)
    sampling = parser.add_argument_group("sampling")
    options.add_field_flag(
        sampling,
        SamplingParams,
        "temperature",
        *("--temp", "--temperature"),
        parse=float,
        metavar="T",
        text="divides the logits; 0 is greedy decoding",
    )
    options.add_law_flags(sampling)
    options.add_field_flag(
        sampling,
        SamplingParams,
        "seed",
        "--seed",
        parse=int,
        metavar="N",
        text="makes the output repeatable (default: a fresh one, which is reported)",
    )
    options.add_field_flag(
        sampling,
        SamplingParams,
        "n",
        "-n",
        parse=int,
        metavar="N",
        text="how many continuations to produce",
    )
    stopping = parser.add_argument_group("stopping")
    options.add_field_flag(
        stopping,
        SamplingParams,
        "max_tokens",
        *("-m", "--max-tokens"),
        parse=int,
        metavar="N",
        text="the most tokens to emit",
    )
    stopping.add_argument(
        "--stop-token-id",
        dest="stop_token_ids",
        type=options.integer_from(0),
        action="append",
        default=[],
        metavar="ID",
        help="stop after this token; may be repeated",
    )
    stopping.add_argument(
        "--ignore-eos", action="store_true", help="go on at the model's own end-of-text tokens"
    )
    options.add_output_flags(parser, "text, seed, depths, acceptance, timing and settings")


def run(args: Namespace) -> None:
    """Read the prompt, load the models, and print the continuations."""
    prompt = given_or_piped_prompt(args)
    config = options.speculative_config(args)
    params = options.sampling_params(args)
    if params.seed is None:
        params = replace(params, seed=secrets.randbits(63))
    options.speculation_method(args)

    from rich.console import Console

    from .models import load

    console = Console(stderr=True)
    loaded = load(args, console)

    from ..engine import SpeculativeDecoder

    decoder = SpeculativeDecoder(
        loaded.target, loaded.drafter, tokenizer=loaded.tokenizer, config=config
    )
    if args.json:
        with console.status("generating"):
            output = decoder.generate(prompt, params)
        print(json.dumps(_document(prompt, output, decoder, loaded.settings(params, config))))
        return
    paint = colored if wants_color(args.color) else unpainted
    events = decoder.stream(prompt, params)
    if params.n == 1:
        _print_live(events, paint, console)
    else:
        _print_choices(events, paint, console, params.n)
    sys.stdout.flush()
    print(f"{figures.closing_statistics(decoder.metrics)}; seed {params.seed}", file=sys.stderr)


def _print_live(events: Iterator[StreamEvent], paint: Paint, console: Console) -> None:
    with console.status("reading the prompt"):
        first = next(events)
    print(paint(first.text or "", first.origin), end="", flush=True)
    for event in events:
        print(paint(event.text or "", event.origin), end="", flush=True)
    print()


def _print_choices(events: Iterator[StreamEvent], paint: Paint, console: Console, n: int) -> None:
    texts, reasons = [""] * n, [""] * n
    with console.status(f"generating {n} continuations"):
        for event in events:
            texts[event.choice] += paint(event.text or "", event.origin)
            reasons[event.choice] = event.finish_reason or ""
    for index, (text, reason) in enumerate(zip(texts, reasons, strict=True)):
        print(f"--- continuation {index + 1} of {n} (ended by {reason}) ---\n{text}")


def _document(
    prompt: str, output: GenerationOutput, decoder: SpeculativeDecoder, settings: dict[str, Any]
) -> dict[str, Any]:
    """The object that `--json` prints.

    Text, tokens and depths are the first choice's, the figures those of all choices together.
    """
    first = output.choices[0]
    choices = [_choice(choice) for choice in output.choices]
    return {
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
    } | ({"choices": choices} if len(choices) > 1 else {})


def _choice(choice: Choice) -> dict[str, Any]:
    return {
        "index": choice.index,
        "text": choice.text,
        "token_ids": choice.token_ids,
        "finish_reason": choice.finish_reason,
        "depths": choice.depths,
        "speculation": figures.speculation(choice.metrics),
    }
