"""Predictions held against runs, and how surely such a run says what is right.

A prediction and the run that checks it share their prompts, so that prompts of unequal speed are no
reason for them to differ. What does differ, the texts drawn at a temperature above 0 and the noise
of the clock, is seen in repeats of a prompt. The standard error of a run is made of those alone.

A prediction counts as right by the seconds that went by, and so do standard error and interval.
Beside that it is told how it does with each round of the run at the median of its kind, which a
prediction is made of: single rounds of a shared machine take many times that, and no prediction can
know of them.

A prediction is scaled to the pace of plain decoding in the same run, which has noise of its own. So
what it is held against is the configuration over plain decoding, whose stretches are paired: what
slowed both down is no difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import sqrt

from .forecast import Prediction
from .race import compared
from .records import Measurement
from .student import quantile

WITHIN = 0.1
"""The error up to which a prediction counts as right."""


@dataclass(frozen=True, slots=True)
class Check:
    """A configuration raced against plain decoding at one temperature.

    Attributes:
        plain: plain decoding, in the same race.
        measured: the configuration.
        predicted: what was predicted of it; None for an adaptive depth.
        distinct: how many batches of prompts there are before they come again.
        pace: how fast the machine was in this race, beside when predictions were measured: plain
            decoding's tokens a second here over those predicted of it.
    """

    plain: Measurement
    measured: Measurement
    predicted: Prediction | None
    distinct: int
    pace: float = 1.0

    @property
    def expected(self) -> float | None:
        """The predicted tokens a second at the pace of this race; None without a prediction."""
        return None if self.predicted is None else self.predicted.tokens_per_s * self.pace

    @property
    def error(self) -> float | None:
        """Expected over measured tokens a second, less 1; None without a prediction."""
        return None if self.expected is None else self.expected / self.measured.tokens_per_s - 1

    @property
    def usual_error(self) -> float | None:
        """The same with all rounds of this race, plain decoding's too, at medians of the kind."""
        if self.error is None:
            return None
        hiccups = self.measured.tokens_per_s / self.measured.usual_tokens_per_s
        plain = self.plain.tokens_per_s / self.plain.usual_tokens_per_s
        return (1 + self.error) * hiccups / plain - 1

    @property
    def rehearsed(self) -> bool:
        """Whether what was predicted are times of an earlier run of the same configuration.

        Such a prediction is nearly right by construction.
        """
        return self.predicted is not None and not self.predicted.exact

    @property
    def standard_error(self) -> float | None:
        """Of the measured tokens a second at the pace of plain decoding; None where not known.

        It is that of the measured over plain decoding's, prompts given, times plain decoding's: it
        takes two prompts or more that came again.
        """
        squares, freedom = self._scatter()
        if freedom < 2:
            return None
        return self.measured.tokens_per_s * sqrt(len(self.plain.seconds) * squares / freedom)

    @property
    def interval(self) -> tuple[float, float] | None:
        """A 95% interval, by Student's t, about the measured tokens a second: for `expected`.

        Divided by `pace` it is the interval of measured over plain tokens a second, prompts given,
        times the plain rate that was predicted: for what was predicted, unscaled.
        """
        error = self.standard_error
        if error is None:
            return None
        rate, margin = self.measured.tokens_per_s, quantile(self._scatter()[1]) * error
        return rate - margin, rate + margin

    def _scatter(self) -> tuple[float, int]:
        """How far a prompt's repeats are from their mean: squares, summed, and how many say so.

        Every text has the same number of tokens, so that a rate varies as the seconds do. A repeat
        changes the logarithm of measured over plain by its share of plain decoding's seconds less
        its share of the configuration's, which is what is compared.
        """
        plain_s, measured_s = sum(self.plain.seconds), sum(self.measured.seconds)
        pairs = zip(self.plain.seconds, self.measured.seconds, strict=True)
        shares = [plain / plain_s - measured / measured_s for plain, measured in pairs]
        each = [shares[first :: self.distinct] for first in range(self.distinct)]
        known = [found for found in each if found]
        squares = sum((share - sum(found) / len(found)) ** 2 for found in known for share in found)
        return squares, sum(len(found) - 1 for found in known)


@dataclass(frozen=True, slots=True)
class Agreement:
    """How many predictions agree with what was measured.

    Attributes:
        of: how many were checked.
        close: of these, within 10% by the seconds that went by.
        usual: of these, within 10% at the usual times of rounds.
        bounded: how many runs have an interval, see `Check.interval`.
        inside: of these, how many hold what was predicted, at the pace of the run.
    """

    of: int
    close: int
    usual: int
    bounded: int
    inside: int

    @property
    def told(self) -> str:
        """In words."""
        inside = f", {self.inside} of {self.bounded} within the 95% interval of the run"
        close = f"{self.close} of {self.of} within {WITHIN:.0%}"
        return f"{close} ({self.usual} at the usual times of rounds){inside * (self.bounded > 0)}"


def agreement(checks: Iterable[Check], *, rehearsed: bool) -> Agreement:
    """How predictions agree with runs.

    Args:
        checks: of any kind.
        rehearsed: whether to count those whose predictions come from short runs of the same
            configuration, or the others: by formula, or by replay.
    """
    counted = [
        (check, check.expected, check.interval)
        for check in checks
        if check.expected is not None and check.rehearsed == rehearsed
    ]
    return Agreement(
        of=len(counted),
        close=sum(abs(check.error or 0.0) <= WITHIN for check, _, _ in counted),
        usual=sum(abs(check.usual_error or 0.0) <= WITHIN for check, _, _ in counted),
        bounded=sum(interval is not None for _, _, interval in counted),
        inside=sum(
            interval is not None and interval[0] <= rate <= interval[1]
            for _, rate, interval in counted
        ),
    )


def told(checks: Sequence[Check]) -> tuple[str, ...]:
    """How predictions agree with runs, a line for each way of predicting."""
    kinds = (("by formula or replay", False), ("from short runs of the same", True))
    counted = [(kind, agreement(checks, rehearsed=rehearsed)) for kind, rehearsed in kinds]
    return tuple(f"predictions {kind}: {found.told}" for kind, found in counted if found.of)


def pooled(checks: Sequence[Check]) -> tuple[float, float | None, float | None]:
    """A configuration's speedup over all temperatures, and its 95% interval over prompts.

    A prompt is resampled with all of its repeats, at every temperature: none of them says anything
    of other prompts. There is no interval where fewer than two were run at some temperature.

    Args:
        checks: of one configuration, one for each temperature.
    """
    seen = [min(check.distinct, len(check.measured.seconds)) for check in checks]
    count = max(seen)

    def column(of: Callable[[Check], Sequence[float]]) -> list[float]:
        found: list[float] = []
        for check in checks:
            # An interrupt may have left prompts out.
            found += [*of(check), *[0.0] * (-len(of(check)) % count)]
        return found

    gain, low, high = compared(
        column(lambda check: check.plain.seconds),
        column(lambda check: check.plain.tokens),
        column(lambda check: check.measured.seconds),
        column(lambda check: check.measured.tokens),
        count,
    )
    return (gain, low, high) if min(seen) > 1 else (gain, None, None)
