"""`outrider bench`: every candidate in every trial, each beside plain decoding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from itertools import product
from typing import Any

from .. import Pair, SamplingParams, load
from ..errors import InvalidConfigError
from . import peers
from .environment import environment
from .options import BenchOptions, Progress, shape_of, silent
from .prompt_files import Line, lines_of, parse_lines
from .race import OutriderRunner, Runner, config_of
from .records import PLAIN, Candidate, Measurement, Results, Workload
from .trial import Trial, TrialRace, fitting
from .workloads import built_in

WITHOUT_TREES = ("ngram", "prediction")
"""What finds one continuation only."""


def run_bench(
    options: BenchOptions, report: Progress = silent, load_pair: Callable[..., Pair] = load
) -> Results:
    """Race the candidates that the options name, with plain decoding always beside them.

    Ctrl-C (KeyboardInterrupt) ends the race: what was measured is returned, with `partial` set.

    Args:
        options: what to measure.
        report: called with the steps done, the steps in all and what comes next.
        load_pair: takes the arguments of `outrider.load`.

    Raises:
        InvalidConfigError: the options do not fit the models or the prompts.
        ModelError: a model cannot be loaded.
    """
    for candidate in _candidates(options, options.drafters or ("draft_model",)):
        config_of(candidate)
    lines = None if options.prompts is None else lines_of(options.prompts)
    courses: list[_Course] = []
    partial = False
    try:
        for dtype in options.dtype or (None,):
            report(0, 1, f"loading {dtype or 'the models'}")
            pair = load_pair(
                options.target,
                options.draft,
                device=options.device,
                max_sequences=max(options.batches),
                dtype=dtype or "auto",
            )
            courses.append(_Course(options, pair, lines, report))
            courses[-1].run()
    except KeyboardInterrupt:
        partial = True
    return Results(
        environment=environment(courses[0].models, _settings(options)) if courses else {},
        measurements=tuple(each for course in courses for each in course.measurements),
        missing=tuple(dict.fromkeys(each for course in courses for each in course.missing)),
        skipped=tuple(dict.fromkeys(each for course in courses for each in course.skipped)),
        partial=partial,
    )


class _Course:
    """All trials over one pair of models."""

    def __init__(
        self,
        options: BenchOptions,
        pair: Pair,
        lines: Sequence[Line] | None,
        report: Progress,
    ) -> None:
        self._options, self._pair, self._report = options, pair, report
        self.models = model_facts(options.target, options.draft, pair)
        self.measurements: list[Measurement] = []
        self.missing: list[str] = []
        drafters = options.chosen_drafters(pair.model_drafter is not None)
        self._candidates = _candidates(options, drafters)
        room = OutriderRunner.of(PLAIN, pair, 1).decoder.max_length
        self._workloads = [
            fitting(workload, options.tokens, room) for workload in _workloads(options, pair, lines)
        ]
        self.skipped = [each for workload in self._workloads for each in workload.skipped]
        self._failed: set[Candidate] = set()
        self._done, self._total = 0, 1

    def run(self) -> None:
        """Measure all trials, in the order of the table."""
        options = self._options
        trials = [
            Trial(
                workload=workload,
                sampling=SamplingParams(max_tokens=options.tokens, temperature=temperature),
                batch=batch,
                dtype=str(self.models["dtype"]),
                repeats=options.repeats,
            )
            for workload, temperature, batch in product(
                self._workloads, options.temps, options.batches
            )
        ]
        self._total = sum(len(trial.stretches) * trial.repeats for trial in trials)
        for trial in trials:
            self._measure(trial)

    def _measure(self, trial: Trial) -> None:
        """Race all candidates; an interrupt leaves the stretches before it."""
        self._report(self._done, self._total, trial.label)
        race = TrialRace(trial, self._runners(trial))
        try:
            race.run(lambda: self._step(trial.label))
        finally:
            self.measurements += race.measurements()
            for runner, reason in race.failed.items():
                self._failed.add(runner.candidate)
                self.missing.append(f"{runner.candidate.label}: {reason}")

    def _step(self, what: str) -> None:
        self._done += 1
        self._report(self._done, self._total, what)

    def _runners(self, trial: Trial) -> list[Runner]:
        """Fresh ones: what was learnt and computed in another trial is forgotten."""
        own = [
            OutriderRunner.of(candidate, self._pair, trial.batch)
            for candidate in (PLAIN, *self._candidates)
        ]
        others, why = peers.runners(self._options, self._pair, trial.batch)
        self.missing += why
        return [*own, *(each for each in others if each.candidate not in self._failed)]


def model_facts(target: str, draft: str | None, pair: Pair) -> dict[str, str | None]:
    """Name the models of a pair, their device and their type."""
    hf_model: Any = pair.target.hf_model
    return {
        "target": target,
        "draft": draft or ("demo" if pair.model_drafter else None),
        "device": str(hf_model.device),
        "dtype": str(hf_model.dtype).removeprefix("torch."),
    }


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


def _workloads(options: BenchOptions, pair: Pair, lines: Sequence[Line] | None) -> list[Workload]:
    if options.prompts is None or lines is None:
        count, vocab_size = options.prompts_per_workload, pair.target.vocab_size
        return [
            built_in(kind, pair.tokenizer, vocab_size, count) for kind in options.chosen_workloads
        ]
    workload = parse_lines(lines, options.prompts.stem, pair.tokenizer)
    predicted = any(prompt.prediction is not None for prompt in workload.prompts)
    if "prediction" in (options.drafters or ()) and not predicted:
        given = f"{options.prompts} has no row that can be used with a prediction"
        expected = '"prediction" in its rows'
        raise InvalidConfigError("prompts", str(options.prompts), expected, given=given)
    return [workload]


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
