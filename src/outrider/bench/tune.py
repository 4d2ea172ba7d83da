"""`outrider tune`: does speculation pay, with which settings? An answer within a budget.

The target writes texts, with the draft model looking on; rounds of each depth are timed; and every
configuration decodes these texts again on paper (`replay`). What is left of the budget goes to a
race of the two best beside plain decoding, which says how far the predictions were off.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from ..config.params import WITH_MODEL
from ..errors import InvalidConfigError, OutriderError
from .costs import Costs
from .engine_flags import SCHEDULED, Export, Schedule, export
from .environment import environment
from .forecast import Forecast, basis, chosen, verdict
from .options import Progress, TuneOptions, silent
from .race import config_of
from .records import PLAIN, Candidate, Measurement
from .run import prepared
from .search import Search, candidates, predictable
from .trial import fitting
from .workloads import in_turn, mixed

_SHORT = "no answer: the target ends all of these prompts at once; give others (--prompts)"
_EARLY = "no answer yet: it ended before there was enough to predict from (--budget)"


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Which configuration to decode with, and what it rests on.

    Attributes:
        forecasts: of every configuration, the fastest first; empty where no text was written.
        costs: of rounds, by temperature and source of drafts.
        schedule: batch sizes, and the best fixed depth of what is recommended at each.
        measurements: of the race.
        exports: the configuration in other engines' words; none for plain decoding.
        environment: versions, machine, models and settings, as JSON takes them.
        skipped: prompts that were left out, and why.
        short: whether the target ended all prompts at once, so that nothing was predicted.
        partial: whether it was interrupted, or ended by an error that `skipped` names.
    """

    forecasts: tuple[Forecast, ...]
    costs: tuple[Costs, ...]
    schedule: tuple[tuple[int, int], ...]
    measurements: tuple[Measurement, ...]
    exports: tuple[Export, ...]
    environment: dict[str, Any]
    skipped: tuple[str, ...] = ()
    short: bool = False
    partial: bool = False

    @property
    def candidate(self) -> Candidate:
        """The configuration; plain decoding where speculation does not surely pay."""
        best = chosen(self.forecasts)
        return PLAIN if best is None else best.candidate

    @property
    def step(self) -> float:
        """What a draft step costs beside a plain round; 0 where no model drafts."""
        return next((each.step for each in self.costs if each.step), 0.0)

    @property
    def verdict(self) -> tuple[str, ...]:
        """What to do, how sure that is, and what it rests on, in sentences."""
        if not self.forecasts:
            return (_SHORT if self.short else _EARLY,)
        wrong = (
            f"{each.candidate.label}: {error}"
            for each in self.measurements
            for error in each.errors[:3]
        )
        return (*verdict(self.forecasts, self.step), basis(self.forecasts), *wrong)

    def settings(self) -> dict[str, Any]:
        """Return what a `--config` file takes to decode like this, by flag name without dashes.

        Models and device are those of the search.
        """
        best, given = self.candidate, self.environment["settings"]
        names = ("target", "draft", "runtime", "dtype", "weights", "device")
        made = {name: given[name] for name in names if given.get(name) not in (None, "auto")}
        if best.drafter not in WITH_MODEL:
            made.pop("draft", None)
        made["method"] = best.drafter
        if best.depth is not None:
            made |= {"depth": "fixed", "num-speculative-tokens": best.depth}
        elif not best.plain:
            made["depth"] = "adaptive"
            if self.step and best.drafter in WITH_MODEL:
                made["cost-ratio"] = round(self.step, 3)
        if best.tree is not None:
            made["tree-shape"] = list(best.tree)
        return made

    def document(self) -> dict[str, Any]:
        """Return all of it as JSON takes it."""
        return asdict(self) | {
            "format": "outrider-tune/6",
            "candidate": asdict(self.candidate),
            "verdict": list(self.verdict),
            "config": self.settings(),
        }


def run_tune(options: TuneOptions, report: Progress = silent) -> Recommendation:
    """Find the fastest configuration within a budget of time, loading apart.

    Ctrl-C (KeyboardInterrupt) ends the search: what is known by then is the answer, with `partial`
    set.

    Args:
        options: what is tried, the prompts, the models and the budget.
        report: called with the seconds gone, those in all and what comes next.

    Raises:
        InvalidConfigError: the options do not fit the models or the prompts.
        ModelError: a model cannot be loaded.
    """
    for candidate in candidates(options):
        config_of(candidate)
    pair, facts, workload = prepared(options, options.batch, report)
    if not any(predictable(candidate, pair) for candidate in candidates(options)):
        expected = "another one beside it; outrider bench measures heads that draft blocks"
        raise InvalidConfigError("drafters", options.chosen_drafters, expected)
    if workload is None:
        workload = mixed(None, pair.tokenizer, pair.target.vocab_size, options.max_prompts)
    workload = fitting(workload, options.max_tokens, pair.target.max_length)
    workload = replace(workload, prompts=in_turn(workload.prompts, options.max_prompts))
    if len(workload.prompts) < options.batch:
        expected = f"at most {len(workload.prompts)}, the number of prompts (--max-prompts)"
        raise InvalidConfigError("batch", options.batch, expected)
    search = Search(options, pair, workload, report)
    partial, failed = False, tuple[str, ...]()
    try:
        search.run()
    except KeyboardInterrupt:
        partial = search.interrupted = True
    except (OutriderError, RuntimeError) as error:
        if not search.forecasts():
            raise
        partial, failed = True, (f"what was to follow: {error}",)
    settings = {name: value for name, value in asdict(options).items() if value is not None}
    settings["prompts"] = list(map(str, options.prompts))
    forecasts = tuple(search.forecasts())
    best = chosen(forecasts)
    depths = () if best is None else search.schedule(best.candidate)
    return Recommendation(
        forecasts=forecasts,
        costs=tuple(search.costs.values()),
        schedule=depths,
        measurements=tuple(search.measurements),
        exports=() if best is None else _exports(options, best.candidate.drafter, depths),
        environment=environment(facts, settings),
        skipped=(*workload.skipped, *search.left_out, *failed),
        short=search.short,
        partial=partial,
    )


def _exports(options: TuneOptions, drafter: str, schedule: Schedule) -> tuple[Export, ...]:
    """Write what drafts in other engines' words; they have fixed depths only, some a single one."""
    if not any(depth for _, depth in schedule):
        return ()
    target, draft = options.target, options.draft
    if target == "demo":
        import outrider_demo as demo

        target, draft = str(demo.TARGET), draft or str(demo.DRAFT)
    own = [depth for rows, depth in schedule if rows <= options.batch][-1]
    return tuple(
        export(
            system,
            drafter,
            target=target,
            draft=draft,
            schedule=schedule if system in SCHEDULED else [(1, own)],
        )
        for system in options.export
        if own or system in SCHEDULED
    )
