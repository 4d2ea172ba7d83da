"""The shape of a draft of each depth, and how deep a row may be drafted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..config.params import SpeculativeConfig
from ..types import trees
from ..types.plan import DraftTree, StopRule
from ..types.records import DraftPlan, SequenceState


@dataclass(frozen=True, slots=True)
class Shape:
    """What a draft of each depth looks like.

    Attributes:
        deepest: the most tokens in a row.
        tree: the nodes at each depth, `deepest` of them; None drafts chains.
    """

    deepest: int
    tree: DraftTree | None = None

    @classmethod
    def of(cls, config: SpeculativeConfig) -> Shape:
        """Read `num_speculative_tokens`, `tree_shape` and `tree_budget`.

        A budget is shared out evenly among the depths, the first of them first.
        """
        deepest = config.deepest
        if config.tree_shape is not None:
            deepest = min(deepest, len(config.tree_shape))
            children = config.tree_shape[:deepest]
            return cls(deepest, DraftTree(tuple(trees.level_sizes(children)), children))
        if config.tree_budget is not None and deepest:
            deepest = min(deepest, config.tree_budget)
            each, more = divmod(config.tree_budget, deepest)
            return cls(deepest, DraftTree(tuple(each + (i < more) for i in range(deepest))))
        return cls(deepest)

    @property
    def nodes(self) -> NDArray[np.int64]:
        """The number of drafted tokens at each depth 0..deepest, int64 [deepest + 1]."""
        levels = [1] * self.deepest if self.tree is None else self.tree.levels[: self.deepest]
        return np.concatenate([[0], np.cumsum(levels)]).astype(np.int64)

    def size(self, depth: int) -> int:
        """Return the number of drafted tokens at one depth; chains may be of any."""
        return depth if self.tree is None else int(self.nodes[depth])

    def allowed(self, states: Sequence[SequenceState]) -> NDArray[np.int64]:
        """The most tokens in a row for each state, int64 [B].

        The last token of a round is the correction or the bonus, so that at most remaining - 1
        are drafted. A replayed depth is taken as it is, however deep a chain.
        """
        return np.array([self._allowed(state) for state in states], dtype=np.int64)

    def _allowed(self, state: SequenceState) -> int:
        depth = self.deepest
        if state.replayed is not None:
            asked = abs(state.replayed)
            depth = asked if self.tree is None else min(asked, depth)
        return max(0, min(depth, state.remaining - 1))

    def plan(self, depth: NDArray[np.int64], stop: StopRule | None = None) -> DraftPlan:
        """Make a plan of these depths, int64 [B]."""
        return DraftPlan(depth, self.tree, stop)


def replayed_rows(states: Sequence[SequenceState]) -> NDArray[np.bool_]:
    """Return which rows repeat a recorded depth in this round, bool [B]."""
    return np.array([state.replayed is not None for state in states], dtype=np.bool_)


def looked_up_rows(states: Sequence[SequenceState]) -> NDArray[np.bool_]:
    """Return which rows repeat a round whose tokens were looked up, bool [B]."""
    return np.array([(state.replayed or 0) < 0 for state in states], dtype=np.bool_)
