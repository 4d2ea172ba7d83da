"""Which way of decoding is fastest for a pair of models on given prompts.

Everything is measured once, every configuration is predicted from that (`regime`, `forecast`), and
the best of them, with the adaptive default, are raced against plain decoding. What is recommended
is what was measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from math import inf
from typing import Any

from ..errors import InvalidConfigError
from ..pairing import parts_of
from ..protocols import CachedModel
from .contending import PLAIN
from .forecast import Prediction, predict
from .heat import Heat, measurement
from .measure import Tokens, forward_times
from .progress import Report, Steps
from .race import speedup
from .records import Contender, ForwardTime, Measurement, Workload
from .regime import Regime, measure
from .search import Models, Search

WITHIN = 0.1
"""The error up to which a prediction counts as right."""


@dataclass(frozen=True, slots=True)
class Check:
    """A configuration raced against plain decoding at one temperature.

    Attributes:
        plain: plain decoding, in the same race.
        measured: the configuration.
        predicted: what was predicted of it; None for an adaptive depth.
    """

    plain: Measurement
    measured: Measurement
    predicted: Prediction | None

    @property
    def error(self) -> float | None:
        """Predicted over measured tokens a second, less 1."""
        if self.predicted is None:
            return None
        return self.predicted.tokens_per_s / self.measured.tokens_per_s - 1


@dataclass(frozen=True, slots=True)
class Recommendation:
    """What to decode with.

    Attributes:
        contender: the configuration; plain decoding where speculation is not worth it.
        best: the best configuration that was checked, recommended or not.
        expected: its predicted speedup over all temperatures; of an adaptive depth that of the best
            fixed depth, plain decoding included.
        measured, low, high: its measured speedup over all temperatures with a 95% interval.
    """

    contender: Contender
    best: Contender
    expected: float | None
    measured: float
    low: float
    high: float

    @property
    def speculate(self) -> bool:
        """Whether speculation is worth it: its speedup is above 1 for certain."""
        return not self.contender.plain

    @property
    def verdict(self) -> str:
        """The recommendation in one clause."""
        figures = f"{self.measured:.2f}x plain decoding (95% interval {self.low:.2f} to "
        figures += f"{self.high:.2f}"
        if self.expected is not None:
            figures += f", {self.expected:.2f}x was expected"
        if self.speculate:
            return f"{self.best.label}: {figures})"
        return f"do not speculate: the best checked, {self.best.label}, is {figures})"


@dataclass(frozen=True, slots=True)
class TuneResult:
    """All that a run of `outrider tune` found.

    Attributes:
        provenance: versions, machine, models and settings, as JSON takes them.
        workload: the name of the prompts.
        prompts: how many were used.
        skipped: rows of the file that were left out, and why.
        curve: what forwards of the target cost.
        predictions: of every configuration at every temperature that was measured.
        checks: configurations that were run, at each temperature.
        recommendation: None if nothing was checked at every temperature.
        partial: whether the run was interrupted.
    """

    provenance: dict[str, Any]
    workload: str
    prompts: int
    skipped: tuple[str, ...]
    curve: tuple[ForwardTime, ...]
    predictions: tuple[Prediction, ...]
    checks: tuple[Check, ...]
    recommendation: Recommendation | None
    partial: bool

    def predicted_speedup(self, prediction: Prediction) -> float:
        """Of a prediction, over plain decoding at its temperature."""
        return prediction.tokens_per_s / _plain(self.predictions, prediction.temperature)


def tune(
    models: Models,
    workload: Workload,
    search: Search,
    report: Report = lambda _done, _total, _what: None,
    provenance: dict[str, Any] | None = None,
) -> TuneResult:
    """Measure, predict, check, recommend. An interrupt ends it with what is known by then.

    Args:
        models: the pair.
        workload: the prompts; as many as fill whole batches are used.
        search: what is looked at.
        report: is told of the progress.
        provenance: goes into the result.

    Raises:
        InvalidConfigError: there are fewer prompts than a batch holds, or the models have no room
            for two batches.
    """
    workload = fitting(models, workload, search)
    batches = batches_of(workload, search.batch)
    regimes: list[Regime] = []
    predictions: list[Prediction] = []
    checks: list[Check] = []
    partial = False
    try:
        for temperature in search.temperatures:
            regimes.append(measure(models, batches, search, temperature, report))
            predictions += predict(models, regimes[-1], search.contenders(), report)
        _check_all(models, workload, batches, search, report, predictions, checks)
    except KeyboardInterrupt:
        partial = True
    return TuneResult(
        provenance=provenance or {},
        workload=workload.name,
        prompts=sum(map(len, batches)),
        skipped=workload.skipped,
        curve=forward_times([seen for regime in regimes for seen in regime.rounds]),
        predictions=tuple(predictions),
        checks=tuple(checks),
        recommendation=recommend(search.temperatures, predictions, checks),
        partial=partial,
    )


def fitting(models: Models, workload: Workload, search: Search) -> Workload:
    """The prompts that leave room for the text in every model; the others are named as skipped.

    Raises:
        InvalidConfigError: none does.
    """
    parts = parts_of(models.target, models.drafter)
    room = min((part.max_length for part in parts if isinstance(part, CachedModel)), default=inf)
    most = room - search.params.max_tokens
    kept = tuple(prompt for prompt in workload.prompts if len(prompt.token_ids) <= most)
    skipped = tuple(
        f"{prompt.name}: {len(prompt.token_ids)} tokens, at most {most} leave room for the text"
        for prompt in workload.prompts
        if len(prompt.token_ids) > most
    )
    if not kept:
        raise InvalidConfigError(
            "prompts", workload.name, f"a prompt of at most {most} tokens", given=skipped[0]
        )
    return replace(workload, prompts=kept, skipped=workload.skipped + skipped)


def batches_of(workload: Workload, size: int) -> list[list[Tokens]]:
    """The token ids of prompts in whole batches, in order.

    Raises:
        InvalidConfigError: there are fewer prompts than that.
    """
    prompts = [prompt.token_ids for prompt in workload.prompts]
    if len(prompts) < size:
        raise InvalidConfigError(
            "batch", size, f"at most {len(prompts)}, the number of prompts in {workload.name}"
        )
    return [prompts[i : i + size] for i in range(0, len(prompts) - size + 1, size)]


def ranked(predictions: Sequence[Prediction]) -> list[tuple[Contender, float]]:
    """Configurations that were predicted at every temperature, and their speedups over all of them.

    The fastest first; plain decoding is among them.
    """
    temperatures = {prediction.temperature for prediction in predictions}
    of: dict[Contender, list[Prediction]] = {}
    for prediction in predictions:
        of.setdefault(prediction.contender, []).append(prediction)
    rates = {
        contender: sum(p.tokens for p in found) / sum(p.seconds for p in found)
        for contender, found in of.items()
        if len(found) == len(temperatures)
    }
    order = sorted(rates, key=lambda contender: -rates[contender])
    return [(contender, rates[contender] / rates[PLAIN]) for contender in order]


def recommend(
    temperatures: Sequence[float], predictions: Sequence[Prediction], checks: Sequence[Check]
) -> Recommendation | None:
    """The best of what was checked at every temperature; plain decoding if none is surely faster.

    Args:
        temperatures: all that count.
        predictions: of fixed depths.
        checks: what was run.
    """
    of: dict[Contender, list[Check]] = {}
    for check in checks:
        of.setdefault(check.measured.contender, []).append(check)
    pooled = {
        contender: _pooled(found)
        for contender, found in of.items()
        if len(found) == len(temperatures)
    }
    if not pooled:
        return None
    best = max(pooled, key=lambda contender: pooled[contender][0])
    measured, low, high = pooled[best]
    chosen = best if low > 1 else PLAIN
    return Recommendation(chosen, best, _expected(best, predictions), measured, low, high)


def best_depth(contender: Contender, predictions: Sequence[Prediction]) -> int:
    """Its depth; where that is adaptive the best one predicted of its drafter, at least 1."""
    if contender.num_speculative_tokens is not None:
        return contender.num_speculative_tokens
    alike = (contender.drafter, contender.verification)
    depths = (
        other.num_speculative_tokens
        for other, _ in ranked(predictions)
        if (other.drafter, other.verification) == alike and other.tree_shape is None
    )
    return next(depths, None) or 1


def within(checks: Sequence[Check]) -> tuple[int, int]:
    """How many predictions are within 10% of what was measured, and of how many."""
    errors = [check.error for check in checks if check.error is not None]
    return sum(abs(error) <= WITHIN for error in errors), len(errors)


def _pooled(checks: Sequence[Check]) -> tuple[float, float, float]:
    plain = [check.plain for check in checks]
    other = [check.measured for check in checks]
    return speedup(
        [second for each in plain for second in each.seconds],
        [count for each in plain for count in each.tokens],
        [second for each in other for second in each.seconds],
        [count for each in other for count in each.tokens],
    )


def _expected(contender: Contender, predictions: Sequence[Prediction]) -> float | None:
    found = ranked(predictions)
    if contender.num_speculative_tokens is not None:
        return dict(found).get(contender)
    alike = (contender.drafter, contender.verification)
    return max(
        (
            gain
            for other, gain in found
            if other.plain or (other.drafter, other.verification) == alike
        ),
        default=None,
    )


def _plain(predictions: Sequence[Prediction], temperature: float) -> float:
    return next(
        prediction.tokens_per_s
        for prediction in predictions
        if prediction.contender.plain and prediction.temperature == temperature
    )


def _check_all(
    models: Models,
    workload: Workload,
    batches: list[list[Tokens]],
    search: Search,
    report: Report,
    predictions: list[Prediction],
    checks: list[Check],
) -> None:
    """Race what is to be checked, several against one plain decoding; the most telling first."""
    known = {(found.contender, found.temperature): found for found in predictions}
    jobs = to_check(search, predictions)
    groups = {
        at: models.groups([contender for contender, when in jobs if when == at], search.batch)
        for at in search.temperatures
    }
    rounds = zip_longest(*groups.values())
    heats = [heat for each in rounds for heat in zip(groups, each, strict=True) if heat[1]]
    steps = Steps(report, len(heats) * len(batches) * search.repeats, "")
    for temperature, group in heats:
        heat = Heat(models, [PLAIN, *group], search.sampling(temperature))
        steps.say(f"checking {len(group)} configurations at temperature {temperature:g}")
        try:
            for batch in batches * search.repeats:
                heat.run(batch)
                steps.done()
        finally:
            # An interrupt leaves the batches before it.
            if heat.batches:
                plain, *others = heat.timed()
                distinct = len(batches)
                regime = (workload.name, temperature, search.batch, models.dtype, distinct)
                baseline = measurement(PLAIN, plain, plain, *regime)
                checks += [
                    Check(
                        baseline,
                        measurement(contender, timed, plain, *regime),
                        known.get((contender, temperature)),
                    )
                    for contender, timed in zip(group, others, strict=True)
                ]


def to_check(search: Search, predictions: Sequence[Prediction]) -> list[tuple[Contender, float]]:
    """Configurations, each with a temperature, to be run.

    First the default and the best predicted, at every temperature, which a recommendation rests on.
    Then as many others as make `search.verify` predictions in all, evenly spread over kinds and
    temperatures.
    """
    order = [contender for contender, _ in ranked(predictions) if not contender.plain]
    best, rest = order[: search.checks], order[search.checks :]
    temperatures = search.temperatures
    jobs = [(contender, at) for contender in (search.default(), *best) for at in temperatures]
    others = sorted(rest, key=search.contenders().index)
    left = max(0, search.verify - len(best) * len(temperatures))
    for place, at in enumerate(temperatures):
        share = left // len(temperatures) + (place < left % len(temperatures))
        count = min(share, len(others))
        # Each temperature begins a little further on.
        jobs += [
            (
                others[
                    (i * len(temperatures) + place) * len(others) // (count * len(temperatures))
                ],
                at,
            )
            for i in range(count)
        ]
    return jobs
