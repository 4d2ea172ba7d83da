"""What a way of drafting will do to texts, exactly, from the distributions along them and what rounds cost.

Lossless speculation does not change the distribution of the text, only how it is cut into rounds. So the
text may be taken first, from plain decoding, and the distribution of the cuts given the text follows. Let
r_i = Q(x_i) / P(x_i) be the draft's over the target's probability of the text's own i-th token
after a round's start, each after the tokens before it. Given the text, a round keeps at least i
drafts with probability

    token:  min(1, r_1) ... min(1, r_i)
    block:  min over j <= i of min(1, r_1 ... r_j)

For token verification Q(x) min(1, P(x)/Q(x)) / P(x) = min(1, r). For block verification a node v is
kept with probability w(v) = min(w(parent) P(x), Q(v)) (`verification.ceilings`), and stopped at
before y with probability w(v) P(y) - w(vy); divided by the text's own probability these are the
running minimum and its steps. Both hold whatever the depth and whatever follows, so that one
recording of r gives every depth. Where every distribution is one atom r is 0 or 1.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidConfigError

EXACT = ("block", "token")
"""The methods whose rounds follow from a text and its ratios; "traversal" is "block" on chains."""

Rounds = NDArray[np.float64]
"""[R, W + 2]: the probability that in each of R rounds a sequence takes no part any more (column 0)
or takes part with w drafted tokens (column 1 + w)."""

Cost = Callable[[int, int], float]
"""Seconds of a round of so many sequences whose longest draft has so many tokens."""


def survival(ratios: NDArray[np.float64], method: str) -> NDArray[np.float64]:
    """The probability, given the text, that at least 1, 2, ... L drafts of a round are kept.

    Args:
        ratios: float64 [L], draft over target probability of the text's tokens from the round's
            start on.
        method: one of `EXACT`.

    Raises:
        InvalidConfigError: the method is another one.
    """
    if method == "token":
        return np.asarray(np.cumprod(np.minimum(ratios, 1.0)))
    if method == "block":
        return np.asarray(np.minimum.accumulate(np.minimum(np.cumprod(ratios), 1.0)))
    raise InvalidConfigError("method", method, f"one of {', '.join(EXACT)}")


def chain_rounds(ratios: NDArray[np.float64], depth: int, method: str) -> Rounds:
    """The rounds in which a text of n tokens is emitted, with chains of `depth` tokens.

    A round never drafts the last token of a text, as the engine does not.

    Args:
        ratios: float64 [n - 1], of all tokens but the last.
        depth: the depth of a draft, at least 0.
        method: one of `EXACT`.
    """
    length = len(ratios) + 1
    onward = np.zeros((length + 1, length + 1))
    onward[length, length] = 1.0
    drafted = np.zeros((length + 1, depth + 2))
    drafted[length, 0] = 1.0
    for start in range(length):
        width = min(depth, length - start - 1)
        kept = survival(ratios[start : start + width], method)
        reached = np.concatenate([[1.0], kept, [0.0]])
        onward[start, start + 1 : start + width + 2] = reached[:-1] - reached[1:]
        drafted[start, 1 + width] = 1.0
    place = np.zeros(length + 1)
    place[0] = 1.0
    found = []
    for _ in range(length):
        found.append(place @ drafted)
        place = place @ onward
    return np.array(found)


def known_rounds(drafted: Sequence[int]) -> Rounds:
    """Rounds that are certain, of these numbers of drafted tokens."""
    rounds = np.zeros((len(drafted), max(drafted, default=0) + 2))
    rounds[np.arange(len(drafted)), 1 + np.array(drafted, dtype=np.int64)] = 1.0
    return rounds


def expected_rounds(rounds: Rounds) -> float:
    """How many rounds a sequence takes part in, on average."""
    return float((1 - rounds[:, 0]).sum())


def expected_seconds(rows: Sequence[Rounds], cost: Cost) -> float:
    """How long sequences that start together take, on average, until the last of them is over.

    Rows are independent given their texts. A round costs what its number of sequences and its
    longest draft cost.

    Args:
        rows: of each sequence.
        cost: of a round.
    """
    longest = max(len(row) for row in rows)
    widest = max(row.shape[1] for row in rows) - 1
    seconds = 0.0
    known: dict[tuple[int, int], float] = {}
    for index in range(longest):
        # of how many take part (axis 0), and of the longest draft among them (axis 1)
        distribution = np.zeros((len(rows) + 1, widest))
        distribution[0, 0] = 1.0
        for row in rows:
            if index >= len(row):
                continue
            own = np.zeros(widest)
            own[: row.shape[1] - 1] = row[index, 1:]
            up_to = np.cumsum(distribution, axis=1)
            joined = own * up_to + np.cumsum(own) * distribution - own * distribution
            distribution = distribution * row[index, 0]
            distribution[1:] += joined[:-1]
        for taking_part, width in np.argwhere(distribution[1:] > 1e-15).tolist():
            key = (taking_part + 1, width)
            if key not in known:
                known[key] = cost(*key)
            seconds += float(distribution[key]) * known[key]
    return seconds


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of rounds, measured at some sizes; in between by straight lines.

    Attributes:
        points: for (sequences, tokens drafted for each), the seconds of a round.
    """

    points: Mapping[tuple[int, int], float]

    def __call__(self, rows: int, width: int) -> float:
        """Seconds of a round of `rows` sequences that drafts `width` tokens for each.

        Beyond the sizes measured the nearest one stands.
        """
        curves: dict[int, float] = {}
        for count in sorted({measured for measured, _ in self.points}):
            line = sorted((w, s) for (r, w), s in self.points.items() if r == count)
            curves[count] = between(line, width)
        return between(sorted(curves.items()), rows)

    def shifted(self, seconds: float) -> Costs:
        """The same with `seconds` more for each round."""
        return Costs({size: found + seconds for size, found in self.points.items()})


def between(points: Sequence[tuple[int, float]], place: int) -> float:
    """The value at `place` of the lines through points in ascending order, flat outside them."""
    places = [known for known, _ in points]
    right = bisect_left(places, place)
    if right == len(points):
        return points[-1][1]
    if right == 0 or places[right] == place:
        return points[right][1]
    (left_place, low), (right_place, high) = points[right - 1], points[right]
    return low + (high - low) * (place - left_place) / (right_place - left_place)
