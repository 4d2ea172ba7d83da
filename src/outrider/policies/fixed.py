"""The shape of a draft of each depth, and the same depth every round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..config.params import SpeculativeConfig
from ..types.plan import DraftTree
from ..types.records import DraftPlan, SequenceState
from .base import Policy

Limits = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


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
            return cls(deepest, DraftTree(tuple(accumulate(children, mul)), children))
        if config.tree_budget is not None and deepest:
            deepest = min(deepest, config.tree_budget)
            each, more = divmod(config.tree_budget, deepest)
            return cls(deepest, DraftTree(tuple(each + (i < more) for i in range(deepest))))
        return cls(deepest)

    @property
    def nodes(self) -> NDArray[np.int64]:
        """The number of drafted tokens at each depth 0..deepest, int64 [deepest + 1]."""
        return DraftPlan(np.arange(self.deepest + 1), self.tree).lengths

    def size(self, depth: int) -> int:
        """Return the number of drafted tokens at one depth; chains may be of any."""
        return depth if self.tree is None else int(self.nodes[depth])

    def allowed(self, states: Sequence[SequenceState]) -> Limits:
        """Return the most tokens in a row for each state, and those of a model.

        The last token of a round is the correction or the bonus, so that at most remaining - 1
        are drafted. A replayed depth of a model is taken as it is, however deep a chain. Look-ups
        are repeated by looking as far as any round does.

        Returns:
            Both, and for rows that repeat a recorded round the tokens that it looked up, -1 for
            others; int64 [B] each.
        """
        recorded = [state.replayed for state in states]
        by_model = [self.deepest if depth is None else max(depth, 0) for depth in recorded]
        looked_up = [-1 if depth is None else max(-depth, 0) for depth in recorded]
        deepest = [
            max(model, found, self.deepest) if found > 0 else model
            for model, found in zip(by_model, looked_up, strict=True)
        ]
        if self.tree is not None:
            deepest = [min(depth, self.deepest) for depth in deepest]
        most = np.minimum(deepest, [max(0, state.remaining - 1) for state in states])
        return most, np.minimum(by_model, most), np.array(looked_up, dtype=np.int64)


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
        return DraftPlan(self._shape.allowed(states)[0], self._shape.tree)
