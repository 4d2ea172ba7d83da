"""What something costs by its size: lines through recent times, robust against slow moments."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from math import log, log2
from statistics import median
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

Size = TypeVar("Size", bound=Hashable)

FEW = 3
"""From so many on, measurements stand for themselves: one of them may have been slow."""

RECENT = 12
"""How many readings of a drafter are looked at."""

_WINDOW = 31
"""How many times of one size are looked at."""

_SIZES = 24
"""How many sizes are remembered."""

_FADING = 0.97
"""What a size weighs beside one measured a round later."""

_IDLE, _ENOUGH = 0.993, 12
"""What all of a kind weighs a round later, if so many times of it are remembered: drafts that did
not pay are not to look cheaper for not being made. Fewer times may all have been slow moments."""

_GAP = 128
"""A time counts for so many rounds, or until there is another: what the machine was like may be
over. Of two of a size the lesser stands for all, so that what was slow once is tried."""

_RELAXING = 0.99
"""What is left of a slope after each measurement while x does not vary. More x is then thought to
cost less and less, so that it is tried, and not shunned for what it once cost."""

_OTHERS = 0.25
"""What all measurements of another kind at one size weigh, at most: they say something where there
are none of the own."""

_OCTAVES = 0.7
"""How far measurements reach: at half or twice the size they weigh .36, at four times .02."""

_NOWHERE = 1e-6
"""What a measurement weighs at least, however far off: the nearest one stands for all then."""

_BELIEVED = 0.5
"""For how many measurements an octave off an exponent counts that is thought of beforehand."""

_STEPS = 0.035
"""By how much the logarithm of what a size takes is thought to be off a smooth curve: products of
matrices are made in blocks, and three rows may take no longer than two."""

_STEEPEST = 3.0
"""How many times that it may be at most: more was other work of the machine."""

_BEYOND = 0.5
"""The least exponent beyond the largest size that was measured: not to try it at any price."""

_LEAST = 1e-9
"""What takes no time by a clock that stands still, in seconds."""


class Times(Generic[Size]):
    """The recent times of each size, each with a weight: how many there are, fading with age.

    The first n rows of the arrays are of the n sizes that are remembered, in any order.
    """

    def __init__(self) -> None:
        self._now = 0
        self._rows: dict[Size, int] = {}
        self._found: list[deque[tuple[int, float]]] = []
        self._usual = np.zeros(_SIZES)
        self._counts = np.zeros(_SIZES)
        self._last = np.zeros(_SIZES)

    def __len__(self) -> int:
        return len(self._rows)

    def count(self, size: Size) -> int:
        """How many times of a size are remembered."""
        row = self._rows.get(size)
        return 0 if row is None else len(self._found[row])

    def usually(self, size: Size) -> float:
        """What a size usually takes; 0 where it was not measured."""
        row = self._rows.get(size)
        return 0.0 if row is None else float(self._usual[row])

    def add(self, size: Size, y: float, now: int | None = None) -> tuple[int, float]:
        """Count a measurement.

        Args:
            size: what was measured.
            y: what it took.
            now: the number of the round, to tell what is old; None for the next one.

        Returns:
            The row of the size, and what it usually takes now.
        """
        self._now = self._now + 1 if now is None else now
        row = self._row(size)
        found = self._found[row]
        while len(found) > 1 and self._now - found[0][0] > _GAP:
            found.popleft()
        found.append((self._now, max(y, 0.0)))
        times = [y for _, y in found]
        usual = median(times) if len(times) > 2 else min(times)
        self._usual[row], self._counts[row], self._last[row] = usual, len(found), self._now
        return row, usual

    def forget(self, size: Size) -> None:
        """What a size took, once there is another time of it."""
        if size in self._rows:
            self._found[self._rows[size]].clear()

    def change(self, becomes: Callable[[int, float], float]) -> None:
        """Go on as if all had taken something else, by their rows and what they took."""
        for row, found in enumerate(self._found):
            times = [(then, becomes(row, y)) for then, y in found]
            found.clear()
            found.extend(times)
            self._usual[row] = becomes(row, self._usual[row])

    def _row(self, size: Size) -> int:
        """That of a size; of a new one the next, or that of the size measured longest ago."""
        row = self._rows.get(size)
        if row is None and len(self._rows) < _SIZES:
            row = self._rows[size] = len(self._rows)
            self._found.append(deque(maxlen=_WINDOW))
        elif row is None:
            row = int(self._last.argmin())
            del self._rows[next(old for old, taken in self._rows.items() if taken == row)]
            self._rows[size] = row
            self._found[row].clear()
        return row

    @property
    def usual(self) -> NDArray[np.float64]:
        """What each row usually takes, float64 [n]."""
        return self._usual[: len(self._rows)]

    @property
    def counts(self) -> NDArray[np.float64]:
        """How many times of each row are remembered, float64 [n]."""
        return self._counts[: len(self._rows)]

    @property
    def weights(self) -> NDArray[np.float64]:
        """Of each row, float64 [n]."""
        count = len(self._rows)
        return np.asarray(self._counts[:count] * _FADING ** (self._now - self._last[:count]))

    def weights_by(self, kinds: NDArray[np.bool_]) -> NDArray[np.float64]:
        """The same where rows are of two kinds, bool [n], each of them by its newest row."""
        last, weights = self._last[: len(kinds)], self._counts[: len(kinds)].copy()
        for rows in (kinds, ~kinds):
            if rows.any():
                newest = last[rows].max()
                idle = _IDLE if weights[rows].sum() >= _ENOUGH else _FADING
                weights[rows] *= _FADING ** (newest - last[rows]) * idle ** (self._now - newest)
        return weights


class Line:
    """A running fit of y = level + slope x, by least squares through what each x usually takes.

    Half of the times of an x may be slow moments, and an x fades while others are measured. The
    slope is learnt while x varies, and relaxes while it does not. Both parts are kept from going
    below 0.

    Args:
        least: what a slope that is not measured is at least, beside the mean of y over that of x.
    """

    def __init__(self, least: float = 0.0) -> None:
        self._least = least
        self._slope = 0.0
        self._level = 0.0
        self._times = Times[float]()
        self._sizes = np.zeros(_SIZES)
        self._new = 0

    def add(self, x: float, y: float, now: int | None = None) -> None:
        """Count a measurement; see `Times.add`."""
        row, _ = self._times.add(x, y, now)
        self._sizes[row] = x
        self._new += 1

    @property
    def count(self) -> float:
        """How many times are remembered."""
        return float(self._times.counts.sum())

    def scale(self, factor: float) -> None:
        """Go on as if all had taken so many times as long."""
        self._times.change(lambda _, y: y * factor)
        self._slope *= factor
        self._level *= factor

    def cap(self, x: float, y: float) -> None:
        """An x took y: less of it no longer, and more no longer than in proportion."""
        self._times.change(lambda row, old: min(old, y * max(1.0, self._sizes[row] / x)))
        self._new += 1

    def at(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """The expected y of each x."""
        if self._new:
            self._fit()
        return self._level + self._slope * x

    def _fit(self) -> None:
        """Take what was measured since into account: asked for less often than something is."""
        # Once: another thread may be adding.
        new, count = self._new, len(self._times)
        found, usual = self._sizes[:count], self._times.usual[:count]
        weights = self._times.weights[:count]
        weights /= weights.sum()
        mean_x, mean_y = float(weights @ found), float(weights @ usual)
        off = found - mean_x
        spread = float(weights @ off**2)
        if spread > 0.05 * max(1.0, mean_x):
            self._slope = max(float(weights @ (off * (usual - mean_y))) / spread, 0.0)
        elif mean_x > 0:
            relaxed = self._slope * _RELAXING**new
            self._slope = max(relaxed, self._least * mean_y / mean_x)
        if mean_x > 0:
            self._slope = min(self._slope, mean_y / mean_x)
        self._level = mean_y - self._slope * mean_x
        self._new -= new


class Curve:
    """What a size usually takes, be it no line: a power of the size around each one.

    Local linear regression (Fan and Gijbels 1996, "Local Polynomial Modelling and Its
    Applications", section 2.2) of the logarithms. Where there is little near a size to tell an
    exponent by, that of all sizes counts, and where there is little at all, none: more is then
    thought to cost no more, so that it is tried. Exponents are kept between 0 and 1: more takes
    longer, but no longer than by itself. Beyond all that was measured they are at least .5.

    What a size was measured to take counts beside the curve, the more the surer it is: as the mean
    of what is normal with a known variance, about which something is thought beforehand (Efron and
    Morris 1973, "Stein's estimation rule and its competitors"), and no farther off the curve than
    steps are.

    There are two kinds of times, such as those of rounds with drafts and without: each is told by
    its own where there are any.
    """

    def __init__(self) -> None:
        self._times = Times[tuple[bool, float]]()
        self._kinds = np.zeros(_SIZES, dtype=np.bool_)
        self._sizes = np.zeros(_SIZES)
        # Of each row 1, x, y, xx and xy, for x and y the logarithms of its size and usual time.
        self._moments = np.ones((_SIZES, 5))

    def count(self, kind: bool, size: float) -> int:
        """How many times of a kind at a size are remembered."""
        return self._times.count((kind, size))

    def usual(self, kind: bool, size: float) -> float:
        """What a kind at a size usually takes; 0 where that was not measured."""
        return self._times.usually((kind, size))

    def add(self, kind: bool, size: float, y: float, now: int) -> None:
        """Count a measurement at a size > 0; see `Times.add`."""
        row, usual = self._times.add((kind, size), y, now)
        x, v = log2(size), log2(max(usual, _LEAST))
        self._kinds[row], self._sizes[row] = kind, size
        self._moments[row, 1:] = x, v, x * x, x * v

    def scale(self, factor: float) -> None:
        """Go on as if all had taken so many times as long."""
        self._times.change(lambda _, y: y * factor)
        self._moments[:, 2] += log2(factor)
        self._moments[:, 4] = self._moments[:, 1] * self._moments[:, 2]

    def forget(self, kind: bool, size: float) -> None:
        """See `Times.forget`."""
        self._times.forget((kind, size))

    def told(
        self, kinds: NDArray[np.bool_], sizes: NDArray[np.float64], noise: float
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """What is expected of each kind and size, and how many times of that kind are near it.

        Args:
            kinds: bool [n].
            sizes: more than 0, float64 [n].
            noise: by how much the logarithm of one time is off, about.

        Returns:
            The expected y, float64 [n], 0 where nothing was measured; and the counts, float64 [n].
        """
        count = len(self._times)
        if not count:
            return np.zeros(len(sizes)), np.zeros(len(sizes))
        # Another thread may be adding.
        own, moments = self._kinds[:count].copy(), self._moments[:count]
        weights = self._times.weights_by(own)
        others = _OTHERS * np.minimum(weights, 1.0)
        counts = np.where(own, [others, weights], [weights, others])
        everywhere = _slope(counts @ moments, 0.0)
        x, picked, wanted = moments[:, 1], kinds.astype(np.int64), np.log2(sizes)
        away = wanted[:, None] - x
        near = np.maximum(np.exp(away * away * (-0.5 / _OCTAVES**2)), _NOWHERE)
        alike = kinds[:, None] == own
        known = (alike * near) @ self._times.counts[:count]
        sums = (counts[picked] * near) @ moments
        exponent = _slope(sums, everywhere[picked])
        reached = np.minimum(wanted, x.max())
        beyond = np.maximum(exponent, _BEYOND) * (wanted - reached)
        inside = (sums[:, 2] + exponent * (reached * sums[:, 0] - sums[:, 1])) / sums[:, 0]
        smooth = inside + beyond
        here = alike & (sizes[:, None] == self._sizes[:count])
        measured = here @ weights
        share = measured / (measured + max(noise / _STEPS, _LEAST) ** 2)
        most = _STEEPEST * _STEPS / log(2)
        step = (here @ moments[:, 2] - smooth).clip(-most, most)
        return np.asarray(2.0 ** (smooth + share * step)), known


def rising(found: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """The nearest to what was found that falls nowhere, by weighted least squares.

    By the max-min formula of isotonic regression (Barlow, Bartholomew, Bremner and Brunk 1972,
    "Statistical Inference under Order Restrictions", section 1.4): of the means of all stretches
    around a place.

    Args:
        found: float64 [M, n], each of n columns by itself.
        weights: of the rows, more than 0, float64 [M].

    Returns:
        float64 [M, n].
    """
    count = len(found)
    total = np.vstack([np.zeros((1, found.shape[1])), (weights[:, None] * found).cumsum(0)])
    weight = np.append(0.0, weights.cumsum())
    first, last = np.arange(count)[:, None], np.arange(count)
    stretch = np.maximum(last, first)
    means = total[stretch + 1] - total[first]
    means /= (weight[stretch + 1] - weight[first])[..., None]
    least = np.minimum.accumulate(means[:, ::-1], 1)[:, ::-1]
    return np.asarray(np.where((first <= last)[..., None], least, -np.inf).max(0))


def _slope(sums: NDArray[np.float64], guess: NDArray[np.float64] | float) -> NDArray[np.float64]:
    """Slopes [n] of lines, near a guess, from weighted sums [n, 5] of 1, x, y, xx and xy."""
    total, x, y, xx, xy = sums.T
    found = (xy - x * y / total + _BELIEVED * guess) / (xx - x * x / total + _BELIEVED)
    return np.asarray(np.minimum(np.maximum(found, 0.0), 1.0))
