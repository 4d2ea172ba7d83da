"""Figures about speculation, each with one definition, reduced from round records.

Acceptance rate is accepted over drafted tokens, all of a tree's included. Acceptance length is
tokens emitted per round that drafted, the correction or bonus included. Acceptance at a position is
the share of the rounds that drafted that deep in which a token was accepted there.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import sqrt

from .records import RoundRecord


@dataclass(frozen=True, slots=True)
class SpeculationMetrics:
    """What a number of rounds did. Counts are over rows: a round of B rows counts B times.

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
        draft_failures: rounds that decoded plainly because the drafter failed.
        lossy: whether the output's law was allowed to differ from the target's.
        ceiling: the most tokens that any lossless verifier emits on average in a round that drafts
            as these rounds did (on chains the sum of the block recursion's p_i, on trees of point
            masses the sum of p(v)), an unbiased estimate; None unless it is known of every round.
        ceiling_error: its standard error; None with fewer than two rounds.
        first_ceiling: the greatest share of rounds in which any lossless verifier keeps one of a
            tree's first tokens, to set beside `per_position[0]`; None where none is known.
        first_ceiling_error: its standard error; None with fewer than two rounds.
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
    first_ceiling: float | None = None
    first_ceiling_error: float | None = None

    @property
    def ceiling_interval(self) -> tuple[float, float] | None:
        """Where the ceiling lies with a confidence of 95%, by its standard error."""
        if self.ceiling is None or self.ceiling_error is None:
            return None
        return (
            self.ceiling - 1.96 * self.ceiling_error,
            self.ceiling + 1.96 * self.ceiling_error,
        )

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
    def other_s(self) -> float:
        """Seconds in rounds that were neither proposing nor in the target's forward pass."""
        return self.total_s - self.draft_s - self.target_s

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens emitted per second of rounds; None before the first."""
        return self.emitted / self.total_s if self.total_s > 0 else None


class _Sums:
    """The mean of numbers, and its standard error."""

    def __init__(self) -> None:
        self.count = 0
        self._sum = 0.0
        self._squares = 0.0

    def add(self, value: float | None) -> None:
        """Count a number; None counts for nothing."""
        if value is not None:
            self.count += 1
            self._sum += value
            self._squares += value * value

    @property
    def mean(self) -> float | None:
        """None without numbers."""
        return self._sum / self.count if self.count else None

    @property
    def error(self) -> float | None:
        """None with fewer than two numbers."""
        if self.count < 2:
            return None
        mean = self._sum / self.count
        spread = max(0.0, self._squares / self.count - mean * mean)
        return sqrt(spread / (self.count - 1))


class Tally:
    """Adds rounds up. Times of a round are added once, whatever the number of its rows.

    Args:
        lossy: whether the rounds' output may differ from the target's law.
    """

    def __init__(self, *, lossy: bool = False) -> None:
        self._lossy = lossy
        self._ceilings = _Sums()
        self._first_ceilings = _Sums()
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
                self._ceilings.add(record.ceiling[i])
                self._first_ceilings.add(record.first_ceiling[i])
        self._failures += record.draft_failed
        self._draft_s += record.draft_s
        self._target_s += record.target_s
        self._total_s += record.total_s

    def metrics(self) -> SpeculationMetrics:
        """The figures so far."""
        rows = self._rows.items()
        most, first = self._ceilings, self._first_ceilings
        draft_rounds = sum(n for (drafted, _, _, _), n in rows if drafted)
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
            lossy=self._lossy,
            # Only over the same rounds as the acceptance length that it stands beside.
            ceiling=most.mean if most.count == draft_rounds else None,
            ceiling_error=most.error if most.count == draft_rounds else None,
            first_ceiling=first.mean if first.count == draft_rounds else None,
            first_ceiling_error=first.error if first.count == draft_rounds else None,
        )
