"""What a round costs, measured: lines through recent times, robust against a slow moment."""

from __future__ import annotations

from dataclasses import dataclass

_MEMORY = 0.9
_OUTLIER = 2.0
_FEW = 4.0
"""The weight of points up to which one may show that those before it were slow moments."""

_LEAST = 1e-9
"""Seconds of a round at least: a clock may stand still."""


class Line:
    """A running fit of y = level + slope x by least squares, in which old points fade.

    A point is moved to within a factor of two of what was expected before it counts, so that one
    slow moment moves the line little while a lasting change moves it round by round. One far below
    what few points say shows that there was a slow moment among them: they are forgotten. The slope
    is learnt only while x varies. Both parts are kept from going below 0.

    Args:
        slope: what it is thought to be before x varies.
    """

    def __init__(self, slope: float = 0.0) -> None:
        self._guess = slope
        self._slope = slope
        self._weight = 0.0
        self._x = self._y = self._xx = self._xy = 0.0

    @property
    def known(self) -> bool:
        """Whether anything was measured."""
        return self._weight > 0

    @property
    def slope(self) -> float:
        """What one more of x costs."""
        return self._slope

    def add(self, x: float, y: float) -> None:
        """Count a measurement."""
        y, expected = max(y, 0.0), self.at(x)
        if self._weight <= _FEW and y * _OUTLIER < expected:
            self._forget()
        elif self._weight > 1 and expected > 0:
            y = min(max(y, expected / _OUTLIER), expected * _OUTLIER)
        self._weight = self._weight * _MEMORY + 1
        self._x = self._x * _MEMORY + x
        self._y = self._y * _MEMORY + y
        self._xx = self._xx * _MEMORY + x * x
        self._xy = self._xy * _MEMORY + x * y
        mean_x, mean_y = self._x / self._weight, self._y / self._weight
        spread = self._xx / self._weight - mean_x * mean_x
        if spread > 0.05 * max(1.0, mean_x):
            slope = (self._xy / self._weight - mean_x * mean_y) / spread
            self._slope = min(max(slope, 0.0), mean_y / mean_x)

    def _forget(self) -> None:
        self._slope = self._guess
        self._weight = self._x = self._y = self._xx = self._xy = 0.0

    def at(self, x: float) -> float:
        """The expected y."""
        if self._weight == 0:
            return self._slope * x
        level = self._y / self._weight - self._slope * self._x / self._weight
        return max(level, 0.0) + self._slope * x


@dataclass(frozen=True, slots=True)
class Round:
    """What a round did, as far as its cost depends on it.

    Attributes:
        rows: sequences in it.
        width: tokens drafted for the row with the most.
        steps: how many steps of a model the deepest draft took.
        fresh: whether a prompt was read in it, by the target.
        behind: whether the drafter had to read more than the last round's tokens.
        draft_s, target_s, other_s: seconds of its parts.
    """

    rows: int
    width: int
    steps: int
    fresh: bool
    behind: bool
    draft_s: float
    target_s: float
    other_s: float


class Costs:
    """Seconds of a round, from the rounds so far.

    The target's forward is a line in the tokens it is given, all rows together; drafting a line in
    its steps; the rest of a round a mean, one for plain rounds and one for those that draft.
    """

    def __init__(self) -> None:
        self._target = Line()
        self._draft = Line()
        self._plain_rest = Line()
        self._draft_rest = Line()

    @property
    def plain_known(self) -> bool:
        """Whether a plain round was measured."""
        return self._target.known and self._plain_rest.known

    @property
    def known(self) -> bool:
        """Whether a plain round and one that drafted were measured."""
        return self._target.known and self._draft.known

    def add(self, seen: Round) -> None:
        """Count a round, without what a prompt or a backlog took: nobody's usual cost."""
        if not seen.fresh:
            self._target.add(seen.rows * (seen.width + 1), seen.target_s)
            rest = self._draft_rest if seen.width else self._plain_rest
            rest.add(0.0, seen.other_s)
        if seen.steps and not seen.behind:
            self._draft.add(seen.steps, seen.draft_s)

    def target(self, rows: int, width: int) -> float:
        """Seconds of a forward over `rows` prefixes with `width` drafted tokens each."""
        return self._target.at(rows * (width + 1))

    def draft(self, steps: int) -> float:
        """Seconds of drafting `steps` tokens in a row."""
        return self._draft.at(steps) if steps else 0.0

    def round(self, rows: int, width: int, steps: int) -> float:
        """Seconds of a whole round; plain if `width` is 0."""
        if not width:
            return max(self.target(rows, 0) + self._plain_rest.at(0.0), _LEAST)
        rest = self._draft_rest if self._draft_rest.known else self._plain_rest
        return max(self.target(rows, width) + self.draft(steps) + rest.at(0.0), _LEAST)

    def reading(self, tokens: int) -> float:
        """Seconds the drafter needs to read a prompt: the target's, scaled as their steps are."""
        share = self.draft(1) / max(self.target(1, 0), _LEAST)
        return share * self.target(1, tokens)
