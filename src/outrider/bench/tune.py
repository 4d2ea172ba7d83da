"""Which way of decoding is fastest for a pair of models on given prompts.

Everything is measured once, every configuration is predicted from that (`regime`, `forecast`), and
the best of them, with the adaptive default, are raced against plain decoding. What is recommended
is what was measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from math import ceil, inf
from typing import Any

from ..engine.compatibility import parts_of
from ..errors import InvalidConfigError
from ..types.protocols import is_bounded
from .checks import Check, pooled
from .contending import PLAIN
from .forecast import Prediction, predict
from .heat import Heat, measurement
from .measure import Tokens, forward_times
from .progress import Report, Steps
from .records import Contender, ForwardTime, Workload
from .regime import Regime, measure
from .search import Models, Search


@dataclass(frozen=True, slots=True)
class Recommendation:
    """What to decode with.

    Attributes:
        contender: the configuration; plain decoding where speculation is not worth it.
        best: the best configuration that was checked, recommended or not.
        expected: its predicted speedup over all temperatures; of an adaptive depth that of the best
            fixed depth, plain decoding included.
        measured, low, high: its measured speedup over all temperatures with a 95% interval over
            prompts; there is no interval where fewer than two (with batches, two batches of them)
            were run at some temperature.
    """

    contender: Contender
    best: Contender
    expected: float | None
    measured: float
    low: float | None
    high: float | None

    @property
    def speculate(self) -> bool:
        """Whether speculation is worth it: its speedup is above 1 for certain."""
        return not self.contender.plain

    @property
    def verdict(self) -> str:
        """The recommendation in one clause."""
        figures = f"{self.measured:.2f}x plain decoding ("
        if self.low is not None:
            figures += f"95% interval {self.low:.2f} to {self.high:.2f} over prompts"
        else:
            figures += "no interval: it takes two prompts, or batches of them, at each temperature"
        if self.expected is not None:
            figures += f", {self.expected:.2f}x was expected"
            if self.best.num_speculative_tokens is None:
                figures += " of its best fixed depth"
        if self.speculate:
            return f"{self.best.label}: {figures})"
        best = f"the best checked, {self.best.label}, is {figures})"
        if self.low is None or self.high is None:
            return f"plain decoding, since too few prompts can recommend no other: {best}"
        if self.high > 1:
            return f"not told apart from plain decoding, more prompts may tell: {best}"
        return f"do not speculate: {best}"


@dataclass(frozen=True, slots=True)
class TuneResult:
    """All that a run of `outrider tune` found.

    Attributes:
        provenance: versions, machine, models and settings, as JSON takes them.
        workload: the name of the prompts.
        prompts: how many were used.
        skipped: rows of the file that were left out, and why.
        curve: what forwards of the target cost, at the pace that each temperature was measured at.
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
    room = min((part.max_length for part in parts if is_bounded(part)), default=inf)
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
    gains = {
        contender: pooled(found)
        for contender, found in of.items()
        if len(found) == len(temperatures)
    }
    if not gains:
        return None
    best = max(gains, key=lambda contender: gains[contender][0])
    measured, low, high = gains[best]
    chosen = best if low is not None and low > 1 else PLAIN
    return Recommendation(chosen, best, _expected(best, predictions), measured, low, high)


def best_depth(contender: Contender, predictions: Sequence[Prediction]) -> int:
    """How far an engine is to draft that has neither adaptive depths nor hybrid drafters.

    A fixed depth is as it is, but for a hybrid's: its draft model drafts alone there. Else it is
    the best one predicted of the drafter that is left, at least 1.
    """
    own = contender.num_speculative_tokens
    hybrid = contender.drafter == "hybrid" and contender.tree_shape is None
    if own is not None and not hybrid:
        return own
    alike = ("draft_model" if hybrid else contender.drafter, contender.verification)
    depths = (
        other.num_speculative_tokens
        for other, _ in ranked(predictions)
        if (other.drafter, other.verification) == alike and other.tree_shape is None
    )
    return next(depths, None) or own or 1


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
                pace = baseline.tokens_per_s / known[PLAIN, temperature].tokens_per_s
                checks += [
                    Check(
                        baseline,
                        measurement(contender, timed, plain, *regime),
                        known.get((contender, temperature)),
                        distinct,
                        pace,
                    )
                    for contender, timed in zip(group, others, strict=True)
                ]


def to_check(search: Search, predictions: Sequence[Prediction]) -> list[tuple[Contender, float]]:
    """Configurations, each with a temperature, to be run.

    First the default and the best predicted, at every temperature, which a recommendation rests on.
    Then as many others as make `search.verify` predictions in all, or more if it takes more for
    five sixths of them to be by formula or replay: those alone as long as there are some, evenly
    spread over kinds and temperatures. What comes from a short run of the same configuration says
    little.
    """
    order = [contender for contender, _ in ranked(predictions) if not contender.plain]
    best, rest = order[: search.checks], order[search.checks :]
    temperatures = search.temperatures
    jobs = [(contender, at) for contender in (search.default(), *best) for at in temperatures]
    short = {found.contender for found in predictions if not found.exact}
    sound = sum(contender not in short for contender in best) * len(temperatures)
    least = max(search.verify - len(best) * len(temperatures), ceil(search.verify * 5 / 6) - sound)
    left = max(0, least)
    others = sorted(rest, key=search.contenders().index)
    telling = [contender for contender in others if contender not in short]
    for place, at in enumerate(temperatures):
        share = left // len(temperatures) + (place < left % len(temperatures))
        # Each temperature begins a little further on.
        start = place / len(temperatures)
        chosen = _spread(telling, share, start)
        chosen += _spread(
            [contender for contender in others if contender in short], share - len(chosen), start
        )
        jobs += [(contender, at) for contender in chosen]
    return jobs


def _spread(among: Sequence[Contender], count: int, start: float) -> list[Contender]:
    """So many of them, or all, at even distances; `start` is a share of the first distance."""
    taken = min(count, len(among))
    return [among[int((i + start) * len(among) / taken)] for i in range(taken)]
