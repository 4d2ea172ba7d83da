"""What configurations are expected to bring, which of them to use, and how to say so."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from ..config.params import WITH_MODEL
from .costs import Costs
from .records import Candidate
from .speedup import Speedup, Stretch, gain

_GAIN = 1.1
"""A kind of text counts as gained on from here."""

_APART = 1.15
"""Kinds are named where the best gains so many times what the worst does."""

_NEAR = 1.05
"""What is faster by less than this is no reason to draft without a bound on what may be lost."""

_NORMAL = 1.96
"""The 97.5% quantile of the normal distribution."""

_NAMES = {
    "draft_model": "the draft model",
    "hybrid": "the draft model beside look-ups",
    "suffix": "suffix look-ups",
    "ngram": "n-gram look-ups",
}


@dataclass(frozen=True, slots=True)
class Forecast:
    """What one configuration is expected to take for some texts.

    Attributes:
        candidate: the configuration.
        stretches: what is expected.
        model_s: the part of the seconds with drafts that the draft model takes.
        length: tokens that a round emits for a row.
        drafted: the share of rounds that draft.
        raced: what a race measured.
        wrong: whether it wrote other tokens there than plain decoding at temperature 0.
        cold: whether what rounds cost was timed once alone; see `Costs`.
    """

    candidate: Candidate
    stretches: tuple[Stretch, ...]
    model_s: float = 0.0
    length: float = 1.0
    drafted: float = 1.0
    raced: tuple[Stretch, ...] = ()
    wrong: bool = False
    cold: bool = False

    @property
    def off(self) -> float | None:
        """The gain predicted for what was raced over the one in the race; None if it was not."""
        both = {each.place for each in self.stretches} & {each.place for each in self.raced}
        predicted, raced = (
            [each for each in part if each.place in both] for part in (self.stretches, self.raced)
        )
        return gain(predicted).ratio / gain(raced).ratio if both else None

    @property
    def estimate(self) -> Speedup:
        """Its speed over plain decoding's, by the prediction and the race together.

        Each weighs by its own variance, to which that between them is added where they differ by
        more than these explain: a random-effects mean (DerSimonian and Laird, 1986).
        """
        predicted = gain(self.stretches)
        raced = gain(self.raced) if self.raced else Speedup(1.0)
        if predicted.low is None or raced.low is None:
            return predicted
        both = ((each.ratio, each.high or inf) for each in (predicted, raced))
        logs, ends = np.log(list(both)).T
        own = np.maximum(((ends - logs) / _NORMAL) ** 2, 1e-12)
        weights = 1 / (own + max(0.0, (np.diff(logs)[0] ** 2 - own.sum()) / 2))
        mean, margin = np.average(logs, weights=weights), _NORMAL / np.sqrt(weights.sum())
        return Speedup(*np.exp([mean, mean - margin, mean + margin]).tolist())

    @property
    def sure(self) -> bool:
        """Whether the whole interval of its gain is above 1, by some more without one of a race.

        What was raced has to have been faster than plain decoding, and right. Costs of cold rounds
        say too little.
        """
        raced = gain(self.raced) if self.raced else Speedup(inf)
        if self.cold and raced.low is None:
            return False
        least = _NEAR if raced.low is None else 1.0
        return not self.wrong and raced.ratio > 1 and (self.estimate.low or 0.0) > least

    @property
    def bounded(self) -> bool:
        """Whether the policy keeps what may be lost to a small share of the time."""
        return self.candidate.depth is None

    @property
    def gains_somewhere(self) -> bool:
        """Whether some kind of text gains, and all together, more than one, lose nothing.

        A race that is surely lost, or lost on one prompt, says otherwise.
        """
        kinds = _by(self.stretches, lambda each: each.kind).values()
        texts = len({each.name for each in self.stretches})
        race = gain(self.raced) if self.raced else Speedup(1.0)
        lost = (race.high or race.ratio) < 1
        fits = texts > 1 and max(each.ratio for each in kinds) > _GAIN and self.estimate.ratio >= 1
        return fits and not lost and not self.wrong


def _by(stretches: Sequence[Stretch], name: Callable[[Stretch], str]) -> dict[str, Speedup]:
    """Return the gain on the stretches of each name."""
    groups: dict[str, list[Stretch]] = {}
    for each in stretches:
        groups.setdefault(name(each), []).append(each)
    return {group: gain(some) for group, some in groups.items()}


def chosen(forecasts: Sequence[Forecast]) -> Forecast | None:
    """Choose what to decode with; None for plain decoding, where nothing else surely pays.

    That is the fastest whose interval is above 1, or such a one that is bounded and nearly as fast;
    else the fastest bounded one that gains on some kind of text. What was raced goes before what
    was only predicted.

    Args:
        forecasts: of all configurations, the fastest first.
    """
    raced = [each for each in forecasts if each.raced]
    sure = [each for each in raced or forecasts if each.sure]
    if sure:
        least = sure[0].estimate.ratio / _NEAR
        near = (each for each in sure if each.bounded and each.estimate.ratio > least)
        return next(near, sure[0])
    bounded = [each for each in (*raced, *forecasts) if each.bounded]
    return next((each for each in bounded if each.gains_somewhere), None)


def schedule(
    forecasts: Sequence[Forecast], drafter: str, curves: Sequence[Costs]
) -> tuple[tuple[int, int], ...]:
    """Choose the depth that is expected to be fastest at each batch size; none if none was tried.

    Args:
        forecasts: of fixed depths among others.
        drafter: what drafts.
        curves: what rounds of that drafter cost, by rising batch size.

    Returns:
        Batch sizes, the first of them 1, and depths, 0 where nothing pays.
    """
    tried = {
        each.candidate.depth: each
        for each in forecasts
        if each.candidate.drafter == drafter
        and each.candidate.depth is not None
        and each.candidate.tree is None
    }
    found = []
    for costs in curves if tried else ():
        speeds = {0: 1 / costs.plain}
        for depth, each in tried.items():
            drafting = costs.verifying(depth) + costs.drafting(depth)
            seconds = each.drafted * drafting + (1 - each.drafted) * costs.plain
            speeds[depth] = each.length / seconds
        found.append((costs.rows, max(speeds, key=speeds.__getitem__)))
    return tuple(found)


def verdict(forecasts: Sequence[Forecast], step: float) -> Iterator[str]:
    """Say in sentences what to do, how sure that is, and what does not pay.

    Args:
        forecasts: of all configurations, the fastest first; at least one.
        step: what a draft step costs beside a plain round.
    """
    best = chosen(forecasts)
    if best is None and len({each.name for each in forecasts[0].stretches}) < 2:
        yield f"one prompt says too little; give more (--prompts). On it, {_said(forecasts[0])}"
    elif best is None:
        yield f"decode plainly: nothing that drafts surely pays; at best {_said(forecasts[0])}"
    else:
        bound = "; where it gains nothing it loses at most 2% of the time, and 4 rounds"
        if best.candidate.drafter in WITH_MODEL:
            bound += ", beside the draft model's prefill"
        sure = "use " if best.sure else "safe to use, though it may gain little: "
        said = best.bounded and not (best.sure and best is forecasts[0])
        yield f"{sure}{_said(best)}{bound if said else ''}"
    models = [each for each in forecasts if each.candidate.drafter == "draft_model"]
    drafts = best is not None and best.candidate.drafter in WITH_MODEL
    if models and not drafts and models[0].estimate.ratio < 1:
        # How many times as dear the draft model may be for one of these to be as fast as plain.
        times = [
            1 + sum(one.plain - one.drafting for one in each.stretches) / each.model_s
            for each in models
            if each.model_s
        ]
        dearest = step * max(times, default=0.0)
        needed = f"it would have to cost under {dearest:.2g}"
        pays = "does not pay" if models[0].estimate.outcome < 0 else "is not likely to pay"
        yield (
            f"the draft model {pays} here ({_ratio(models[0].estimate)} at best): a step "
            f"costs {step:.2g} of a plain round, "
            + (needed if dearest > 0 else "and verifying alone costs more than is kept")
        )


def basis(forecasts: Sequence[Forecast]) -> str:
    """Say what a verdict rests on, and how far predictions were off."""
    few = " on one prompt, too little for the estimate"
    raced = [
        f"{each.candidate.label} {_ratio(gain(each.raced))}{few * (gain(each.raced).low is None)}"
        + ("" if each.off is None else f" (prediction {each.off - 1:+.0%})")
        for each in forecasts
        if each.raced
    ]
    beside = f"raced beside plain decoding: {', '.join(raced)}"
    confirmed = beside if raced else "not raced within the time (--budget)"
    cold = " when they were timed once (give it more with --budget)" * forecasts[0].cold
    texts = len(forecasts[0].stretches)
    return f"predicted from {texts} texts and what rounds cost{cold}; {confirmed}"


def _said(found: Forecast) -> str:
    """Name a configuration and its gain, by kind of text where kinds differ."""
    depth, tree = found.candidate.depth, found.candidate.tree
    how = "adaptive depth" if depth is None else f"{depth} token{'s' * (depth > 1)} a round"
    if tree is not None:
        how = f"trees of {'x'.join(map(str, tree))}"
    name = _NAMES[found.candidate.drafter]
    said = f"{name} with {how}: {_ratio(found.estimate, inf)} as fast as plain"
    parts = [
        _by(found.stretches, lambda each: f"on {each.kind}"),
        _by(found.stretches, lambda each: f"at temperature {each.temperature:g}"),
    ]
    # Only where neither stands for the other.
    both = {(each.kind, each.temperature) for each in found.stretches}
    for part in parts if len(both) == len(parts[0]) * len(parts[1]) else ():
        ordered = sorted(part.items(), key=lambda each: each[1].ratio, reverse=True)
        if ordered[0][1].ratio > _APART * ordered[-1][1].ratio:
            listed = ", ".join(f"{_ratio(each)} {where}" for where, each in ordered)
            said += f"; {'predicted ' * bool(found.raced)}{listed}"
    return said


def _ratio(found: Speedup, widest: float = 10.0) -> str:
    """Write a gain with its interval, if there is one whose ends are within this factor."""
    if found.low is None or found.high is None or found.high > widest * found.low:
        return f"{found.ratio:.2f}x"
    return f"{found.ratio:.2f}x [{found.low:.2f} to {found.high:.2f}]"
