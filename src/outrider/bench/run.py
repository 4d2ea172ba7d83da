"""`outrider bench`: every candidate in every trial, each beside plain decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from itertools import count, product
from typing import Any

from .. import Pair, SamplingParams, load
from ..config.validation import shape_of
from . import peers
from .environment import environment
from .options import BenchOptions, Progress, TuneOptions, silent
from .prompt_files import read_prompts
from .race import OutriderRunner, config_of
from .records import PLAIN, Candidate, Measurement, Results, Workload
from .trial import Trial, TrialRace, fitting
from .workloads import mixed


def run_bench(options: BenchOptions, report: Progress = silent) -> Results:
    """Race the candidates that the options name, with plain decoding always beside them.

    Ctrl-C (KeyboardInterrupt) ends the race: what was measured is returned, with `partial` set.

    Args:
        options: what to measure.
        report: called with the steps done, the steps in all and what comes next.

    Raises:
        InvalidConfigError: the options do not fit the models or the prompts.
        ModelError: a model cannot be loaded.
    """
    ways = options.verification, options.depths, options.trees
    for candidate in grid(options.drafters or ("draft_model",), *ways):
        config_of(candidate)
    pair, facts, own = prepared(options, max(options.batches), report)
    source = pair.tokenizer, pair.target.vocab_size, options.prompts_per_workload
    given = [own] if own else [mixed((kind,), *source) for kind in options.chosen_workloads]
    workloads = [fitting(each, options.tokens, pair.target.max_length) for each in given]
    trials = [
        Trial(
            workload=workload,
            sampling=SamplingParams(max_tokens=options.tokens, temperature=temperature),
            batch=batch,
            repeats=options.repeats,
        )
        for workload, temperature, batch in product(workloads, options.temps, options.batches)
    ]
    field = [PLAIN, *grid(options.chosen_drafters(pair.model_drafter is not None), *ways)]
    longest = max(len(each.token_ids) for workload in workloads for each in workload.prompts)
    others, missing = peers.runners(options, pair, longest + options.tokens)
    measured: list[Measurement] = []
    done, total = count(), sum(len(trial.stretches) * trial.repeats for trial in trials)
    interrupted = False

    def step(what: str) -> None:
        report(next(done), total, what)

    try:
        step(trials[0].label)
        for trial in trials:
            ours = [OutriderRunner.of(candidate, pair, trial.batch) for candidate in field]
            race = TrialRace(trial, [*ours, *(others if trial.batch == 1 else ())])
            try:
                race.run(partial(step, trial.label))
            finally:
                measured += race.measurements()
                missing += [f"{each.candidate.label}: {why}" for each, why in race.failed.items()]
                others = [each for each in others if each not in race.failed]
                del ours, race  # the next trial's caches need the room
    except KeyboardInterrupt:
        interrupted = True
    settings = asdict(options) | {
        "workloads": tuple(workload.name for workload in workloads),
        "max_tokens": options.tokens,
        "prompts": [path.name for path in options.prompts],
    }
    return Results(
        environment=environment(facts, settings),
        measurements=tuple(measured),
        missing=tuple(missing),
        skipped=tuple(each for workload in workloads for each in workload.skipped),
        partial=interrupted,
    )


def prepared(
    options: BenchOptions | TuneOptions, max_sequences: int, report: Progress
) -> tuple[Pair, dict[str, Any], Workload | None]:
    """Load the models, and read the files of prompts, if there are any.

    Returns:
        The pair, its names, device and type, and the prompts of all files.

    Raises:
        InvalidConfigError: a file cannot be used, or a value does not suit the models.
        ModelError: a model cannot be loaded.
    """
    report(0, 1, "loading the models")
    pair = load(
        options.target,
        options.draft,
        runtime=options.runtime,
        device=options.device,
        max_sequences=max_sequences,
        dtype=options.dtype or "auto",
        weights=options.weights,
    )
    facts = {
        "target": options.target,
        "draft": options.draft or ("demo" if pair.model_drafter else None),
        "device": str(pair.target.device),
        "runtime": pair.target.name,
        "dtype": pair.target.precision,
    }
    return pair, facts, read_prompts(options.prompts, pair.tokenizer) if options.prompts else None


def grid(
    drafters: Sequence[str],
    methods: Sequence[str],
    depths: Sequence[int | None],
    trees: Sequence[str],
) -> list[Candidate]:
    """List every drafter with every method, at every depth, and in every tree that it can draft.

    A depth of None is adaptive.
    """
    shapes = [shape_of("trees", tree) for tree in trees]
    branching = [
        Candidate(drafter, method, len(shape), shape)
        for drafter, method, shape in product(drafters, methods, shapes)
        if drafter != "ngram"
    ]
    return [*(Candidate(*each) for each in product(drafters, methods, depths)), *branching]
