"""What a round costs, measured: lines through recent times, robust against slow moments."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import median_low

COST_RATIO = 0.125
"""A draft step beside a plain forward of the target, where nothing is configured or measured."""

_WINDOW = 15
"""How many times of rounds of one size are looked at."""

_QUANTILE = 0.4
"""Which of them stands for all: below the middle, since slow moments make some too long."""

_SIZES = 12
"""How many sizes are remembered."""

_FEW = 3
"""From so many on, measurements stand for themselves: one of them may have been slow."""

_FADING = 0.97
"""What a size weighs beside one measured a round later."""

_GAP = 48
"""A size that was not measured in so many rounds keeps its latest time alone: what the machine was
like may be over. The lesser of it and the next one then stands for all, so that it is tried."""

_RELAXING = 0.99
"""What is left of a slope after each measurement while x does not vary. More x is then thought to
cost less and less, so that it is tried, and not shunned for what it once cost."""

_STEPS_ALIKE = 0.5
"""What each step of a draft is thought to take at least, beside the mean: they are mostly forwards
of one model."""

_APART = 0.2
"""By how much forwards of one token a row have to differ from a line through the wider ones, to
count as a kind of their own: noise of 10% in each time hardly ever makes as much of it."""

_LEAST = 1e-9
"""Seconds of a round at least: a clock may stand still."""


class Line:
    """A running fit of y = level + slope x, by least squares through what each x usually gives.

    A quantile of its latest points stands for each x, so that half of them may be slow moments,
    and fades while others are measured. The slope is learnt while x varies, and relaxes while it
    does not. Both parts are kept from going below 0.

    Args:
        least: what a slope that is not measured is at least, beside the mean of y over that of x.
    """

    def __init__(self, least: float = 0.0) -> None:
        self._least = least
        self._slope = 0.0
        self._level = 0.0
        self._now = 0
        self._points: dict[float, deque[float]] = {}
        self._last: dict[float, int] = {}

    @property
    def known(self) -> bool:
        """Whether anything was measured."""
        return bool(self._points)

    @property
    def slope(self) -> float:
        """What one more of x costs."""
        return self._slope

    def count(self, x: float) -> int:
        """How many measurements of this x are remembered."""
        return len(self._points.get(x, ()))

    def add(self, x: float, y: float, now: int | None = None) -> None:
        """Count a measurement.

        Args:
            x, y: what was measured.
            now: the number of the round, to tell what is old; None for the next one.
        """
        self._now = self._now + 1 if now is None else now
        found = self._points.setdefault(x, deque(maxlen=_WINDOW))
        if self._now - self._last.get(x, self._now) > _GAP:
            for _ in range(len(found) - 1):
                found.popleft()
        found.append(max(y, 0.0))
        self._last[x] = self._now
        if len(self._points) > _SIZES:
            oldest = min(self._last, key=self._last.__getitem__)
            del self._points[oldest], self._last[oldest]
        self._fit()

    def _fit(self) -> None:
        total = mean_x = mean_y = 0.0
        usual = []
        for x, found in self._points.items():
            y = sorted(found)[int(_QUANTILE * (len(found) - 1))]
            weight = len(found) * _FADING ** (self._now - self._last[x])
            usual.append((x, y, weight))
            total += weight
            mean_x += weight * x
            mean_y += weight * y
        mean_x, mean_y = mean_x / total, mean_y / total
        spread = sum(weight * (x - mean_x) ** 2 for x, _, weight in usual) / total
        if spread > 0.05 * max(1.0, mean_x):
            shared = sum(weight * (x - mean_x) * (y - mean_y) for x, y, weight in usual) / total
            self._slope = max(shared / spread, 0.0)
        elif mean_x > 0:
            self._slope = max(self._slope * _RELAXING, self._least * mean_y / mean_x)
        if mean_x > 0:
            self._slope = min(self._slope, mean_y / mean_x)
        self._level = mean_y - self._slope * mean_x

    def at(self, x: float) -> float:
        """The expected y."""
        return self._level + self._slope * x


@dataclass(frozen=True, slots=True)
class Round:
    """What a round did, as far as its cost depends on it.

    Attributes:
        rows: sequences in it.
        width: tokens drafted for the row with the most.
        steps: how many steps of a model the deepest draft took.
        fresh: whether the target read a prompt in it.
        read: tokens of these prompts, each that several sequences share once.
        behind: whether the drafter had to read more than the last round's tokens.
        caught_up: tokens of the sequences that it read for the first time.
        draft_s, target_s, other_s: seconds of its parts.
    """

    rows: int
    width: int
    steps: int
    fresh: bool
    read: int
    behind: bool
    caught_up: int
    draft_s: float
    target_s: float
    other_s: float


class Costs:
    """Seconds of a round, from the rounds so far.

    The target's forward is a line in the tokens it is given, all rows together. Where forwards of
    one token a row are clearly off that line, since products with a vector are made otherwise than
    those with a matrix, they have a line of their own. Drafting is a line in its steps, and where
    it takes none, since tokens are looked up in vain or for use, one in the rows. The rest of a
    round is alike for all plain rounds, and for all that draft.
    """

    def __init__(self) -> None:
        self._rounds = 0
        self._target = Line()
        self._plain = Line()
        self._wide = Line()
        self._draft = Line(_STEPS_ALIKE)
        self._looking = Line()
        self._prompts = deque[float](maxlen=_SIZES)
        self._readings = deque[float](maxlen=_SIZES)
        self._plain_rest = Line()
        self._draft_rest = Line()

    @property
    def plain_known(self) -> bool:
        """Whether a plain round was measured."""
        return self._target.known and self._plain_rest.known

    @property
    def plain_missing(self) -> bool:
        """Whether rounds that drafted were measured, and no plain one."""
        return self._draft.known and not self.plain_known

    def plain_often(self, rows: int) -> bool:
        """Whether a few plain rounds of so many sequences are remembered."""
        return self._plain.count(rows) >= _FEW

    @property
    def known(self) -> bool:
        """Whether a plain round and one that drafted were measured."""
        return self.plain_known and self._draft.known

    def add(self, seen: Round) -> None:
        """Count a round: what a prompt or a backlog took by itself, since it is no usual cost."""
        self._rounds += 1
        now = self._rounds
        if seen.read:
            self._prompts.append(seen.target_s / seen.read)
        if seen.caught_up and self._draft.known:
            reading_s = max(seen.draft_s - self._draft.at(seen.steps), 0.0)
            self._readings.append(reading_s / seen.caught_up)
        if not seen.fresh:
            tokens = seen.rows * (seen.width + 1)
            self._target.add(tokens, seen.target_s, now)
            (self._wide if seen.width else self._plain).add(tokens, seen.target_s, now)
            rest = self._draft_rest if seen.width else self._plain_rest
            rest.add(0.0, seen.other_s, now)
            if not seen.steps:
                self._looking.add(seen.rows, seen.draft_s, now)
        # With a backlog it takes longer, unless what is remembered is over.
        if seen.steps and (not seen.behind or seen.draft_s < self._draft.at(seen.steps)):
            self._draft.add(seen.steps, seen.draft_s, now)

    def target(self, rows: int, width: float) -> float:
        """Seconds of a forward over `rows` prefixes with `width` drafted tokens each."""
        return self._forward(rows, width > 0).at(rows * (width + 1))

    def token(self, rows: int) -> float:
        """Seconds that one more drafted token in each of `rows` rows takes the target."""
        return rows * self._forward(rows, True).slope

    def bare(self, rows: int) -> float:
        """Seconds of a round with looked-up tokens, but for those tokens."""
        return max(self.round(rows, 1, 0) - self.token(rows), _LEAST)

    def _forward(self, rows: int, drafting: bool) -> Line:
        """What forwards of so many sequences are like."""
        plain, wide = self._plain, self._wide
        if not plain.count(rows) or not wide.known:
            return self._target
        beside = wide.at(rows)
        if abs(plain.at(rows) - beside) <= _APART * beside:
            return self._target
        return wide if drafting else plain

    def draft(self, rows: int, steps: float) -> float:
        """Seconds of drafting `steps` tokens in a row, or of looking tokens up for `rows`."""
        return self._draft.at(steps) if steps else self._looking.at(rows)

    def round(self, rows: int, width: float, steps: float) -> float:
        """Seconds of a whole round; plain if `width` is 0."""
        return max(self.verifying(rows, width) + self.draft(rows, steps), _LEAST)

    def verifying(self, rows: int, width: float) -> float:
        """Seconds of a round but for its drafting."""
        rest = self._draft_rest if width and self._draft_rest.known else self._plain_rest
        return self.target(rows, width) + rest.at(0.0)

    def reading(self, tokens: int) -> float:
        """Seconds the drafter needs to read a prompt: at least a step.

        By what a token took it in its latest readings. Until there are a few, no more than what
        one took the target, scaled as their steps are. The median stands for all, since prompts,
        or parts of them, may be found in a cache, and moments are slow.
        """
        step = self._draft.at(1)
        share = step / max(self.target(1, 0), _LEAST)
        each = share * median_low(self._prompts or [self._forward(1, True).slope])
        if self._readings:
            own = median_low(self._readings)
            each = own if len(self._readings) >= _FEW else min(own, each)
        return max(step, tokens * each)
