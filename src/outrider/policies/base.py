"""What the engine asks of a policy: how far to draft, and nothing else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from ..types.records import DraftPlan, RoundRecord, RowOutcome, SequenceState


class Policy(ABC):
    """Decides how many tokens to draft for each sequence.

    A policy has no state. What it has learnt is a frozen value, its knowledge, that the decoder
    holds and hands to `plan`; `observe` alone makes a new one. What it remembers of one sequence is
    `SequenceState.history`, made by `remember`.

    Attributes:
        learns: whether plans depend on knowledge or history.
    """

    learns: bool = False

    def start(self) -> Any:
        """Return the knowledge of a policy that has seen no round."""
        return None

    @abstractmethod
    def plan(self, knowledge: Any, states: Sequence[SequenceState]) -> DraftPlan:
        """Plan a round: a depth in 0..max(0, remaining - 1) for each state. Change nothing.

        Args:
            knowledge: what `start` or the last `observe` returned.
            states: the sequences of the round.
        """

    def observe(self, knowledge: Any, states: Sequence[SequenceState], record: RoundRecord) -> Any:
        """Return the knowledge after a round.

        Args:
            knowledge: before it.
            states: the sequences after it.
            record: what it did.
        """
        del states, record
        return knowledge

    def remember(self, history: Any, outcome: RowOutcome) -> Any:
        """Return the history of one sequence after a round.

        Args:
            history: before it; None before the first.
            outcome: what became of its draft.
        """
        del outcome
        return history
