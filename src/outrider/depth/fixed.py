"""The same depth every round."""

from __future__ import annotations

from collections.abc import Sequence

from ..records import DraftPlan, RoundRecord, SequenceState
from .levels import Levels, allowed


class FixedDepth:
    """Draft `num_speculative_tokens` each round, or less where fewer tokens remain.

    A request that carries `depths` is drafted as it says while it says anything.

    Args:
        levels: the shape of a draft.
    """

    def __init__(self, levels: Levels) -> None:
        self._levels = levels
        self.learns = False

    def plan(self, states: Sequence[SequenceState]) -> DraftPlan:
        """The depth of each sequence's next round."""
        depths = []
        for state in states:
            wanted = self._levels.replayed(state)
            depths.append(allowed(self._levels.deepest if wanted is None else wanted, state))
        return self._levels.plan(depths)

    def observe(self, states: Sequence[SequenceState], record: RoundRecord) -> None:
        """Nothing that happens changes it."""
