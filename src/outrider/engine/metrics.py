"""Figures about speculation, each with one definition, reduced from round records.

Acceptance rate is accepted over drafted tokens, all of a tree's included. Acceptance length is
tokens emitted per round that drafted, the correction or bonus included. Acceptance at a position is
the share of the rounds that drafted that deep in which a token was accepted there.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from threading import Lock

import numpy as np

from ..types.records import RoundRecord

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class SpeculationMetrics:
    """What a number of rounds did. Counts are over rows: a round of B rows counts B times.

    As a text it is a line for what became of the drafts, and one for the speed. Properties give
    what follows from the counts: `acceptance_rate`, `acceptance_length`, `per_position`, `depths`,
    `tokens_per_s` and others.

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
        ceiling_interval: where it lies with a confidence of 95%, by its standard error; None with
            fewer than two rounds.
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
    ceiling_interval: Interval | None = None

    def __str__(self) -> str:
        lines = [*_draft_lines(self), _speed_line(self)]
        if not self.lossy:
            return "\n".join(lines)
        labelled = "\n".join(f"lossy: {line}" for line in lines)
        return f"lossy: the output's distribution is not the target's\n{labelled}"

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
    """Describe what became of the drafts, in a line or two."""
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
    if metrics.draft_failures:
        failed = _counted(metrics.draft_failures, "round")
        lines.append(f"the drafter failed in {failed}; those requests went on without drafts")
    return lines


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


class Tally:
    """Adds rounds up. Times of a round are added once, whatever the number of its rows.

    Args:
        lossy: whether the rounds' output may differ from the target's distribution.
    """

    def __init__(self, *, lossy: bool = False) -> None:
        self.lossy = lossy
        self._lock = Lock()
        self._rows: Counter[tuple[int, int, int, int]] = Counter()
        # How many are known, their sum, and that of their squares.
        self._ceilings = np.zeros(3)
        # Of drafting, of the target, and of whole rounds.
        self._seconds = np.zeros(3)
        self._failures = 0

    def add(self, record: RoundRecord, row: int | None = None) -> None:
        """Count a round: all of its rows, or one."""
        counts = (record.drafted, record.depth, record.accepted, record.emitted)
        with self._lock:
            for index in range(len(record.drafted)) if row is None else (row,):
                drafted, depth, accepted, emitted = (column[index] for column in counts)
                self._rows[drafted, depth, accepted, emitted] += 1
                ceiling = record.ceiling[index]
                if drafted and ceiling is not None:
                    self._ceilings += 1, ceiling, ceiling * ceiling
            self._failures += record.draft_failed
            self._seconds += record.draft_s, record.target_s, record.total_s

    def metrics(self) -> SpeculationMetrics:
        """The figures so far."""
        with self._lock:
            rows = dict(self._rows)
            known, total, squares = self._ceilings.tolist()
            draft_s, target_s, total_s = self._seconds.tolist()
        draft_rounds = sum(n for row, n in rows.items() if row[0])
        deepest = max((row[1] for row in rows), default=0)
        drafted, _, accepted, emitted = (
            sum(n * row[place] for row, n in rows.items()) for place in range(4)
        )
        # Only over the same rounds as the acceptance length that it stands beside.
        ceiling = total / known if known and known == draft_rounds else None
        return SpeculationMetrics(
            rounds=sum(rows.values()),
            draft_rounds=draft_rounds,
            drafted=drafted,
            accepted=accepted,
            emitted=emitted,
            emitted_in_draft_rounds=sum(n * row[3] for row, n in rows.items() if row[0]),
            drafted_at=tuple(
                sum(n for row, n in rows.items() if row[1] > i) for i in range(deepest)
            ),
            accepted_at=tuple(
                sum(n for row, n in rows.items() if row[2] > i) for i in range(deepest)
            ),
            draft_s=draft_s,
            target_s=target_s,
            total_s=total_s,
            draft_failures=self._failures,
            lossy=self.lossy,
            ceiling=ceiling,
            ceiling_interval=None if ceiling is None else _interval(ceiling, squares, known),
        )


def _interval(mean: float, squares: float, count: float) -> Interval | None:
    """The values within 1.96 standard errors of the mean of `count` values; None of one."""
    if count < 2:
        return None
    error = 1.96 * sqrt(max(0.0, squares / count - mean * mean) / (count - 1))
    return mean - error, mean + error
