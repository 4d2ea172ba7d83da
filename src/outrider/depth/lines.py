"""What something costs by its size: lines through recent times, robust against slow moments."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

Size = TypeVar("Size", bound=Hashable)

_WINDOW = 15
"""How many times of one size are looked at."""

_QUANTILE = 0.4
"""Which of them stands for all: below the middle, since slow moments make some too long."""

_SIZES = 24
"""How many sizes are remembered."""

_FADING = 0.97
"""What a size weighs beside one measured a round later."""

_GAP = 48
"""A size that was not measured in so many rounds keeps its latest time alone: what the machine was
like may be over. The lesser of it and the next one then stands for all, so that it is tried."""

_RELAXING = 0.99
"""What is left of a slope after each measurement while x does not vary. More x is then thought to
cost less and less, so that it is tried, and not shunned for what it once cost."""

_OTHERS = 0.25
"""What a measurement of another kind weighs: it says something where there is none of the own."""

_OCTAVES = 0.7
"""How far measurements reach: at half or twice the size they weigh .36, at four times .02."""

_NOWHERE = 1e-6
"""What a measurement weighs at least, however far off: the nearest one stands for all then."""

_BELIEVED = 0.5
"""For how many measurements an octave off an exponent counts that is thought of beforehand."""

_BEYOND = 0.5
"""The least exponent beyond the largest size that was measured: not to try it at any price."""

_LEAST = 1e-9
"""What takes no time by a clock that stands still, in seconds."""


class Times(Generic[Size]):
    """The recent times of each size, each with a weight: how many there are, fading with age."""

    def __init__(self) -> None:
        self._now = 0
        self._found: dict[Size, deque[float]] = {}
        self._last: dict[Size, int] = {}
        self._usual: dict[Size, float] = {}

    def __bool__(self) -> bool:
        return bool(self._found)

    def count(self, size: Size) -> int:
        """How many times of a size are remembered."""
        return len(self._found.get(size, ()))

    def add(self, size: Size, y: float, now: int | None = None) -> None:
        """Count a measurement.

        Args:
            size: what was measured.
            y: what it took.
            now: the number of the round, to tell what is old; None for the next one.
        """
        self._now = self._now + 1 if now is None else now
        found = self._found.setdefault(size, deque(maxlen=_WINDOW))
        if self._now - self._last.get(size, self._now) > _GAP:
            for _ in range(len(found) - 1):
                found.popleft()
        found.append(max(y, 0.0))
        self._last[size] = self._now
        self._usual[size] = sorted(found)[int(_QUANTILE * (len(found) - 1))]
        if len(self._found) > _SIZES:
            oldest = min(self._last, key=self._last.__getitem__)
            del self._found[oldest], self._last[oldest], self._usual[oldest]

    def usual(self) -> tuple[list[Size], NDArray[np.float64], NDArray[np.float64]]:
        """The sizes, what each usually takes, and its weight, float64 [n]."""
        ages = self._now - np.array(list(self._last.values()))
        counts = np.array([len(found) for found in self._found.values()])
        return list(self._usual), np.array(list(self._usual.values())), counts * _FADING**ages


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

    @property
    def known(self) -> bool:
        """Whether anything was measured."""
        return bool(self._times)

    @property
    def slope(self) -> float:
        """What one more of x costs."""
        return self._slope

    def add(self, x: float, y: float, now: int | None = None) -> None:
        """Count a measurement; see `Times.add`."""
        self._times.add(x, y, now)
        sizes, usual, weights = self._times.usual()
        found = np.array(sizes)
        weights /= weights.sum()
        mean_x, mean_y = float(weights @ found), float(weights @ usual)
        off = found - mean_x
        spread = float(weights @ off**2)
        if spread > 0.05 * max(1.0, mean_x):
            self._slope = max(float(weights @ (off * (usual - mean_y))) / spread, 0.0)
        elif mean_x > 0:
            self._slope = max(self._slope * _RELAXING, self._least * mean_y / mean_x)
        if mean_x > 0:
            self._slope = min(self._slope, mean_y / mean_x)
        self._level = mean_y - self._slope * mean_x

    def at(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """The expected y of each x."""
        return self._level + self._slope * x


class Curve:
    """What a size usually takes, be it no line: a power of the size around each one.

    Local linear regression (Fan and Gijbels 1996, "Local Polynomial Modelling and Its
    Applications", section 2.2) of the logarithms. Where there is little near a size to tell an
    exponent by, that of all sizes counts, and where there is little at all, none: more is then
    thought to cost no more, so that it is tried. Exponents are kept between 0 and 1: more takes
    longer, but no longer than by itself. Beyond all that was measured they are at least .5.

    There are two kinds of times, such as those of rounds with drafts and without: each is told by
    its own where there are any.
    """

    def __init__(self) -> None:
        self._times = Times[tuple[bool, float]]()

    @property
    def known(self) -> bool:
        """Whether anything was measured."""
        return bool(self._times)

    def count(self, kind: bool, size: float) -> int:
        """How many times of a kind at a size are remembered."""
        return self._times.count((kind, size))

    def add(self, kind: bool, size: float, y: float, now: int) -> None:
        """Count a measurement at a size > 0; see `Times.add`."""
        self._times.add((kind, size), y, now)

    def at(self, kinds: NDArray[np.bool_], sizes: NDArray[np.float64]) -> NDArray[np.float64]:
        """The expected y of each kind and size > 0, float64 [n]; 0 where nothing was measured."""
        if not self._times:
            return np.zeros(len(sizes))
        known, y, weights = self._times.usual()
        own = np.array([kind for kind, _ in known])
        x = np.log2([size for _, size in known])
        y = np.log2(np.maximum(y, _LEAST))
        counts = np.where(kinds[:, None] == own, weights, _OTHERS * weights)
        wanted = np.log2(sizes)
        near = np.exp(-0.5 * ((wanted[:, None] - x) / _OCTAVES) ** 2).clip(_NOWHERE)
        everywhere, _, _ = _fit(x, y, counts, 0.0)
        exponent, mean_x, mean_y = _fit(x, y, counts * near, everywhere)
        beyond = (wanted - x.max()).clip(0)
        inside = mean_y + exponent * (wanted - beyond - mean_x)
        return np.asarray(2.0 ** (inside + exponent.clip(_BEYOND) * beyond))


_Array = NDArray[np.float64]


def _fit(
    x: _Array, y: _Array, weights: _Array, slope: _Array | float
) -> tuple[_Array, _Array, _Array]:
    """Slopes and means of lines through points [m] with weights [n, m], near a slope thought of."""
    total = weights.sum(1)
    mean_x, mean_y = weights @ x / total, weights @ y / total
    off = x - mean_x[:, None]
    shared = (weights * off * (y - mean_y[:, None])).sum(1)
    found = (shared + _BELIEVED * slope) / ((weights * off**2).sum(1) + _BELIEVED)
    return found.clip(0, 1), mean_x, mean_y
