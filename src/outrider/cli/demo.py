"""`outrider demo`: the same prompts decoded plainly and speculatively, side by side."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..config.params import SamplingParams, SpeculativeConfig
from ..errors import InvalidConfigError
from . import options
from .paint import wants_color
from .prompts import given_prompt
from .tracing import OnRound, add_trace_flag, check_trace_flag, tracing

if TYPE_CHECKING:
    from rich.console import Console

    from .comparison import Comparison, Contest
    from .models import Loaded

TEMPERATURES = (0.0, 0.8)


def configure(parser: ArgumentParser) -> None:
    """Add the flags of this subcommand."""
    parser.description = (
        "Decode the same prompts plainly and speculatively with the same engine, and compare. The "
        "two sides take turns, token by token. Tokens per second are tokens emitted over the "
        "wall-clock time from request to last token; prompts are computed beforehand for both "
        "sides, and both emit --max-tokens tokens, end-of-text ignored."
    )
    parser.set_defaults(run=run, ignore_eos=True)
    options.add_prompt_flags(parser, "the prompts that ship with the demo models are used")
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
        default=TEMPERATURES,
        text="compare at this temperature only",
    )
    options.add_distribution_flags(sampling)
    options.add_field_flag(
        sampling,
        SamplingParams,
        "seed",
        "--seed",
        parse=int,
        metavar="N",
        default=0,
        text="of every request",
    )
    options.add_field_flag(
        sampling,
        SamplingParams,
        "max_tokens",
        *("-m", "--max-tokens"),
        parse=int,
        metavar="N",
        default=96,
        text="tokens to emit for each prompt",
    )
    add_trace_flag(parser, "what every timed round of the speculative side did")
    options.add_output_flags(parser, "settings, and both sides' figures at each temperature")


def run(args: Namespace) -> None:
    """Load the models, show one speculative text, time both sides, and print the table."""
    given = given_prompt(args)
    config = options.speculative_config(args)
    chosen = args.temperature
    temperatures: Sequence[float] = TEMPERATURES if chosen is TEMPERATURES else (chosen,)
    params = options.sampling_params(args, temperature=temperatures[-1])
    _refuse_plain(options.speculation_method(args), config)
    check_trace_flag(args)

    from rich.console import Console

    from outrider_demo import PROMPTS

    from .models import load

    prompts = PROMPTS if given is None else (given,)
    console = Console(stderr=True)
    loaded = load(args, console)
    settings = loaded.settings(params, config)
    traced = settings | {"prompts": len(prompts), "temperatures": temperatures}
    with tracing(args, traced, loaded.drafter, config) as on_round:
        contest = _contest(loaded, config, on_round)
        events = contest.untimed.stream(prompts[0], params)
        if args.json:
            with console.status("warming up"):
                list(events)
            comparisons = _compare(contest, prompts, params, temperatures, console)
            document = {
                "config": settings,
                "prompts": prompts,
                "results": [comparison.document() for comparison in comparisons],
            }
            print(json.dumps(document))
            return

        from .demo_screen import Screen

        screen = Screen(wants_color(args.color))
        screen.title(loaded.headline(config))
        heading = f"its speculative continuation, {params.max_tokens} tokens, temperature "
        screen.continuation(f"{heading}{params.temperature:g}", prompts[0], events)
        screen.results(_compare(contest, prompts, params, temperatures, console))


def _refuse_plain(method: str, config: SpeculativeConfig) -> None:
    """Something must be drafted, or there is nothing to compare."""
    if method == "none":
        raise InvalidConfigError("--method", method, "any other method, to compare with plain")
    if config.deepest == 0:
        raise InvalidConfigError(
            "--num-speculative-tokens", 0, "an integer >= 1, to compare with plain"
        )


def _contest(loaded: Loaded, config: SpeculativeConfig, on_round: OnRound | None) -> Contest:
    from ..engine.decoder import SpeculativeDecoder
    from .comparison import Contest

    plain, speculative, untimed = (
        SpeculativeDecoder(
            loaded.target, drafter, tokenizer=loaded.tokenizer, config=config, on_round=told
        )
        for drafter, told in (
            (None, None),
            (loaded.drafter, on_round),
            (loaded.drafter, None),
        )
    )
    return Contest(plain, speculative, untimed)


def _compare(
    contest: Contest,
    prompts: Sequence[str],
    params: SamplingParams,
    temperatures: Sequence[float],
    console: Console,
) -> list[Comparison]:
    """Compare at each temperature, with a progress bar on `console` if it is a terminal."""
    from .screen import progress

    with progress(console, "timing") as advance:
        total, done = len(prompts) * len(temperatures), 0
        advance(done, total, "")

        def report(plain: float, speculative: float) -> None:
            nonlocal done
            done += 1
            advance(done, total, f"tokens/s: plain {plain:.1f}, speculative {speculative:.1f}")

        return [
            contest.compare(prompts, replace(params, temperature=temperature), report)
            for temperature in temperatures
        ]
