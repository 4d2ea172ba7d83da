"""`outrider tune`: the fastest configuration, found by short races that halve the field.

All configurations of a grid are raced beside plain decoding on one batch of prompts, with a quarter
of the tokens; the better half on two batches with half of them; and so on (successive halving:
Jamieson and Talwalkar 2016). The last race is between the best few and the default, on all prompts,
and the recommendation rests on its measurements alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

from .. import Pair, SamplingParams, load
from ..errors import InvalidConfigError
from .engine_flags import Export, export
from .environment import environment
from .options import Progress, TuneOptions, shape_of
from .prompt_files import lines_of, parse_lines
from .race import OutriderRunner, config_of
from .records import PLAIN, Candidate, Measurement, Workload
from .run import WITHOUT_TREES, model_facts
from .speedup import Speedup, speedup
from .trial import Trial, TrialRace, fitting
from .workloads import built_in

GROUP = 4
"""How many candidates are raced at once: each holds caches of its own."""


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Which configuration to decode with, and what it rests on.

    Attributes:
        candidate: the configuration; plain decoding where speculation does not surely pay.
        best: the fastest candidate of the last race, recommended or not; None if none was run.
        speedup: of `best` over plain decoding, over all temperatures; None if none was run.
        low, high: its 95% interval; None with fewer than two stretches.
        measurements: of the last race.
        eliminated: what shorter races measured of the candidates that are not in the last.
        exports: the configuration in other engines' words.
        environment: versions, machine, models and settings, as JSON takes them.
        skipped: prompts that were left out, and why.
        partial: whether the search was interrupted.
    """

    candidate: Candidate
    best: Candidate | None
    speedup: float | None
    low: float | None
    high: float | None
    measurements: tuple[Measurement, ...]
    eliminated: tuple[Measurement, ...]
    exports: tuple[Export, ...]
    environment: dict[str, Any]
    skipped: tuple[str, ...] = ()
    partial: bool = False

    @property
    def verdict(self) -> str:
        """The recommendation in one sentence."""
        if self.best is None:
            return "no recommendation: the search was interrupted before its last race"
        figures = f"{self.best.label} is {self.speedup:.2f}x as fast as plain decoding"
        if self.low is not None:
            figures += f" (95% interval {self.low:.2f} to {self.high:.2f} over prompts)"
        if not self.candidate.plain:
            return figures
        if self.low is None or self.high is None:
            return f"plain decoding, since too few prompts can recommend another: {figures}"
        if self.high > 1:
            return f"undecided, more prompts may tell: the best tried, {figures}"
        return f"turn it off: the best tried, {figures}"

    def settings(self) -> dict[str, Any]:
        """What a `--config` file takes to decode like this, by flag name without dashes.

        Models and device are those of the search.
        """
        names = ("target", "draft", "dtype", "device")
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
        """All of it as JSON takes it."""
        return asdict(self) | {
            "format": "outrider-tune/2",
            "verdict": self.verdict,
            "config": self.settings(),
        }


def tune(
    options: TuneOptions, report: Progress, load_pair: Callable[..., Pair] = load
) -> Recommendation:
    """See `run_tune`; `load_pair` takes the arguments of `outrider.load`."""
    grid = candidates(options)
    for candidate in grid:
        config_of(candidate)
    lines = None if options.prompts is None else lines_of(options.prompts)
    report(0, 1, "loading the models")
    pair = load_pair(
        options.target,
        options.draft,
        device=options.device,
        max_sequences=options.batch,
        **({} if options.dtype is None else {"dtype": options.dtype}),
    )
    if options.prompts is None or lines is None:
        workload = built_in("code", pair.tokenizer, pair.target.vocab_size, options.max_prompts)
    else:
        workload = parse_lines(lines, options.prompts.stem, pair.tokenizer)
    room = OutriderRunner.of(PLAIN, pair, 1).decoder.max_length
    workload = fitting(_cut(workload, options), options.max_tokens, room)
    if len(workload.prompts) < options.batch:
        expected = f"at most {len(workload.prompts)}, the number of prompts"
        raise InvalidConfigError("batch", options.batch, expected)
    search = _Search(options, pair, workload, report)
    partial = False
    try:
        search.run(grid)
    except KeyboardInterrupt:
        partial = True
    settings = {
        name: str(value) if name == "prompts" else value
        for name, value in asdict(options).items()
        if value is not None
    }
    return _recommend(
        options,
        search,
        environment(model_facts(options.target, options.draft, pair), settings),
        workload.skipped,
        partial=partial,
    )


