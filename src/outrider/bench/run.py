"""`outrider bench`: every candidate in every trial, each beside plain decoding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

from .. import Pair, SamplingParams, load
from ..config.sources import RuntimeName, is_gguf
from ..errors import InvalidConfigError, OutriderError
from . import peers
from .environment import environment
from .options import BenchOptions, Progress, TuneOptions, shape_of, silent
from .prompt_files import read_prompts, workload_of
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
    main = options.runtimes[0] if options.runtimes else "auto"
    results = Results({}, ())
    measured: list[Measurement] = []
    missing: dict[str, None] = {}
    failed: set[Candidate] = set()
    try:
        pair, facts, own = prepared(options, max(options.batches), report, main)
        pairs = {pair.target.name: pair}
        for name in _others(options, pair.target.name):
            report(0, 1, f"loading the models for {name}")
            try:
                pairs[name] = _loaded(options, max(options.batches), name)
            except OutriderError as error:
                missing[f"runtime {name}: {error}"] = None
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
        field = _field(candidates, pairs, all_of=options.runtimes is not None)
        trials = [
            Trial(
                workload=workload,
                sampling=SamplingParams(max_tokens=options.tokens, temperature=temperature),
                batch=batch,
                repeats=options.repeats,
            )
            for workload, temperature, batch in product(workloads, options.temps, options.batches)
        ]
        done, total = 0, sum(len(trial.stretches) * trial.repeats for trial in trials)
        for trial in trials:
            report(done, total, trial.label)
            runners: list[Runner] = [
                OutriderRunner.of(candidate, pairs[name], trial.batch) for candidate, name in field
            ]
            others, why = peers.runners(options, pairs.values(), trial.batch)
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
    options: BenchOptions | TuneOptions,
    max_sequences: int,
    report: Progress,
    runtime: RuntimeName,
) -> tuple[Pair, dict[str, Any], Workload | None]:
    """Load the models, and read the files of prompts, if there are any.

    Returns:
        The pair, its names, device and type, and the prompts of all files.

    Raises:
        InvalidConfigError: a file cannot be used, or a value does not suit the models.
        ModelError: a model cannot be loaded.
    """
    files = {path: read_prompts(path) for path in options.prompts}
    report(0, 1, "loading the models")
    pair = _loaded(options, max_sequences, runtime)
    facts = {
        "target": options.target,
        "draft": options.draft or ("demo" if pair.model_drafter else None),
        "device": str(pair.target.device),
        "runtime": pair.target.name,
        "dtype": pair.target.precision,
    }
    return pair, facts, workload_of(files, pair.tokenizer) if files else None


def _loaded(options: BenchOptions | TuneOptions, max_sequences: int, runtime: RuntimeName) -> Pair:
    target: str | Path = options.target
    draft, dtype, weights = options.draft, options.dtype or "auto", options.weights
    if isinstance(options, BenchOptions) and runtime == "llama_cpp" and options.file is not None:
        # The file has a type of its own, and a draft that is none is left to what suits it.
        draft = draft or ("demo" if target == "demo" else None)
        target, runtime, dtype, weights = options.file, "auto", "auto", None
    return load(
        target,
        draft,
        runtime=runtime,
        device=options.device,
        max_sequences=max_sequences,
        dtype=dtype,
        weights=weights,
    )


def _others(options: BenchOptions, main: str) -> list[RuntimeName]:
    """List the runtimes beside the first one: those asked for, or those installed."""
    if options.runtimes is not None:
        return list(options.runtimes[1:])
    if options.weights is not None or options.device not in (None, "cpu"):
        return []
    if is_gguf(options.target):
        return []  # converting its weights takes several times their memory
    names: tuple[RuntimeName, ...] = ("transformers", "openvino")
    if options.file is not None:
        names = (*names, "llama_cpp")
    return [name for name in names if name != main and find_spec(name)]


def _field(
    candidates: Sequence[Candidate], pairs: Mapping[str, Pair], *, all_of: bool
) -> list[tuple[Candidate, str]]:
    """List who races, and on the pair of which runtime, plain decoding first.

    All candidates race on the first pair, and on the others if `all_of` them do; else one.
    """
    usual = [each for each in candidates if each.depth is None and each.tree is None]
    field = []
    for place, name in enumerate(pairs):
        own = candidates if all_of or place == 0 else (usual[-1:] or candidates[-1:])
        label: Any = name if len(pairs) > 1 else None
        field += [(replace(each, runtime=label), name) for each in (PLAIN, *own)]
    return field


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

    `drafting` has drafters, and of how many of the target's layers; a depth of None is adaptive.
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
        given = f"{own.name} has no row that can be used with a prediction"
        expected = '"prediction" in its rows'
        raise InvalidConfigError("prompts", own.name, expected, given=given)
    return [own]


def _settings(options: BenchOptions) -> dict[str, Any]:
    """The options as JSON takes them, defaults filled in."""
    made = asdict(options) | {
        "workloads": None if options.prompts else options.chosen_workloads,
        "max_tokens": options.tokens,
        "prompts": [path.name for path in options.prompts] or None,
        "gguf": options.gguf and options.gguf.name,
    }
    # Lists, as they are read back from JSON.
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in made.items()
        if value is not None
    }
