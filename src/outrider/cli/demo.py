"""`outrider demo`: the same prompts decoded plainly and speculatively, side by side."""

from __future__ import annotations

import json
from contextlib import nullcontext
from functools import partial
from typing import Annotated, Any

from cyclopts import App, Parameter

from ..bench.options import silent
from ..config.params import SamplingParams
from ..errors import InvalidConfigError
from .flags import COMMAS, flags_of, plain
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


@app.default
def demo(
    *,
    prompt: Annotated[Prompt, titled("Prompt (some of its own without one)")] = Prompt(),
    models: Annotated[Models, titled("Models")] = Models(),
    temperature: Annotated[
        tuple[float, ...], COMMAS, Parameter(alias="--temp", group=group("Sampling"))
    ] = (0.0, 0.8),
    sampling: Annotated[Any, titled("Sampling")] = SAMPLING,
    drafting: Annotated[Drafting, titled("Drafting")] = Drafting(),
    speculation: Annotated[Any, titled("Speculation")] = SPECULATION,
    trace: Annotated[str | None, Parameter(group=group("Trace"))] = None,
    output: Annotated[Output, titled("Output")] = Output(),
) -> None:
    """Race plain against speculative decoding on the same prompts.

    Args:
        temperature: a race at each of these, with commas between.
        trace: write every round to this file, a line of JSON each; outrider report reads it.
    """
    given = prompt.read()
    setup = Setup.of(models, drafting, speculation)
    method, config = setup.method, setup.config
    params: dict[float, SamplingParams] = {
        each: plain(SamplingParams, sampling, temperature=each, ignore_eos=True)
        for each in temperature
    }
    if method == "none" or config.deepest == 0:
        flag, value = ("--method", method) if method == "none" else ("-k", 0)
        raise InvalidConfigError(flag, value, "something that drafts, to compare with plain")
    if method == "prediction":
        raise InvalidConfigError("--method", method, "another method: demo takes no prediction")
    check_trace(trace)

    from outrider_demo import PROMPTS

    from ..bench.race import OutriderRunner
    from ..bench.records import PLAIN, Candidate, Results, Workload
    from ..bench.records import Prompt as BenchPrompt
    from ..bench.trial import Trial, TrialRace
    from ..bench.workloads import mixed
    from .models import load, traced
    from .race_screen import Screen
    from .terminal import messages, progress

    console = messages()
    loaded = load(setup, console)
    tokenizer = loaded.tokenizer
    texts = PROMPTS if given is None else (given,)
    if given is None and setup.models.target == "demo":
        # It is fast, and its texts differ much: a few of them say little.
        more = mixed(("code",), tokenizer, len(tokenizer), 8).prompts
        texts += tuple(tokenizer.decode(each.token_ids) for each in more)
    settings = loaded.settings(params[temperature[-1]], config)
    depth = None if config.depth == "adaptive" else config.deepest
    candidate = Candidate(method, config.verification, depth, config.tree_shape)
    prompts = Workload(
        "demo",
        tuple(
            BenchPrompt(tuple(tokenizer.encode(text)), f"prompt {number}")
            for number, text in enumerate(texts, 1)
        ),
    )
    screen = None if output.as_json else Screen(output.color)
    found = []
    extra = {"prompts": len(texts), "temperatures": tuple(params)}
    decoding = {"config": config, "tokenizer": tokenizer}
    with traced(trace, settings | extra, config) as on_round:
        runners = (
            OutriderRunner(loaded.target.fresh(1), None, PLAIN, **decoding),
            OutriderRunner(loaded.target, loaded.drafter, candidate, **decoding),
        )

        def write() -> None:
            for record in runners[1].records:
                if on_round is not None:
                    on_round(record)

        if screen is not None:
            screen.title(loaded.facts, config)
        drawn = screen is not None and screen.console.is_terminal
        steps = nullcontext(silent) if drawn else progress(console, "racing")
        with nullcontext() if screen is None else screen.live, steps as report:
            for place, each in enumerate(params.values()):
                trial = Trial(workload=prompts, sampling=each)
                report(place, len(params), trial.label)
                watch = None if screen is None else partial(screen.draw, trial.label)
                race = TrialRace(trial, runners, watch)
                race.run(write)
                found.append(race.measurements())
    if screen is not None:
        screen.results(Results(settings, tuple(each for pair in found for each in pair)))
        return
    results = [
        {
            "temperature": plain.temperature,
            "speedup": speculative.speedup and speculative.speedup.ratio,
            "prompts": len(texts),
            "identical": speculative.identical,
            "plain": plain.document(),
            "speculative": speculative.document(),
        }
        for plain, speculative in found
    ]
    print(json.dumps({"config": settings, "prompts": texts, "results": results}))
