"""How much more a round takes the longer its sequences are."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from math import copysign, exp, log2
from statistics import median

_ROUNDS = 256
"""How many rounds of a kind are remembered, about: a few texts, that begin short and end long."""

_OFF = 0.25
"""By how much a round may be off what is known of its kind: more was other work of the machine."""

_LEAST = 0.1
"""What a round takes of the mean of its kind at least, by its length."""

_FIRST = 5
"""How many rounds of a kind are waited for to tell what it takes: one may be a slow moment."""

_OVER = 8
"""After how many rounds in a row that were off as far as that, and alike, what a kind takes is told
anew: the machine has other work than it had, or no longer has it."""

_BEYOND = 1.5
"""At how many times the greatest length that was measured rounds are thought to grow no more."""

_BELIEVED = 2e4
"""What the squares of lengths have to add up to for what they tell to count half. Rounds are off by
a twentieth, and a token lengthens them by a few thousandths at most: until then it is all noise."""

_SETTLED = 10 * _BELIEVED
"""From where on the length that all are compared with stays: what was measured before is not to
look longer or shorter for that."""

_OCTAVES = 0.7
"""How far rounds of so many sequences tell of others: of half or twice as many they count .36."""

_MOST = 0.75
"""How much of a round may be due to its length at most."""

_KINDS = 512
"""Of how many kinds of rounds it is remembered what they took."""

_TOGETHER = 16
"""How many rounds are learnt from in one go. One by one takes several times as long, and what
hundreds of rounds tell does not hang on the last few."""


_Sums = tuple[float, float, float]
"""Those that a slope is told by: of squares, of products, and of products by mean lengths."""


@dataclass(slots=True)
class _Kind:
    """Running moments of the rounds of a kind: of their lengths and of what they took.

    Attributes:
        first: lengths and seconds of the first ones, until there are `_FIRST`; again where what
            they take is over.
        count: how many are counted, up to `_ROUNDS`.
        length, seconds: their means.
        varied, together: the variance of the lengths, and the covariance of length and time, in
            terms of the mean time.
        over: how many in a row were off as far as they may be; less than 0 for too little.
    """

    first: list[tuple[float, float]] = field(default_factory=list)
    count: int = 0
    length: float = 0.0
    seconds: float = 0.0
    varied: float = 0.0
    together: float = 0.0
    over: float = 0.0

    def add(self, length: float, seconds: float) -> None:
        """Count a round."""
        if len(self.first) == _FIRST:
            self._count(length, seconds)
            if abs(self.over) >= _OVER:
                self.first.clear()
            return
        self.first.append((length, seconds))
        if len(self.first) == _FIRST:
            self.over = 0
            self.seconds = median(took / self._expected(at) for at, took in self.first)
            for each in self.first:
                self._count(*each)

    def _expected(self, length: float) -> float:
        """What a round of a length takes beside the mean."""
        slope = max(self.together, 0.0) / (self.varied + _BELIEVED / max(self.count, 1))
        return max(1 + slope * (length - self.length), _LEAST)

    def _count(self, length: float, seconds: float) -> None:
        self.count = min(self.count + 1, _ROUNDS)
        share = 1 / self.count
        further = length - self.length
        expected = self._expected(length)
        off = min(max(seconds / self.seconds / expected - 1, -_OFF), _OFF)
        one = copysign(1, off)
        self.over = 0 if abs(off) < _OFF else one + self.over * (one * self.over > 0)
        longer = expected * (1 + off) - 1
        more = 1 + share * longer
        self.length += share * further
        self.seconds *= more
        self.varied = (1 - share) * (self.varied + share * further * further)
        self.together = (1 - share) * (self.together + share * further * longer) / more

    @property
    def sums(self) -> _Sums:
        """Of its rounds."""
        products = self.count * self.together
        return self.count * self.varied, products, products * self.length


class Growing:
    """Learns how rounds grow with the length of their sequences, by how many these are.

    Reading what attention looks at takes a time of its own for every token, of a batch a good part
    of a round. What plain rounds took in one text would else be compared with what drafting took at
    the beginning of another. All widths of rounds of as many sequences are thought to grow alike,
    in terms of what they take: more tokens look at as many.

    Least squares within kinds of rounds, that have as many sequences and about as many tokens for
    each; the slope beside nothing that is expected beforehand.
    """

    def __init__(self) -> None:
        self._kinds: dict[tuple[int, Hashable], _Kind] = {}
        self._sums: dict[int, _Sums] = {}
        self._waiting: list[tuple[int, Hashable, float, float]] = []
        self._told: dict[int, float] = {}
        self._count, self._usual, self._longest = 0, 0.0, 0.0
        self._settled = False

    def add(self, rows: int, kind: Hashable, length: float, seconds: float) -> None:
        """Count a round.

        Args:
            rows: how many sequences it had.
            kind: what else it takes its time for: rounds of a kind differ by their length.
            length: of the sequences, by the mean.
            seconds: what it took; nothing is told by 0.
        """
        if seconds <= 0:
            return
        self._waiting.append((rows, kind, length, seconds))
        if len(self._waiting) >= _TOGETHER:
            for each in self._waiting:
                self._learn(*each)
            self._waiting.clear()
            self._told.clear()
            self._settled |= sum(squares for squares, *_ in self._sums.values()) > _SETTLED

    def _learn(self, rows: int, kind: Hashable, length: float, seconds: float) -> None:
        """Learn from a round."""
        self._longest = max(self._longest, length)
        if not self._settled:
            self._count += 1
            self._usual += (length - self._usual) / self._count
        name = rows, kind
        alike = self._kinds.pop(name, None) or _Kind()
        before = alike.sums
        alike.add(length, seconds)
        self._change(rows, before, alike.sums)
        # The latest comes last.
        self._kinds[name] = alike
        if len(self._kinds) > _KINDS:
            oldest = next(iter(self._kinds))
            self._change(oldest[0], self._kinds.pop(oldest).sums, _Kind().sums)

    def _change(self, rows: int, before: _Sums, after: _Sums) -> None:
        """Of a kind of rounds of so many sequences there are other sums."""
        squares, products, weighted = self._sums.get(rows, (0.0, 0.0, 0.0))
        self._sums[rows] = (
            squares + after[0] - before[0],
            products + after[1] - before[1],
            weighted + after[2] - before[2],
        )

    def times(self, rows: int, length: float) -> float:
        """How many times as long rounds of so many sequences take as at a usual length."""
        per_token = self._told.get(rows)
        if per_token is None:
            per_token = self._told[rows] = self._per_token(rows)
        limit = _BEYOND * self._longest
        return (1 + per_token * min(length, limit)) / (1 + per_token * self._usual)

    def _per_token(self, rows: int) -> float:
        """What a token adds for so many sequences, beside a round of none.

        Of a kind with a mean length m, a round of that length takes 1 + m c times what one of none
        does, so that its products P are c / (1 + m c) times its squares S; in all, the sum of P is
        c times that of S - m P.
        """
        squares = products = weighted = 0.0
        for other, own in self._sums.items():
            near = exp(-0.5 * (log2(other / rows) / _OCTAVES) ** 2)
            squares, products = squares + near * own[0], products + near * own[1]
            weighted += near * own[2]
        # What is left after kinds were forgotten may be rounding.
        if products <= 0 or squares < 1:
            return 0.0
        squares += _BELIEVED
        return products / max(squares - weighted, (1 - _MOST) * squares)

    def scale(self, factor: float) -> None:
        """Go on as if all had taken so many times as long."""
        for kind in self._kinds.values():
            kind.seconds *= factor
            kind.first = [(length, seconds * factor) for length, seconds in kind.first]
        self._waiting = [
            (rows, kind, length, seconds * factor) for rows, kind, length, seconds in self._waiting
        ]
