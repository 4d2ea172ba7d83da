"""`outrider tune`: the fastest configuration, found by short races that halve the field.

All configurations of a grid are raced beside plain decoding on one batch of prompts, with a quarter
of the tokens; the better half on two batches with half of them; and so on (successive halving:
Jamieson and Talwalkar 2016). The last race is between the best few and the default, on all prompts,
and the recommendation rests on its measurements alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from math import prod
from typing import Any

from .. import Pair, SamplingParams
from ..errors import InvalidConfigError
from .engine_flags import Export, export
from .environment import environment
from .options import Progress, TuneOptions, silent
from .race import OutriderRunner, config_of
from .records import PLAIN, Candidate, Measurement, Workload
from .run import grid, prepared, room_of
from .speedup import Speedup, speedup
from .trial import Trial, TrialRace, fitting
from .workloads import built_in

GROUP = 4
"""How many candidates are raced at once: each holds caches of its own."""


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Which configuration to decode with, and what it rests on.

    Attributes:
        best: the fastest candidate of the last race, recommended or not; None if none was run.
        gain: the speed of `best` over plain decoding's, over all temperatures; None if none was
            run.
        measurements: of the last race.
        eliminated: what shorter races measured of the candidates that are not in the last.
        exports: the configuration in other engines' words; none for plain decoding.
        environment: versions, machine, models and settings, as JSON takes them.
        skipped: prompts that were left out, and why.
        partial: whether the search was interrupted.
    """

    best: Candidate | None
    gain: Speedup | None
    measurements: tuple[Measurement, ...]
    eliminated: tuple[Measurement, ...]
    exports: tuple[Export, ...]
    environment: dict[str, Any]
    skipped: tuple[str, ...] = ()
    partial: bool = False

    @property
    def candidate(self) -> Candidate:
        """The configuration; plain decoding where speculation does not surely pay."""
        sure = self.gain is not None and self.gain.low is not None and self.gain.low > 1
        return self.best if self.best is not None and sure else PLAIN

    @property
    def verdict(self) -> str:
        """The recommendation in one sentence."""
        if self.best is None or self.gain is None:
            return "no recommendation: the search was interrupted before its last race"
        low, high = self.gain.low, self.gain.high
        figures = f"{self.best.label} is {self.gain.ratio:.2f}x as fast as plain decoding"
        if low is None or high is None:
            return f"plain decoding, since too few prompts can recommend another: {figures}"
        figures += f" (95% interval {low:.2f} to {high:.2f} over prompts)"
        if low > 1:
            return figures
        if high > 1:
            return f"undecided, more prompts may decide: the best tried, {figures}"
        return f"turn it off: the best tried, {figures}"

    def settings(self) -> dict[str, Any]:
        """Return what a `--config` file takes to decode like this, by flag name without dashes.

        Models and device are those of the search.
        """
        names = ("target", "draft", "runtime", "dtype", "weights", "device")
        given = self.environment["settings"]
        made = {name: given[name] for name in names if given.get(name) is not None}
        made["method"] = self.candidate.drafter
        if self.candidate.plain:
            return made
        made["depth"] = "adaptive" if self.candidate.depth is None else "fixed"
        made["verification"] = self.candidate.verification
        if self.candidate.depth is not None:
            made["num-speculative-tokens"] = self.candidate.depth
        if self.candidate.tree is not None:
            made["tree-shape"] = list(self.candidate.tree)
        return made

    def document(self) -> dict[str, Any]:
        """Return all of it as JSON takes it."""
        return asdict(self) | {
            "format": "outrider-tune/3",
            "candidate": asdict(self.candidate),
            "verdict": self.verdict,
            "config": self.settings(),
        }


def run_tune(options: TuneOptions, report: Progress = silent) -> Recommendation:
    """Search a grid of configurations for the fastest one by short races that halve the field.

    Ctrl-C (KeyboardInterrupt) ends the search: the answer so far is returned, with `partial` set.

    Args:
        options: the grid, the prompts and the models.
        report: called with the steps done, the steps in all and what comes next.

    Raises:
        InvalidConfigError: the options do not fit the models or the prompts.
        ModelError: a model cannot be loaded.
    """
    field = candidates(options)
    for candidate in field:
        config_of(candidate)
    pair, facts, workload = prepared(options, options.batch, report, options.runtime)
    count = options.max_prompts
    if workload is None:
        workload = built_in("code", pair.tokenizer, pair.target.vocab_size, count)
    # No candidate looks at predictions.
    prompts = tuple(replace(each, prediction=None) for each in workload.prompts[:count])
    workload = fitting(replace(workload, prompts=prompts), options.max_tokens, room_of(pair))
    if len(workload.prompts) < options.batch:
        expected = f"at most {len(workload.prompts)}, the number of prompts"
        raise InvalidConfigError("batch", options.batch, expected)
    search = _Search(options, pair, workload, report)
    partial = False
    try:
        search.run(field)
    except KeyboardInterrupt:
        partial = True
    best, gain = search.best()
    settings = {name: value for name, value in asdict(options).items() if value is not None}
    settings["prompts"] = list(map(str, options.prompts))
    shorter = [each for found in search.latest.values() for each in found]
    found = Recommendation(
        best=best,
        gain=gain,
        measurements=tuple(search.final),
        eliminated=tuple(each for each in shorter if each not in search.final),
        exports=(),
        environment=environment(facts, settings),
        skipped=workload.skipped,
        partial=partial,
    )
    return replace(found, exports=_exports(options, found.candidate, search))


