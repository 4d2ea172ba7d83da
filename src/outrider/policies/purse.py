"""What may be lost by trying whether drafting pays, where it is not expected to."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import ceil, sqrt
from statistics import median_low

from ..types.records import SequenceState
from .costs import Prices

SHARE = 0.006
"""How much of the time may go into reading prompts for a drafter that may not pay; and, by the cost
ratio, into the tries of a sequence that is planned by itself."""

ONE_FIRST = 0.01
"""How much of the time may go into trying whether drafting pays, beside what new sequences put in
for that at once, where one token is drafted at first; elsewhere `SHARE`. Of several sequences by
the root less, since a round of theirs shows more."""

LONGEST = 512
"""The most rounds that a purse is filled for ahead."""

READING = 2.5
"""How many plain rounds reading prompts may take a drafter of which nothing is known."""

_OF_THE_REST = 0.1
"""And at most so much of the plain rounds that a sequence has left: it is to gain by it itself."""

_GRANT = 0.002
"""How much of a new sequence's plain rounds may go into trying at once."""

_APART = 8
"""How many plain rounds come after a try that gained nothing beyond its decisions, and for which
nothing was read on: it may have seemed to be free."""

_DECISIONS = 2
"""What a try takes of the time that its decision did: that, four tenths of another decision, and
what is learnt from a round that drafted, all as measured on the demo pair."""

_RECENT = 3
"""Of how many tries it is remembered what deciding took: one of them may have been slow."""

_MEMORY = 0.9
"""What the rounds of a sequence weigh beside those of the next one, to tell how many are usual."""


class Purse:
    """Filled by plain rounds and tries that gain, emptied by those that lose. In plain rounds.

    Args:
        share: of the time, for one sequence.

    Attributes:
        owed: what reading prompts on a guess took beyond `SHARE` of the time since.
    """

    def __init__(self, share: float = ONE_FIRST) -> None:
        self._share = share
        self._filled = 0.0
        self._since = _APART
        self._price = self._read_on = self.owed = 0.0
        self._decisions = deque([0.0], maxlen=_RECENT)
        self._rounds, self._count = float(LONGEST), 1.0

    def ended(self, rounds: int) -> None:
        """Count a sequence that took so many rounds."""
        self._rounds = self._rounds * _MEMORY + rounds
        self._count = self._count * _MEMORY + 1

    def fill(self, plain: bool, new: Sequence[int], rows: int) -> None:
        """Count a round.

        Args:
            plain: whether it drafted nothing.
            new: how many rounds each sequence that began in it will take at most.
            rows: how many sequences took part.
        """
        self._since += plain
        self._read_on *= not plain
        self.owed = max(self.owed - SHARE, 0.0)
        self._filled += _GRANT * sum(min(self._usual, most) for most in new) / rows
        self._filled = min(self._filled + self._share * rows**-0.5 * plain, self._most)

    def affords(self, price: float, up_to_date: bool = False) -> bool:
        """Whether there is enough for a try.

        What a drafter reads on before a try says nothing; tries right after it, which have nothing
        to read, may lose as much again.

        Args:
            price: what it is expected to lose, beside what it takes to decide on it.
            up_to_date: whether there is nothing to read on.
        """
        self._price = price = price + median_low(self._decisions)
        more = up_to_date and 0 < self._read_on >= price
        return more or (self._since >= _APART and self._filled >= price)

    def wait(self, rows: int) -> int:
        """How many plain rounds of so many sequences it takes until there is enough for a try.

        Of the price that was asked for last.
        """
        missing = max(self._price - self._filled, 0.0) * sqrt(rows) / self._share
        return max(ceil(missing), _APART - self._since)

    def worth_reading(
        self,
        states: Sequence[SequenceState],
        prices: Prices,
        gain: float,
        since: int,
        asked: Sequence[bool] | None = None,
    ) -> list[bool]:
        """Whether each sequence may be drafted for, which a drafter new to it has to read before.

        Where drafts were kept before, reading may take less than half of what drafting is expected
        to save. For a try, and where no sequence was drafted for, that is a guess: it may take two
        and a half plain rounds, or a share of those since anything was drafted and of what remains,
        less what is owed for other guesses; at most a tenth of what remains or of a usual text,
        unless nothing was drafted for long.
        Of several sequences as many are read as take no longer together, and show whether drafts
        are kept at all.

        Args:
            states: the sequences.
            prices: of rounds of all sequences that take part in them, these or more.
            gain: how many times as fast drafting is expected to be, beside what it has to be to be
                taken for faster; 1 where that is not known.
            since: how many rounds drafted nothing.
            asked: which of them are to be drafted for, and no other may be; None for all.
        """
        wanted = [True] * len(states) if asked is None else asked
        plain = float(prices.rounds[0])
        saved = 0.5 * (1 - 1 / gain)
        known = [bool(state.acceptance.reached) for state in states]
        spent = self.owed
        worth = []
        for state, read, one in zip(states, known, wanted, strict=True):
            took = prices.reading(state.prefix.length) / plain
            guess = max(READING, SHARE * (since + state.remaining))
            if since < LONGEST:
                left = min(state.remaining, max(self._usual, state.round))
                guess = min(guess, _OF_THE_REST * left)
            guess *= len(states) / prices.rows
            most = saved * state.remaining / prices.rows
            if not saved or not any(known):
                most = max(guess - spent, most)
            new = one and not read and took < most
            spent += took * new
            worth.append(one and (read or new))
        return worth

    def read(self, took: float, expected: float) -> None:
        """Owe what reading prompts on a guess took, but for most of a hiccup.

        Args:
            took: in plain rounds.
            expected: what that many tokens were thought to take.
        """
        self.owed += min(took, 2 * max(READING, expected))

    def spend(self, lost: float, read_on: float = 0.0, decided: float = 0.0) -> None:
        """Take what a try lost, but for most of a hiccup: the next try is not to be years off.

        What it gained is put in: where drafting might just pay, that is soon known.

        Args:
            lost: in all, but for what it took to decide on it.
            read_on: what reading on took of it; more than `READING` was a hiccup.
            decided: what deciding took.
        """
        self._decisions.append(_DECISIONS * decided)
        lost += median_low(self._decisions)
        left = min(read_on, READING) or self._read_on
        self._read_on = max(left - max(lost - read_on, 0.0), 0.0)
        self._since = _APART if lost < 0 else 0
        self._filled = max(self._filled - lost, -2 * max(self._price, READING))
        self._filled = min(self._filled, self._most)

    @property
    def _usual(self) -> float:
        """How many rounds a sequence takes; beforehand it is as if one had taken `LONGEST`."""
        return min(LONGEST, self._rounds / self._count)

    @property
    def _most(self) -> float:
        """The most that it may hold: more than the latest price, since that may rise each round."""
        return max(_GRANT * LONGEST, 1.1 * self._price)
