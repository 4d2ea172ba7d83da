"""The same depth every round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..types.records import DraftPlan, SequenceState
from .base import Policy
from .shape import Shape


class FixedDepth(Policy):
    """Draft `num_speculative_tokens` each round, or less where fewer tokens remain.

    A request that carries `depths` is drafted as they say, as long as they last. There is no stop
    rule: a drafter that may look tokens up decides by itself, each time alike.

    Args:
        shape: of the drafts.
    """

    def __init__(self, shape: Shape) -> None:
        self._shape = shape

    def plan(self, knowledge: Any, states: Sequence[SequenceState]) -> DraftPlan:
        """Plan the same depth for each state."""
        del knowledge
        return self._shape.plan(self._shape.allowed(states)[0])
