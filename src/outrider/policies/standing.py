"""What a batch decided, which stands for a few rounds: planning takes a while, too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log2
from typing import Generic, Protocol, TypeVar

from ..types.records import SequenceState
from .choices import Choices

DRAFTING = 8
"""For how many more rounds it stands that drafts pay, ..."""

PLAIN = 11
"""... or that they do not, for up to four sequences: of more it takes longer to decide, ..."""

PLAIN_AT_MOST = 35
"""... and until a try can be paid for, but not for more rounds than that, ..."""

_SETTLED, _TOGETHER = 8, 4
"""... once a sequence has been through so many, or each of several, which show more in a round."""


def plain_rounds(rows: int, wait: int = 0) -> int:
    """For how many more rounds it stands that drafts do not pay for so many sequences.

    Args:
        rows: how many.
        wait: for how many plain rounds there will be no try.
    """
    return max(int(PLAIN * max(log2(rows) / 2, 1.0)), min(wait, PLAIN_AT_MOST))


@dataclass(frozen=True, slots=True)
class Moment:
    """Where sequences that are decoded together were.

    Attributes:
        sequences: their names.
        rounds: how many each had been through.
    """

    sequences: list[int]
    rounds: list[int]

    @staticmethod
    def of(states: Sequence[SequenceState]) -> Moment:
        """Where they are."""
        ids = [state.prefix.sequence_id for state in states]
        return Moment(ids, [state.round for state in states])

    def since(self, states: Sequence[SequenceState]) -> int:
        """How many rounds the same sequences have been through together; -1 for others."""
        if self.sequences != [state.prefix.sequence_id for state in states]:
            return -1
        passed = {state.round - then for state, then in zip(states, self.rounds, strict=True)}
        return passed.pop() if len(passed) == 1 else -1


class _HasMoment(Protocol):
    @property
    def moment(self) -> Moment: ...


Told = TypeVar("Told", bound=_HasMoment)


class Followed(Generic[Told]):
    """The latest of what was told for a round that was done.

    What is planned and not done leaves no trace: plans are functions of the states and of what was
    observed.
    """

    def __init__(self) -> None:
        self._planned: Told | None = None
        self._done: Told | None = None

    def happened(self, states: Sequence[SequenceState]) -> None:
        """Go by the latest that was told if a round was done by it, which ended in these states."""
        planned = self._planned
        if planned and planned is not self._done and planned.moment.since(states) == 1:
            self._done = planned

    def end(self) -> None:
        """Something happened for which it has to be told anew."""
        self._planned = self._done = None


@dataclass(frozen=True, slots=True)
class _Decision:
    moment: Moment
    choices: Choices


class Standing(Followed[_Decision]):
    """The latest decision that a round was done by, for the next rounds of the same sequences."""

    def __init__(self) -> None:
        super().__init__()
        self._left = -1

    def choices(self, states: Sequence[SequenceState]) -> Choices | None:
        """What was decided for these sequences, if that stands for their next round."""
        done = self._done
        since = done.moment.since(states) if done else -1
        self._left = done.choices.stands - since if done and since >= 1 else -1
        return done.choices if done and self._left >= 0 else None

    @property
    def goes_on(self) -> bool:
        """Whether what was asked for last stands for the round after that, too."""
        return self._left > 0

    def decide(self, states: Sequence[SequenceState], choices: Choices) -> None:
        """Note a decision, unless it is an exception, or too early to go by it again."""
        enough = _SETTLED if len(states) == 1 else _TOGETHER
        settled = choices.stands and min(state.round for state in states) >= enough
        self._planned = _Decision(Moment.of(states), choices) if settled else None
