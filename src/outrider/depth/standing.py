"""What a batch decided, which stands for a few rounds: planning takes a while, too."""

from __future__ import annotations

from collections.abc import Sequence

from ..records import SequenceState
from .choices import Choices

_ROUNDS = 3
"""For how many more rounds..."""

_SETTLED = 8
"""... once each of the sequences has been through so many."""


class Standing:
    """The latest decision, and for which sequences it was made: for these and no others."""

    def __init__(self) -> None:
        self._decided: Choices | None = None
        self._sequences: list[int] = []
        self._rounds = 0

    def choices(self, states: Sequence[SequenceState]) -> Choices | None:
        """What was decided for these sequences, if that stands for another round."""
        if not self._rounds or self._sequences != _ids(states):
            return None
        self._rounds -= 1
        return self._decided

    def decide(self, states: Sequence[SequenceState], choices: Choices) -> None:
        """Go by a decision, unless it is an exception or too early."""
        settled = choices.stands and min(state.round for state in states) >= _SETTLED
        self._decided, self._sequences = choices, _ids(states)
        self._rounds = _ROUNDS if settled else 0

    def end(self) -> None:
        """Something happened that a new decision has to take into account."""
        self._rounds = 0


def _ids(states: Sequence[SequenceState]) -> list[int]:
    return [state.prefix.sequence_id for state in states]