def candidates(options: TuneOptions) -> list[Candidate]:
    """List the grid, the default first: each drafter and method, at each depth and in each tree."""
    default = Candidate(options.chosen_drafters[0], options.verifications[0])
    if "hybrid" in options.chosen_drafters:
        default = replace(default, drafter="hybrid")
    drafting = [(drafter, None) for drafter in options.chosen_drafters]
    depths = (None, *options.depths)
    tried = grid(drafting, options.verifications, depths, options.trees)
    return list(dict.fromkeys([default, *tried]))


class _Search:
    """The races of a search, and what each candidate came to in its last one."""

    def __init__(
        self, options: TuneOptions, pair: Pair, workload: Workload, report: Progress
    ) -> None:
        self._options, self._pair = options, pair
        self._workload, self._report = workload, report
        self._done, self._total = 0, 1
        self.latest: dict[Candidate, list[Measurement]] = {}
        self.final: list[Measurement] = []

    def run(self, field: list[Candidate]) -> None:
        """Halve the field until `checks` are left, then race these and the default at length."""
        default, checks = field[0], self._options.checks
        rounds = _halvings(len(field), checks)
        steps = sum(-(-count // GROUP) for count, _ in rounds)
        self._total = (steps + 1) * len(self._options.temp)
        for count, share in rounds:
            what = f"{count} candidates, {share:.0%} of the tokens"
            for first in range(0, len(field), GROUP):
                self._race(field[first : first + GROUP], share, what)
            field = sorted(field, key=self.rate, reverse=True)[: max(checks, count // 2)]
        finalists = list(dict.fromkeys([*field, default]))
        self.final = self._race(finalists, 1.0, f"the best {len(finalists)}")

    def _race(self, field: Sequence[Candidate], share: float, what: str) -> list[Measurement]:
        """Race some candidates beside plain decoding, on a share of prompts and tokens."""
        options, workload = self._options, self._workload
        used = max(options.batch, round(len(workload.prompts) * share))
        found: list[Measurement] = []
        for temperature in options.temp:
            self._report(self._done, self._total, what)
            trial = Trial(
                workload=replace(workload, prompts=workload.prompts[:used]),
                sampling=SamplingParams(
                    max_tokens=max(8, round(options.max_tokens * share)),
                    temperature=temperature,
                    top_p=options.top_p,
                    top_k=options.top_k,
                    min_p=options.min_p,
                ),
                batch=options.batch,
                repeats=options.repeats if share == 1 else 1,
            )
            each = (PLAIN, *field)
            race = TrialRace(
                trial, [OutriderRunner.of(one, self._pair, trial.batch) for one in each]
            )
            race.run()
            found += race.measurements()
            self._done += 1
        self._report(self._done, self._total, what)
        for candidate in field:
            self.latest[candidate] = [each for each in found if each.candidate == candidate]
        return found

    def rate(self, candidate: Candidate) -> float:
        """Return how fast a candidate was over plain decoding: the product over temperatures."""
        return prod(found.speedup or 0.0 for found in self.latest[candidate])

    def best(self) -> tuple[Candidate | None, Speedup | None]:
        """Return the fastest of the last race over all temperatures; None if none was run."""
        raced = dict.fromkeys(each.candidate for each in self.final if not each.candidate.plain)
        gains = [(candidate, self._gain(candidate)) for candidate in raced]
        return max(gains, key=lambda pair: pair[1].ratio, default=(None, None))

    def _gain(self, candidate: Candidate) -> Speedup:
        """Compare with plain decoding; a prompt's stretches at all temperatures are one."""
        plain = [each for each in self.final if each.candidate.plain]
        own = self.latest[candidate]
        if not all(each.speedup for each in own):
            return Speedup(0.0)
        return speedup(
            [seconds for each in plain for seconds in each.seconds],
            [seconds for each in own for seconds in each.seconds],
            max(1, len(plain[0].seconds) // self._options.repeats),
        )


def _halvings(count: int, checks: int) -> list[tuple[int, float]]:
    """List the races before the last: how many candidates, and their share of the tokens."""
    found = []
    share = 0.25
    while count > checks:
        found.append((count, share))
        count, share = max(checks, count // 2), min(0.75, share * 1.5)
    return found


def _exports(options: TuneOptions, candidate: Candidate, search: _Search) -> tuple[Export, ...]:
    """Write what drafts in other engines' words; they have fixed depths only."""
    if candidate.plain:
        return ()
    target, draft = options.target, options.draft
    if target == "demo":
        import outrider_demo as demo

        target, draft = str(demo.TARGET), draft or str(demo.DRAFT)
    fixed = [
        each
        for each in search.latest
        if each.drafter == candidate.drafter and each.depth is not None and each.tree is None
    ]
    tried = [each.depth for each in sorted(fixed, key=search.rate, reverse=True)]
    depth = candidate.depth or next(iter(tried), None) or 4
    return tuple(
        export(system, candidate, target=target, draft=draft, depth=depth)
        for system in options.export
    )