def candidates(options: TuneOptions) -> list[Candidate]:
    """The grid, the default first: each drafter and method, at each depth and in each tree."""
    default = Candidate(options.chosen_drafters[0], options.verifications[0])
    if "hybrid" in options.chosen_drafters:
        default = replace(default, drafter="hybrid")
    pairs = list(product(options.chosen_drafters, options.verifications))
    chains = [
        Candidate(drafter, method, depth)
        for drafter, method in pairs
        for depth in (None, *options.depths)
    ]
    trees = [
        Candidate(drafter, method, len(shape_of(tree)), shape_of(tree))
        for drafter, method in pairs
        for tree in options.trees
        if drafter not in WITHOUT_TREES
    ]
    return list(dict.fromkeys([default, *chains, *trees]))


class _Search:
    """The races of a search, and what each candidate came to in its last one."""

    def __init__(
        self, options: TuneOptions, pair: Pair, workload: Workload, report: Progress
    ) -> None:
        self._options, self._pair, self._workload = options, pair, workload
        self._report = report
        self._done, self._total = 0, 1
        self.latest: dict[Candidate, list[Measurement]] = {}
        self.finalists: list[Candidate] = []
        self.final: list[Measurement] = []

    def run(self, grid: Sequence[Candidate]) -> None:
        """Halve the field until `checks` are left, then race these and the default at length."""
        default, checks = grid[0], self._options.checks
        rounds = _halvings(len(grid), checks)
        steps = sum(-(-count // GROUP) for count, _ in rounds)
        self._total = (steps + 1) * len(self._options.temp)
        field = list(grid)
        for count, share in rounds:
            assert len(field) == count
            what = f"{count} candidates, {share:.0%} of the tokens"
            for first in range(0, len(field), GROUP):
                self._race(field[first : first + GROUP], share, what)
            field = sorted(field, key=self.rate, reverse=True)[: max(checks, count // 2)]
        self.finalists = list(dict.fromkeys([*field, default]))
        self.final = self._race(self.finalists, 1.0, f"the best {len(self.finalists)}")

    def _race(self, field: Sequence[Candidate], share: float, what: str) -> list[Measurement]:
        """Race some candidates beside plain decoding, at every temperature."""
        found: list[Measurement] = []
        for trial in self._trials(share):
            self._report(self._done, self._total, what)
            runners = [
                OutriderRunner.of(candidate, self._pair, trial.batch)
                for candidate in (PLAIN, *field)
            ]
            race = TrialRace(trial, runners)
            try:
                race.run()
            finally:
                found += race.measurements()
            self._done += 1
        self._report(self._done, self._total, what)
        for candidate in field:
            self.latest[candidate] = [each for each in found if each.candidate == candidate]
        return found

    def _trials(self, share: float) -> Iterator[Trial]:
        """The prompts, tokens and repeats of a race that takes this share of the last one's."""
        options, workload = self._options, self._workload
        repeats = options.repeats if share == 1 else 1
        tokens = options.max_tokens if share == 1 else max(8, round(options.max_tokens * share))
        used = max(options.batch, round(len(workload.prompts) * share))
        cut = replace(workload, prompts=workload.prompts[:used])
        for temperature in options.temp:
            sampling = SamplingParams(
                max_tokens=tokens,
                temperature=temperature,
                top_p=options.top_p,
                top_k=options.top_k,
                min_p=options.min_p,
            )
            yield Trial(
                workload=cut,
                sampling=sampling,
                batch=options.batch,
                dtype=str(self._pair.target.hf_model.dtype).removeprefix("torch."),
                repeats=repeats,
            )

    def rate(self, candidate: Candidate) -> float:
        """How fast a candidate was over plain decoding: the product over all temperatures."""
        rate = 1.0
        for found in self.latest[candidate]:
            rate *= found.speedup or 0.0
        return rate


def _halvings(count: int, checks: int) -> list[tuple[int, float]]:
    """The races before the last: how many candidates, and the share of prompts and tokens each."""
    found = []
    share = 0.25
    while count > checks:
        found.append((count, share))
        count, share = max(checks, count // 2), min(0.75, share * 1.5)
    return found


def _recommend(
    options: TuneOptions,
    search: _Search,
    found: dict[str, Any],
    skipped: tuple[str, ...],
    *,
    partial: bool,
) -> Recommendation:
    """The fastest of the last race; plain decoding unless it is surely faster."""
    gains = {
        candidate: _pooled(search.final, candidate, options)
        for candidate in search.finalists
        if search.final
    }
    best = max(gains, key=lambda candidate: gains[candidate].ratio, default=None)
    gain = None if best is None else gains[best]
    sure = gain is not None and gain.low is not None and gain.low > 1
    chosen = best if best is not None and sure else PLAIN
    return Recommendation(
        candidate=chosen,
        best=best,
        speedup=None if gain is None else gain.ratio,
        low=None if gain is None else gain.low,
        high=None if gain is None else gain.high,
        measurements=tuple(search.final),
        eliminated=tuple(
            each
            for measurements in search.latest.values()
            for each in measurements
            if each not in search.final
        ),
        exports=_exports(options, chosen, search),
        environment=found,
        skipped=skipped,
        partial=partial,
    )


def _pooled(
    measurements: Sequence[Measurement], candidate: Candidate, options: TuneOptions
) -> Speedup:
    """A candidate over plain decoding, the stretches of all temperatures together.

    A prompt's stretches at all temperatures are one: they say little of other prompts.
    """
    plain = [each for each in measurements if each.candidate.plain]
    own = [each for each in measurements if each.candidate == candidate]
    if not all(each.speedup for each in own):
        return Speedup(0.0)
    stretches = len(plain[0].seconds)
    return speedup(
        [seconds for each in plain for seconds in each.seconds],
        [tokens for each in plain for tokens in each.tokens],
        [seconds for each in own for seconds in each.seconds],
        [tokens for each in own for tokens in each.tokens],
        max(1, stretches // options.repeats),
    )


def _exports(options: TuneOptions, candidate: Candidate, search: _Search) -> tuple[Export, ...]:
    """The recommendation in other engines' words; they have fixed depths only."""
    target, draft = options.target, options.draft
    if target == "demo":
        import outrider_demo as demo

        target, draft = str(demo.TARGET), draft or str(demo.DRAFT)
    depth = _best_depth(candidate, search)
    return tuple(
        export(system, candidate, target=target, draft=draft, depth=depth)
        for system in options.export
    )


def _best_depth(candidate: Candidate, search: _Search) -> int:
    """A fixed depth; for an adaptive one the fastest fixed one that was tried of its drafter."""
    if candidate.depth is not None:
        return candidate.depth
    rates = {
        other.depth: search.rate(other)
        for other in search.latest
        if other.drafter == candidate.drafter and other.depth is not None and other.tree is None
    }
    return max(rates, key=lambda depth: rates[depth], default=4)


def _cut(workload: Workload, options: TuneOptions) -> Workload:
    """The first prompts, without predictions, which no candidate of a search looks at."""
    prompts = workload.prompts[: options.max_prompts]
    return replace(workload, prompts=tuple(replace(each, prediction=None) for each in prompts))
