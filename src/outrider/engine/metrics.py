"""Figures about speculation, each with one definition, reduced from round records.

Acceptance rate is accepted over drafted tokens, all of a tree's included. Acceptance length is
tokens emitted per round that drafted, the correction or bonus included. Acceptance at a position is
the share of the rounds that drafted that deep in which a token was accepted there. The share of a
ceiling is a ratio of two means over the rounds that drafted: of what was reached, and of the most
that could have been.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt

from ..types.records import RoundRecord

_KNOWN_TO = 0.1
"""A share of a ceiling is printed as a figure if it is known to within this."""


@dataclass(frozen=True, slots=True)
class SpeculationMetrics:
    """What a number of rounds did. Counts are over rows: a round of B rows counts B times.

    As a text it is a line each for what became of the drafts, for their ceiling where one is known,
    and for the speed. Properties give what follows from the counts: `acceptance_rate`,
    `acceptance_length`, `per_position`, `depths`, `ceiling_share`, `tokens_per_s` and others.

    Attributes:
        rounds: rounds, those that drafted nothing included.
        draft_rounds: rounds that drafted at least one token.
        drafted: tokens drafted.
        accepted: drafted tokens emitted.
        emitted: tokens emitted.
        emitted_in_draft_rounds: tokens emitted in rounds that drafted.
        drafted_at: rounds that drafted a first, second, ... token.
        accepted_at: rounds in which that token was accepted.
        draft_s: seconds spent proposing.
        target_s: seconds spent in the target's forward passes.
        total_s: seconds spent in rounds.
        draft_failures: rounds in which the drafter failed.
        lossy: whether the output's distribution was allowed to differ from the target's.
        ceiling: the most tokens that any lossless verifier emits on average in a round that drafts
            as these rounds did (on chains the sum of the block recursion's p_i, on trees of point
            masses the sum of p(v)), an unbiased estimate; None unless it is known of every round.
        ceiling_error: its standard error; None with fewer than two rounds.
        ceiling_share_error: the standard error of `ceiling_share`, likewise.
        first_ceiling: the greatest share of rounds in which any lossless verifier keeps one of a
            tree's first tokens, to set beside `per_position[0]`; None where none is known.
        first_ceiling_error: its standard error; None with fewer than two rounds.
        first_ceiling_share_error: the standard error of `first_ceiling_share`, likewise.
    """

    rounds: int
    draft_rounds: int
    drafted: int
    accepted: int
    emitted: int
    emitted_in_draft_rounds: int
    drafted_at: tuple[int, ...]
    accepted_at: tuple[int, ...]
    draft_s: float
    target_s: float
    total_s: float
    draft_failures: int = 0
    lossy: bool = False
    ceiling: float | None = None
    ceiling_error: float | None = None
    ceiling_share_error: float | None = None
    first_ceiling: float | None = None
    first_ceiling_error: float | None = None
    first_ceiling_share_error: float | None = None

    def __str__(self) -> str:
        lines = [*_draft_lines(self), _speed_line(self)]
        if not self.lossy:
            return "\n".join(lines)
        labelled = "\n".join(f"lossy: {line}" for line in lines)
        return f"lossy: the output's distribution is not the target's\n{labelled}"

    @property
    def ceiling_interval(self) -> tuple[float, float] | None:
        """Where the ceiling lies with a confidence of 95%, by its standard error."""
        return _interval(self.ceiling, self.ceiling_error)

    @property
    def ceiling_share(self) -> float | None:
        """Acceptance length over ceiling: how much of what could be emitted was.

        Both are means over the rounds that drafted, and estimates, so that the best method may
        come out above 1 by noise, and a lossy one by right. What a stop rule cut off does not
        count as emitted. None where no ceiling is known.
        """
        return _share(self.acceptance_length, self.ceiling)

    @property
    def ceiling_share_interval(self) -> tuple[float, float] | None:
        """Where the share lies with a confidence of 95%, by its standard error.

        That is the error of a ratio of means over the same rounds (Cochran 1977, section 2.11): a
        round with a high ceiling often emits much, and what they have in common cancels.
        """
        return _interval(self.ceiling_share, self.ceiling_share_error)

    @property
    def first_ceiling_share(self) -> float | None:
        """The share of rounds that kept a first token over its ceiling, as `ceiling_share`."""
        return _share(self.per_position[0] if self.draft_rounds else None, self.first_ceiling)

    @property
    def first_ceiling_share_interval(self) -> tuple[float, float] | None:
        """As `ceiling_share_interval`."""
        return _interval(self.first_ceiling_share, self.first_ceiling_share_error)

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted over drafted tokens; None if nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def acceptance_length(self) -> float | None:
        """Tokens emitted per round that drafted; None if none did."""
        return self.emitted_in_draft_rounds / self.draft_rounds if self.draft_rounds else None

    @property
    def per_position(self) -> tuple[float, ...]:
        """The share of rounds drafting an i-th token that accepted it."""
        pairs = zip(self.accepted_at, self.drafted_at, strict=True)
        return tuple(accepted / drafted for accepted, drafted in pairs)

    @property
    def depths(self) -> tuple[int, ...]:
        """How many rounds drafted to a depth of 0, of 1, and so on to the deepest."""
        deeper = (self.rounds, *self.drafted_at, 0)
        return tuple(at_least - more for at_least, more in pairwise(deeper))

    @property
    def other_s(self) -> float:
        """Seconds in rounds that were neither proposing nor in the target's forward pass."""
        return self.total_s - self.draft_s - self.target_s

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens emitted per second of rounds; None before the first."""
        return self.emitted / self.total_s if self.total_s > 0 else None


def _draft_lines(metrics: SpeculationMetrics) -> list[str]:
    """Describe what became of the drafts, and their ceilings where some are known."""
    rate, length = metrics.acceptance_rate, metrics.acceptance_length
    if rate is None or length is None:
        lines = ["draft acceptance = none (nothing was drafted)"]
    else:
        positions = ", ".join(f"{share:.3f}" for share in metrics.per_position)
        lines = [
            f"draft acceptance = {rate:.3f} ({metrics.accepted} accepted / {metrics.drafted} "
            f"drafted), mean acceptance length = {length:.2f}, per position = ({positions}), "
            f"over {_counted(metrics.draft_rounds, 'round')} that drafted"
        ]
        if metrics.ceiling is not None and metrics.ceiling_error is not None:
            lines.append(
                f"estimated ceiling = {metrics.ceiling:.2f} +- {1.96 * metrics.ceiling_error:.2f} "
                "tokens a round, the most that any lossless verification emits on average from "
                "such drafts"
                + _share_text(metrics.ceiling_share, metrics.ceiling_share_error, metrics.lossy)
            )
        if metrics.first_ceiling is not None and metrics.first_ceiling_error is not None:
            share, error = metrics.first_ceiling_share, metrics.first_ceiling_share_error
            lines.append(
                f"estimated ceiling = {metrics.first_ceiling:.3f} +- "
                f"{1.96 * metrics.first_ceiling_error:.3f} for the share of rounds that keep a "
                f"token ({metrics.per_position[0]:.3f} did)"
                + _share_text(share, error, metrics.lossy)
            )
    if metrics.draft_failures:
        failed = _counted(metrics.draft_failures, "round")
        lines.append(f"the drafter failed in {failed}; those requests went on without drafts")
    return lines


def _share_text(share: float | None, error: float | None, lossy: bool) -> str:
    """Describe what share of a ceiling was reached; of zero there is none."""
    if share is None:
        return ""
    if error is None or 1.96 * error > _KNOWN_TO:
        return "; more rounds are needed to say how much of it was reached"
    if share > 1 >= share - 1.96 * error and not lossy:
        return f"; all of it was reached, within the estimate's error (+- {1.96 * error:.1%})"
    return f"; {share:.1%} +- {1.96 * error:.1%} of it was reached"


def _speed_line(metrics: SpeculationMetrics) -> str:
    """Describe how fast tokens came."""
    speed, rounds = metrics.tokens_per_s or 0.0, max(metrics.rounds, 1)
    return (
        f"{_counted(metrics.emitted, 'token')} in {metrics.total_s:.2f} s = {speed:.1f} tokens/s, "
        f"prompt included; {_counted(metrics.rounds, 'round')}, {metrics.emitted / rounds:.2f} "
        "tokens a round"
    )


def _counted(count: int, name: str) -> str:
    return f"{count} {name}{'s' * (count != 1)}"


def _interval(value: float | None, error: float | None) -> tuple[float, float] | None:
    """The values within 1.96 standard errors."""
    if value is None or error is None:
        return None
    return value - 1.96 * error, value + 1.96 * error


def _share(reached: float | None, ceiling: float | None) -> float | None:
    return reached / ceiling if reached is not None and ceiling else None


class _Ceilings:
    """What rounds reached beside their ceilings: means, and the errors of mean and ratio."""

    def __init__(self) -> None:
        self.count = 0
        self._reached = 0.0
        self._ceiling = 0.0
        self._reached_squared = 0.0
        self._product = 0.0
        self._ceiling_squared = 0.0

    def add(self, reached: float, ceiling: float | None) -> None:
        """Count a round; one without a ceiling counts for nothing."""
        if ceiling is not None:
            self.count += 1
            self._reached += reached
            self._ceiling += ceiling
            self._reached_squared += reached * reached
            self._product += reached * ceiling
            self._ceiling_squared += ceiling * ceiling

    def means(self, rounds: int) -> tuple[float | None, float | None, float | None]:
        """The mean ceiling, its standard error, and that of the share reached.

        None unless all of `rounds` had a ceiling; errors only of two rounds or more, and that of a
        share only of a ceiling above zero.
        """
        if self.count == 0 or self.count != rounds:
            return None, None, None
        mean = self._ceiling / self.count
        if self.count < 2:
            return mean, None, None
        error = self._error(self._ceiling_squared / self.count - mean * mean)
        if mean == 0:
            return mean, error, None
        share = self._reached / self._ceiling
        # Of what a round reached beyond its ceiling's share: its mean is zero.
        spread = self._reached_squared - 2 * share * self._product
        spread += share * share * self._ceiling_squared
        return mean, error, self._error(spread / self.count) / mean

    def _error(self, variance: float) -> float:
        return sqrt(max(0.0, variance) / (self.count - 1))


class Tally:
    """Adds rounds up. Times of a round are added once, whatever the number of its rows.

    Args:
        lossy: whether the rounds' output may differ from the target's distribution.
    """

    def __init__(self, *, lossy: bool = False) -> None:
        self.lossy = lossy
        self._ceilings = _Ceilings()
        self._first_ceilings = _Ceilings()
        self._rows: Counter[tuple[int, int, int, int]] = Counter()
        self._draft_s = 0.0
        self._target_s = 0.0
        self._total_s = 0.0
        self._failures = 0

    def add(self, record: RoundRecord, row: int | None = None) -> None:
        """Count a round: all of its rows, or one."""
        rows = range(len(record.drafted)) if row is None else (row,)
        self._rows.update(
            (record.drafted[i], record.depth[i], record.accepted[i], record.emitted[i])
            for i in rows
        )
        for i in rows:
            if record.drafted[i]:
                self._ceilings.add(record.emitted[i], record.ceiling[i])
                self._first_ceilings.add(record.accepted[i] > 0, record.first_ceiling[i])
        self._failures += record.draft_failed
        self._draft_s += record.draft_s
        self._target_s += record.target_s
        self._total_s += record.total_s

    def metrics(self) -> SpeculationMetrics:
        """The figures so far."""
        rows = self._rows.items()
        draft_rounds = sum(n for (drafted, _, _, _), n in rows if drafted)
        # Only over the same rounds as the acceptance length that it stands beside.
        most, most_error, most_share_error = self._ceilings.means(draft_rounds)
        first, first_error, first_share_error = self._first_ceilings.means(draft_rounds)
        deepest = max((depth for _, depth, _, _ in self._rows), default=0)
        return SpeculationMetrics(
            rounds=self._rows.total(),
            draft_rounds=draft_rounds,
            drafted=sum(n * drafted for (drafted, _, _, _), n in rows),
            accepted=sum(n * accepted for (_, _, accepted, _), n in rows),
            emitted=sum(n * emitted for (_, _, _, emitted), n in rows),
            emitted_in_draft_rounds=sum(
                n * emitted for (drafted, _, _, emitted), n in rows if drafted
            ),
            drafted_at=tuple(
                sum(n for (_, depth, _, _), n in rows if depth > i) for i in range(deepest)
            ),
            accepted_at=tuple(
                sum(n for (_, _, accepted, _), n in rows if accepted > i) for i in range(deepest)
            ),
            draft_s=self._draft_s,
            target_s=self._target_s,
            total_s=self._total_s,
            draft_failures=self._failures,
            lossy=self.lossy,
            ceiling=most,
            ceiling_error=most_error,
            ceiling_share_error=most_share_error,
            first_ceiling=first,
            first_ceiling_error=first_error,
            first_ceiling_share_error=first_share_error,
        )
