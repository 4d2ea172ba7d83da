"""`outrider demo`: the same prompts decoded plainly and speculatively, side by side."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Annotated, Any

from cyclopts import App, Parameter

from ..config.params import SamplingParams, SpeculativeConfig
from ..errors import InvalidConfigError
from .flags import COMMAS, flags_of, plain
from .options import (
    SPECULATION,
    Drafting,
    Models,
    Output,
    Prompt,
    Tracing,
    choose_method,
    titled,
)

DETAILS = """The lane that is behind on its own clock takes the next token, so that both meet the
same noise of the machine. Tokens per second are tokens emitted over the seconds from request to
last token; prompts are computed beforehand for both lanes, and both emit --max-tokens tokens,
end-of-text ignored.
"""

app = App(name="demo", help_epilogue=DETAILS)

SAMPLING = flags_of(
    SamplingParams,
    {
        **dict.fromkeys(("top_p", "top_k", "min_p", "seed")),
        "max_tokens": Parameter(alias="-m"),
    },
    {"max_tokens": 96, "seed": 0},
)()


@dataclass(frozen=True, kw_only=True)
class Temperatures:
    """Where the two are compared.

    Attributes:
        temperature: a race at each of these, with commas between.
    """

    temperature: Annotated[tuple[float, ...], COMMAS, Parameter(alias="--temp")] = (0.0, 0.8)

    def __post_init__(self) -> None:
        for each in self.temperature:
            SamplingParams(temperature=each)


@app.default
def demo(
    *,
    prompt: Annotated[Prompt, titled("Prompt (a dozen of its own without one)")] = Prompt(),
    models: Annotated[Models, titled("Models")] = Models(),
    temperatures: Annotated[Temperatures, titled("Sampling")] = Temperatures(),
    sampling: Annotated[Any, titled("Sampling")] = SAMPLING,
    drafting: Annotated[Drafting, titled("Drafting")] = Drafting(),
    speculation: Annotated[Any, titled("Speculation")] = SPECULATION,
    tracing: Annotated[Tracing, titled("Trace")] = Tracing(),
    output: Annotated[Output, titled("Output")] = Output(),
) -> None:
    """Race plain against speculative decoding on the same prompts."""
    given = prompt.read()
    config: SpeculativeConfig = plain(SpeculativeConfig, speculation)
    asked = temperatures.temperature
    params: SamplingParams = plain(SamplingParams, sampling, temperature=asked[-1], ignore_eos=True)
    method = choose_method(models, drafting, config)
    if method == "none" or config.deepest == 0:
        flag, value = ("--method", method) if method == "none" else ("-k", 0)
        raise InvalidConfigError(flag, value, "something that drafts, to compare with plain")
    if method == "prediction":
        raise InvalidConfigError("--method", method, "another method: demo takes no prediction")
    tracing.check()

    from rich.console import Console

    from outrider_demo import PROMPTS

    from .models import load, traced
    from .race import compare
    from .race_screen import Screen

    prompts = PROMPTS if given is None else (given,)
    console = Console(stderr=True)
    loaded = load(models, drafting, method, console)
    settings = loaded.settings(params, config)
    extra = {"prompts": len(prompts), "temperatures": asked}
    screen = None if output.as_json else Screen(output.color, len(prompts))
    with traced(tracing, settings | extra, config) as on_round:
        decoders = (
            loaded.decoder(config, plain=True),
            loaded.decoder(config, on_round),
            loaded.decoder(config),
        )
        if screen is not None:
            screen.title(loaded.headline(config))
        found = []
        with console.status("racing") if screen is None else screen.live:
            for temperature in asked:
                draw = screen.at(temperature) if screen is not None else lambda *_: None
                at = replace(params, temperature=temperature)
                found.append(compare(decoders, prompts, at, draw))
    if screen is not None:
        screen.results(found)
        return
    document = {
        "config": settings,
        "prompts": prompts,
        "results": [comparison.document() for comparison in found],
    }
    print(json.dumps(document))
