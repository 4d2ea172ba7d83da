"""How far to draft."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .records import DraftPlan, SequenceState


class FixedDepth:
    """Draft `num_speculative_tokens` each round, or less where fewer tokens remain.

    A round's last token is the correction or the bonus, so at most `remaining - 1` are drafted. A
    request that carries `depths` is drafted as it says while it says anything.
    """

    def __init__(self, num_speculative_tokens: int) -> None:
        self.num_speculative_tokens = num_speculative_tokens

    def plan(self, states: Sequence[SequenceState]) -> DraftPlan:
        """The depth of each sequence's next round."""
        return DraftPlan(np.array([self._depth(state) for state in states], dtype=np.int64))

    def _depth(self, state: SequenceState) -> int:
        wanted = self.num_speculative_tokens
        if state.params.depths is not None and state.round < len(state.params.depths):
            wanted = state.params.depths[state.round]
        return max(0, min(wanted, state.remaining - 1))
