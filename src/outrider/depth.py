"""How far to draft."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from . import trees
from .records import DraftPlan, SequenceState


class FixedDepth:
    """Draft `num_speculative_tokens` each round, or less where fewer tokens remain.

    A round's last token is the correction or the bonus, so at most `remaining - 1` are drafted. A
    request that carries `depths` is drafted as it says while it says anything.

    Args:
        num_speculative_tokens: the most tokens in a row.
        shape: how many children a node has at each depth; None drafts chains.
        budget: how many nodes a tree has, shared out evenly among its depths, the first of them
            first; not together with `shape`.
    """

    def __init__(
        self,
        num_speculative_tokens: int,
        shape: tuple[int, ...] | None = None,
        budget: int | None = None,
    ) -> None:
        self.num_speculative_tokens = num_speculative_tokens
        self._shape = shape
        self._levels: tuple[int, ...] | None = None
        if shape is not None:
            self.num_speculative_tokens = min(num_speculative_tokens, len(shape))
            self._levels = tuple(trees.level_sizes(shape))
        elif budget is not None:
            deepest = self.num_speculative_tokens = min(num_speculative_tokens, budget)
            self._levels = tuple(
                budget // deepest + (depth < budget % deepest) for depth in range(deepest)
            )

    def plan(self, states: Sequence[SequenceState]) -> DraftPlan:
        """The depth of each sequence's next round."""
        depth = np.array([self._depth(state) for state in states], dtype=np.int64)
        return DraftPlan(depth, self._levels, self._shape)

    def _depth(self, state: SequenceState) -> int:
        wanted = self.num_speculative_tokens
        if state.params.depths is not None and state.round < len(state.params.depths):
            wanted = state.params.depths[state.round]
            if self._levels is not None:
                wanted = min(wanted, len(self._levels))
        return max(0, min(wanted, state.remaining - 1))
