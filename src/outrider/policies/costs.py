"""What a round costs, measured."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import log, log2
from statistics import median_low

import numpy as np
from numpy.typing import NDArray

from ..types.records import RoundRecord
from .drafting import MUCH_FASTER, Drafting
from .growth import Growing
from .lines import FEW, RECENT, Curve, Line, Times
from .pace import Pace
from .round import Round

COST_RATIO = 0.125
"""A draft step beside a plain forward of the target, where nothing is configured or measured."""

_KNOWN = 5
"""Of how many rounds of a size is known what they usually take: enough for the first two, which may
have been compared with what went before, not to count."""

_NOISY = 31
"""From how many rounds it is told how much their times vary."""

_DEVIATION = 1.4826
"""The standard deviation of what is normal beside the median of what it is off by."""

_OF_MEDIANS = 1.25
"""The standard error of the median of what is normal beside that of its mean."""

_GUESS = 0.2
"""By how much the logarithm of a round's time is off, as a first guess, which counts for as many
rounds: a machine that stands still once while a model is loaded is not that noisy."""

_FASTER = 0.6
"""What a round takes at most of what those of its size did, after one that was `MUCH_FASTER`, to
tell of other work that the machine had when all were measured."""

_MUCH_LESS = 0.75
"""What a draft beside looked-up tokens takes at most of what is known, to tell of it itself."""

_OWN = 0.05
"""What is left at least of a draft without looking tokens up: less is a mistake."""

_STEADY, _SLOW = 1.1, 1.5
"""How many times as long, or as short, that is at most, of some rounds and of the latest one."""

_NEAR = 1.0
"""As many times at a size, or more of them further off, tell what it takes well enough for that."""

_UNPROPOSED = 0.98
"""What is left a round later of what proposing looked-up tokens takes beyond looking in vain, while
none are."""

_LEAST = 1e-9
"""Seconds of a round at least: a clock may stand still."""


@dataclass(frozen=True, slots=True)
class Prices:
    """Seconds of the rounds that may be planned, for so many rows; or multiples of a plain one.

    Attributes:
        rows: sequences in them.
        widths: tokens drafted for the row with the most at depths 0, 1, ..., N, or for each row by
            the mean where rows are not padded, int64 or float64 [N + 1].
        verifying: of rounds of each depth but for their drafting, float64 [N + 1].
        drafting: of a model's drafts of each depth, float64 [N + 1]; 0 at 0.
        single: of a plain round of one row.
        looking: of looking tokens up in vain, which pays for itself: no round is told with it.
        proposing: and how much longer it takes to propose some.
        backlog: of the drafter's reading on in 0, 1, ... rows for which it has not drafted for a
            while, float64 [rows + 1]; None where nothing was measured.
        step: of a step of the drafter for one row, the least that a reading takes.
        token: of its reading of one token of a prompt.
        doubts: standard errors of the logarithms of what rounds of each depth take but for their
            drafting, beside a plain one, float64 [N + 1], and at 0 of what that takes; None where
            nothing was measured.
    """

    rows: int
    widths: NDArray[np.int64] | NDArray[np.float64]
    verifying: NDArray[np.float64]
    drafting: NDArray[np.float64]
    single: float = 0.0
    looking: float = 0.0
    proposing: float = 0.0
    backlog: NDArray[np.float64] | None = None
    step: float = 0.0
    token: float = 0.0
    doubts: NDArray[np.float64] | None = None

    def doubt(self, depth: int = 0) -> float:
        """How much what rounds of a depth take may be off, beside a plain one: see `doubts`."""
        return 0.0 if self.doubts is None else float(self.doubts[depth])

    def startling(self, record: RoundRecord, ragged: bool) -> bool:
        """Whether a round took so little, its drafting apart, that these seconds may be wrong.

        Args:
            record: the round.
            ragged: whether rows were verified without padding.
        """
        drafted = record.drafted
        width = sum(drafted) / len(drafted) if ragged else max(drafted)
        deeper = (depth for depth, most in enumerate(self.widths.tolist()) if most >= width)
        depth = next(deeper, len(self.widths) - 1)
        verifying_s = record.total_s - record.plan_s - record.draft_s
        return verifying_s < MUCH_FASTER * float(self.verifying[depth])

    @property
    def rounds(self) -> NDArray[np.float64]:
        """Of whole rounds of each depth, float64 [N + 1]."""
        return np.asarray((self.verifying + self.drafting).clip(_LEAST))

    @property
    def looked_up(self) -> NDArray[np.float64]:
        """Of rounds as wide, of tokens that are looked up, float64 [N + 1]; none less than at 0."""
        return np.asarray((self.verifying.clip(self.verifying[0]) + self.proposing).clip(_LEAST))

    def guessed(self, cost_ratio: float) -> Prices:
        """Multiples of a plain round, for a drafter of which no step was measured.

        As for one that only looks tokens up: none ever is.

        Args:
            cost_ratio: a draft step beside a plain round.
        """
        verifying = self.verifying
        return Prices(
            rows=self.rows,
            widths=self.widths,
            verifying=1 + (verifying - verifying[0]) / max(float(verifying[0]), _LEAST),
            drafting=cost_ratio * np.arange(float(len(verifying))),
            single=self.single / max(float(verifying[0]), _LEAST),
        )

    def reading_on(self, rows: int) -> float:
        """Of the drafter's reading on in so many rows."""
        return 0.0 if self.backlog is None else float(self.backlog[rows])

    def unread(self) -> tuple[float, float]:
        """Of reading on for each row, and beyond that, however few rows there are."""
        one = self.reading_on(1)
        each = (self.reading_on(self.rows) - one) / max(self.rows - 1, 1)
        return each, max(one - each, 0.0)

    def reading(self, tokens: int) -> float:
        """Of the drafter's reading of a prompt."""
        return max(self.step, tokens * self.token)


