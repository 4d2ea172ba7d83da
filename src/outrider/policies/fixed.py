"""The same depth every round."""

from __future__ import annotations

from collections.abc import Sequence

from ..types.records import DraftPlan, RoundRecord, SequenceState
from .levels import Levels, allowed


class FixedDepth:
    """Draft `num_speculative_tokens` each round, or less where fewer tokens remain.

    A request that carries `depths` is drafted as it says while it says anything.

    Args:
        levels: the shape of a draft.
        looks_up: whether the drafter chooses between tokens that it looked up and a model's: in a
            replay it is to choose as it did.
    """

    def __init__(self, levels: Levels, *, looks_up: bool = False) -> None:
        self._levels = levels
        self._looks_up = looks_up
        self.learns = False

    def plan(self, states: Sequence[SequenceState]) -> DraftPlan:
        """The depth of each sequence's next round."""
        own = [allowed(self._levels.deepest, state) for state in states]
        asked = self._levels.asked(states)
        if self._looks_up and any(wanted is not None for wanted in asked):
            return self._levels.replay(own, asked)
        return self._levels.plan(
            [depth if wanted is None else wanted for depth, wanted in zip(own, asked, strict=True)]
        )

    def observe(self, states: Sequence[SequenceState], record: RoundRecord) -> None:
        """Nothing that happens changes it."""
