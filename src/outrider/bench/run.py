"""`outrider bench`: every candidate in every trial, each beside plain decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import product
from typing import Any

from .. import Pair, SamplingParams, load
from ..errors import InvalidConfigError
from . import peers
from .environment import environment
from .options import BenchOptions, Progress, TuneOptions, shape_of, silent
from .prompt_files import lines_of, parse_lines
from .race import OutriderRunner, Runner, config_of
from .records import PLAIN, Candidate, Measurement, Results, Workload
from .trial import Trial, TrialRace, fitting
from .workloads import built_in

WITHOUT_TREES = ("ngram", "prediction")
"""What finds one continuation only."""


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
    for candidate in _candidates(options, options.drafters or ("draft_model",)):
        config_of(candidate)
    results = Results({}, ())
    measured: list[Measurement] = []
    missing: dict[str, None] = {}
    failed: set[Candidate] = set()
    try:
        pair, facts, own = prepared(options, max(options.batches), report)
        workloads = [
            fitting(workload, options.tokens, room_of(pair))
            for workload in _workloads(options, pair, own)
        ]
        results = Results(
            environment=environment(facts, _settings(options)),
            measurements=(),
            skipped=tuple(each for workload in workloads for each in workload.skipped),
        )
        candidates = _candidates(options, options.chosen_drafters(pair.model_drafter is not None))
        trials = [
            Trial(
                workload=workload,
                sampling=SamplingParams(max_tokens=options.tokens, temperature=temperature),
                batch=batch,
                dtype=facts["dtype"],
                repeats=options.repeats,
            )
            for workload, temperature, batch in product(workloads, options.temps, options.batches)
        ]
        done, total = 0, sum(len(trial.stretches) * trial.repeats for trial in trials)
        for trial in trials:
            report(done, total, trial.label)
            runners: list[Runner] = [
                OutriderRunner.of(candidate, pair, trial.batch)
                for candidate in (PLAIN, *candidates)
            ]
            others, why = peers.runners(options, pair, trial.batch)
            missing |= dict.fromkeys(why)
            runners += [each for each in others if each.candidate not in failed]
            race = TrialRace(trial, runners)

            def step(what: str = trial.label) -> None:
                nonlocal done
                done += 1
                report(done, total, what)

            try:
                race.run(step)
            finally:
                measured += race.measurements()
                for runner, reason in race.failed.items():
                    failed.add(runner.candidate)
                    missing[f"{runner.candidate.label}: {reason}"] = None
    except KeyboardInterrupt:
        results = replace(results, partial=True)
    return replace(results, measurements=tuple(measured), missing=tuple(missing))


def prepared(
    options: BenchOptions | TuneOptions, max_sequences: int, report: Progress
) -> tuple[Pair, dict[str, Any], Workload | None]:
    """Load the models, and read the file of prompts, if there is one.

    Returns:
        The pair, its names, device and type, and the file's prompts.

    Raises:
        InvalidConfigError: the file cannot be used, or a value does not suit the models.
        ModelError: a model cannot be loaded.
    """
    path = options.prompts
    lines = () if path is None else lines_of(path)
    report(0, 1, "loading the models")
    pair = load(
        options.target,
        options.draft,
        device=options.device,
        max_sequences=max_sequences,
        dtype=options.dtype or "auto",
    )
    hf_model: Any = pair.target.hf_model
    facts = {
        "target": options.target,
        "draft": options.draft or ("demo" if pair.model_drafter else None),
        "device": str(hf_model.device),
        "dtype": str(hf_model.dtype).removeprefix("torch."),
    }
    workload = None if path is None else parse_lines(lines, path.stem, pair.tokenizer)
    return pair, facts, workload


def room_of(pair: Pair) -> int | None:
    """Return the longest sequence that the target takes, in tokens; None for any."""
    return OutriderRunner.of(PLAIN, pair, 1).decoder.max_length


def _candidates(options: BenchOptions, drafters: Sequence[str]) -> list[Candidate]:
    drafting = [
        (drafter, layers)
        for drafter in drafters
        for layers in (options.exit_layers if drafter == "early_exit" else (None,))
    ]
    return grid(drafting, options.verification, options.depths, options.trees)


def grid(
    drafting: Sequence[tuple[str, int | None]],
    methods: Sequence[str],
    depths: Sequence[int | None],
    trees: Sequence[str],
) -> list[Candidate]:
    """List every drafter with every method, at every depth, and in every tree that it can draft.

    Args:
        drafting: drafters, and of how many of the target's layers.
        methods: of verification.
        depths: tokens drafted in a row; None is adaptive.
        trees: as `shape_of` reads them.
    """
    pairs = list(product(drafting, methods))
    chains = [
        Candidate(drafter, method, depth, exit_layers=layers)
        for ((drafter, layers), method), depth in product(pairs, depths)
    ]
    branching = [
        Candidate(drafter, method, len(shape), shape, layers)
        for ((drafter, layers), method), shape in product(pairs, map(shape_of, trees))
        if drafter not in WITHOUT_TREES
    ]
    return [*chains, *branching]


def _workloads(options: BenchOptions, pair: Pair, own: Workload | None) -> list[Workload]:
    if own is None:
        count, vocab_size = options.prompts_per_workload, pair.target.vocab_size
        return [
            built_in(kind, pair.tokenizer, vocab_size, count) for kind in options.chosen_workloads
        ]
    predicted = any(prompt.prediction is not None for prompt in own.prompts)
    if "prediction" in (options.drafters or ()) and not predicted:
        given = f"{options.prompts} has no row that can be used with a prediction"
        expected = '"prediction" in its rows'
        raise InvalidConfigError("prompts", str(options.prompts), expected, given=given)
    return [own]


def _settings(options: BenchOptions) -> dict[str, Any]:
    """The options as JSON takes them, defaults filled in."""
    made = asdict(options) | {
        "workloads": None if options.prompts else options.chosen_workloads,
        "max_tokens": options.tokens,
        "prompts": options.prompts and options.prompts.name,
        "gguf": options.gguf and options.gguf.name,
    }
    # Lists, as they are read back from JSON.
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in made.items()
        if value is not None
    }