class Costs:
    """Seconds of a round, from the rounds so far.

    Verification is the target's forward and what comes after it, by the tokens the target is given,
    all rows together; in rounds without drafts it is of its own kind, since products with a vector
    are made otherwise than those with a matrix. Drafting is told by its rows and steps; and looking
    tokens up in vain, or for use, which some rounds do and others do not, apart from it, by rows.

    Attributes:
        revisions: how many times what was known was found to be over.
    """

    def __init__(self) -> None:
        self._rounds = 0
        self._counts = Counter[int]()
        self.revisions = 0
        self._held = list[tuple[Round, bool]]()
        self._pace, self._growing, self._latest = Pace(), Growing(), 1.0
        self._off = deque([_GUESS / _DEVIATION] * _KNOWN, maxlen=_NOISY)
        self._verifying = Curve()
        self._drafting = Drafting()
        self._looking, self._proposing = Line(), Line()
        self._proposed, self._proposed_at = 0, 0
        self._partial = Times[tuple[int, int]]()
        self._prompts = deque[float](maxlen=RECENT)
        self._readings = deque[float](maxlen=RECENT)
        self._plain = 0

    @property
    def rounds(self) -> int:
        """How many were counted."""
        return self._rounds

    def count(self, rows: int) -> int:
        """How many rounds of so many sequences were."""
        return self._counts[rows]

    @property
    def steady(self) -> bool:
        """Whether rounds take about as long lately as they did, the latest one included."""
        pace = self._pace.at(self._rounds)
        return 1 / _STEADY < pace < _STEADY and 1 / _SLOW < self._latest < _SLOW

    @property
    def plain_known(self) -> bool:
        """Whether a plain round was measured."""
        return self._plain > 0

    @property
    def plain_missing(self) -> bool:
        """Whether rounds that drafted were measured, and no plain one."""
        return self._drafting.known and not self.plain_known

    @property
    def known(self) -> bool:
        """Whether a plain round and one that drafted were measured."""
        return self.plain_known and self._drafting.known

    def add(self, seen: Round, reading: bool = True) -> None:
        """Count a round: what a prompt or a backlog took by itself, since it is no usual cost.

        One that was much faster than is known is held back for the next one to tell why. If that is
        faster, too, the machine was busy when all was measured, and all that is known is scaled
        before either is counted. If not, it was busy when rounds of the first one's size were
        measured, and what they took is forgotten. A plain round tells best: see `puzzled`.

        Args:
            seen: the round.
            reading: whether to learn what prompts take, too.
        """
        self._rounds += 1
        self._counts[seen.rows] += 1
        ratio = self._beside_usual(seen)
        if not self._held and ratio < MUCH_FASTER:
            self._held.append((seen, reading))
            return
        for held, as_well in self._held:
            if ratio < _FASTER:
                self._scale(max(ratio, self._beside_usual(held)))
            elif held.width:
                self._disprove(held)
            self._count(held, as_well)
        self._held.clear()
        self._count(seen, reading)

    @property
    def puzzled(self) -> bool:
        """Whether a plain round would tell why one that drafted was so fast: see `add`."""
        return self.plain_known and any(held.width for held, _ in self._held)

    def _disprove(self, seen: Round) -> None:
        """Forget what was known of a round that takes much less; see `add`."""
        scale = self._pace.at(self._rounds)
        self.revisions += 1
        self._verifying.forget(seen.width > 0, seen.tokens)
        self._partial.forget((seen.rows, seen.tokens))
        if seen.steps and not seen.caught_up:
            self._drafting.cap(seen, self._own_s(seen, seen.draft_s / scale))

    def _beside_usual(self, seen: Round) -> float:
        """How many times as long a round took as is known; 1 where too little is."""
        drafted = seen.width > 0
        if seen.fresh or seen.verifying_s <= 0:
            return 1.0
        took = seen.verifying_s / self._growing.times(seen.rows, seen.length)
        usual = self._verifying.usual(drafted, seen.tokens)
        if self._verifying.count(drafted, seen.tokens) < FEW:
            told, near = self._verifying.told(
                np.array([drafted]), np.array([float(seen.tokens)]), self._spread
            )
            usual = float(told[0]) if near[0] >= _NEAR else took
        return took / max(usual, _LEAST)

    def _count(self, seen: Round, reading: bool) -> None:
        """Count a round; see `add`."""
        now, tokens = self._rounds, seen.tokens
        took = seen.verifying_s / self._growing.times(seen.rows, seen.length)
        known = self._verifying.count(seen.width > 0, tokens)
        if known >= _KNOWN and not seen.fresh and took > 0:
            ratio = took / max(self._verifying.usual(seen.width > 0, tokens), _LEAST)
            self._off.append(abs(log(ratio / self._pace.at(now - 1))))
            self._pace.add(ratio, now)
            self._latest = ratio
        scale = self._pace.at(now)
        draft_s = seen.draft_s / scale
        own_s = self._own_s(seen, draft_s)
        if seen.read and reading:
            self._prompts.append(seen.target_s / scale / seen.read)
        if seen.caught_up and reading and self._drafting.known:
            steps = np.array([float(seen.steps)])
            usual = float(self._drafting.at(seen.drafting, steps, seen.length)[0])
            self._readings.append(max(own_s - usual, 0.0) / seen.caught_up)
        if not seen.fresh:
            kind = round(2 * log2(tokens / seen.rows)), seen.width > 0
            self._growing.add(seen.rows, kind, seen.length, seen.verifying_s)
            self._verifying.add(seen.width > 0, tokens, took / scale, now)
            self._plain += not seen.width
            if seen.rows < tokens < 2 * seen.rows:
                self._partial.add((seen.rows, tokens), took / scale, now)
        beside_s = self._beside_s(seen, draft_s) if seen.steps else draft_s
        if beside_s is None:
            if not seen.caught_up:
                self._drafting.add(seen, own_s, now)
        elif not seen.fresh:
            self._count_looking(seen, beside_s)

    def _count_looking(self, seen: Round, seconds: float) -> None:
        """Count what looking tokens up took."""
        if seen.found:
            self._proposing.add(seen.rows, seconds, self._rounds)
            self._proposed, self._proposed_at = self._proposed + 1, self._rounds
        elif seen.looked:
            self._looking.add(seen.rows, seconds, self._rounds)

    def _beside_s(self, seen: Round, draft_s: float) -> float | None:
        """Seconds that looking tokens up took beside a model's draft, if what that takes is known.

        Of those that are proposed, and of the first ones. None where it is the draft that is told:
        also by one that took much less, since what is known of it is then too much.
        """
        tells = seen.found or (seen.looked and self._looking.count < FEW)
        alike = tells and not seen.behind and not seen.caught_up
        if not alike or not self._drafting.tells(seen.drafting, self._rounds):
            return None
        rows, steps = np.array([float(seen.drafting)]), np.array([float(seen.steps)])
        usual_s = float(self._drafting.among(rows, steps, seen.length)[0, 0])
        return max(draft_s - usual_s, 0.0) if draft_s > _MUCH_LESS * usual_s else None

    def _own_s(self, seen: Round, draft_s: float) -> float:
        """Seconds of a draft without what looking tokens up took.

        Where next to nothing is left, what is known of looking up is over: half is the draft's.
        """
        looking = float(self._looking.at(np.array(float(seen.rows)))) * seen.looked
        proposing = self._proposing_s(seen.rows, looking) if seen.found else 0.0
        own_s = draft_s - looking - proposing
        return own_s if own_s > _OWN * draft_s else draft_s / 2

    def _scale(self, factor: float) -> None:
        """Go on as if all had taken so many times as long."""
        self._pace = Pace()
        self.revisions += 1
        parts = self._verifying, self._drafting, self._looking, self._proposing, self._growing
        for part in parts:
            part.scale(factor)
        self._partial.change(lambda _, took: took * factor)
        self._prompts = deque([each * factor for each in self._prompts], maxlen=RECENT)
        self._readings = deque([each * factor for each in self._readings], maxlen=RECENT)

    def prices(self, rows: int, widths: Sequence[float], length: float = 0.0) -> Prices:
        """What rounds of so many rows take.

        What a token of a prompt takes the drafter is told by its latest readings. Until there are a
        few, it is what one takes most, since prompts may be found in its cache, but no more than
        what one took the target, scaled as their steps are. The median stands for all, since
        moments are slow.

        Args:
            rows: sequences in them.
            widths: see `Prices`.
            length: of the sequences, in tokens, by the mean.
        """
        scale = self._pace.at(self._rounds)
        depths = np.arange(len(widths), dtype=float)
        drafting = self._drafting.at(rows, depths, length)
        drafting[0] = 0.0
        looking = float(self._looking.at(np.array(float(rows))))
        wide = np.array(widths)
        tokens = np.append(rows * (1.0 + wide), 1.0)
        told, counts = self._verifying.told(np.append(wide > 0, False), tokens, self._spread)
        verifying = told[:-1] * self._growing.times(rows, length)
        single = float(told[-1]) * self._growing.times(1, length)
        step = float(self._drafting.at(1, np.ones(1), length)[0])
        share = step / max(single, _LEAST)
        more = max(float(verifying[-1] - verifying[0]), 0.0) / max(rows * widths[-1], 1)
        each = share * (median_low(self._prompts) if self._prompts else more)
        if self._readings:
            known = len(self._readings) >= FEW
            each = median_low(self._readings) if known else min(max(self._readings), each)
        return Prices(
            rows=rows,
            widths=wide,
            verifying=scale * verifying,
            drafting=scale * drafting,
            single=scale * single,
            looking=scale * looking,
            proposing=scale * self._proposing_s(rows, looking),
            backlog=scale * self._drafting.backlog.upto(rows),
            step=scale * step,
            token=scale * each,
            doubts=self._doubts(counts[:-1]) if self.known else None,
        )

    def of_some(
        self, rows: int, depths: int, length: float = 0.0
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """What rounds take in which some rows draft, and are not padded for.

        What is known of rounds of as many tokens may be of fewer rows, which take less: until
        these rows were measured themselves, they take no less than on a line from a plain round to
        one in which all draft.

        Args:
            rows: sequences in them.
            depths: N, at least 1.
            length: of the sequences, in tokens, by the mean.

        Returns:
            Seconds where 1, 2, ... of them draft 1, 2, ..., N tokens each, float64 [rows, N], and
            of their drafts.
        """
        some, each = np.arange(1.0, rows + 1), np.arange(1.0, depths + 1)
        drafted = some[:, None] * each
        # A round of a size in between is on a line between its neighbours.
        asked = np.unique(np.append(np.arange(1, rows + 1), rows * each))
        kinds, tokens = np.append(asked > 0, False), np.append(rows + asked, float(rows))
        times, _ = self._verifying.told(kinds, tokens, self._spread)
        told, plain = times[:-1], float(times[-1])
        fewer = asked[: rows - 1]
        between = plain + fewer / rows * max(told[rows - 1] - plain, 0.0)
        sizes = [(rows, rows + more) for more in range(1, rows)]
        counts = np.array([self._partial.count(size) for size in sizes])
        own = np.array([self._partial.usually(size) for size in sizes])
        guess = np.maximum(told[: rows - 1], between)
        told[: rows - 1] = (counts * own + FEW * guess) / (counts + FEW)
        verifying = np.interp(drafted, asked, told) * self._growing.times(rows, length)
        drafting = self._drafting.among(some, each, length)
        scale = self._pace.at(self._rounds)
        return np.asarray(scale * (verifying + drafting)).clip(_LEAST), scale * drafting

    def _proposing_s(self, rows: int, vain: float) -> float:
        """How much longer proposing tokens takes: once a few were, and less sure the longer ago.

        Slow moments are not to keep tokens from being proposed, and this from being measured.
        """
        own = float(self._proposing.at(np.array(float(rows)))) if self._proposed >= FEW else vain
        return max(own - vain, 0.0) * _UNPROPOSED ** (self._rounds - self._proposed_at)

    def _doubts(self, counts: NDArray[np.float64]) -> NDArray[np.float64]:
        """By how many rounds of about each size are remembered, and how much rounds differ."""
        each = 1 / counts.clip(1)
        each[1:] += each[0]
        return np.asarray(self._spread * np.sqrt(each))

    @property
    def _spread(self) -> float:
        """By how much the logarithm of what a round takes is off; for one of few, its median."""
        return _OF_MEDIANS * _DEVIATION * median_low(self._off)
