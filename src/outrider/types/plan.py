"""How far and in what shape a round drafts, and when a draft ends before that."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class DraftTree:
    """The shape of a draft tree.

    Attributes:
        levels: the number of nodes at each depth.
        children: the number of children of each node at each depth; None where a level's nodes are
            shared out among their parents by the drafter.
    """

    levels: tuple[int, ...]
    children: tuple[int, ...] | None = None


class StopRule(ABC):
    """Decides while a round drafts: whether to draft one more token, and whether to look up.

    Rows are those of the plan. Every method is a pure function. Whether a token is drafted must not
    depend on that token's own drawn value: confidences never do.
    """

    @property
    @abstractmethod
    def model_depth(self) -> NDArray[np.int64]:
        """The most tokens in a row that a model drafts for each row, int64 [B]."""

    @abstractmethod
    def continues(
        self, confidence: NDArray[np.float64], drafting: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """Decide which rows draft another token.

        Args:
            confidence: of the n tokens that each row has drawn, float64 [B, n]; NaN where the
                draft's logits are not finite.
            drafting: the rows that may draft another, bool [B].

        Returns:
            bool [B]; rows that are not drafting may hold anything.
        """

    @abstractmethod
    def kept(self, source: str, confidence: NDArray[np.float64]) -> NDArray[np.float64]:
        """Estimate the probability that each token is kept, given that all before it are.

        Args:
            source: the drafter's `source`.
            confidence: of the tokens of each row, float64 [B, n].

        Returns:
            float64 [B, n], in [0, 1].
        """

    @abstractmethod
    def lookup(self, row: int, reach: NDArray[np.float64]) -> int:
        """Choose how many looked-up tokens to propose in place of a row's model draft.

        Args:
            row: of the plan.
            reach: the estimated probability that each token is kept with all before it, float64
                [n], not increasing.

        Returns:
            0..n; 0 leaves the row to the model.
        """


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """How far to draft, and in what shape.

    Attributes:
        depth: the most tokens in a row for each sequence, int64 [B], 0 included.
        tree: the shape of the drafts; None drafts chains. A row of smaller depth has the first
            levels only.
        stop: ends drafts early; None drafts every row to its depth.
    """

    depth: NDArray[np.int64]
    tree: DraftTree | None = None
    stop: StopRule | None = None

    @property
    def model_depth(self) -> NDArray[np.int64]:
        """The most tokens in a row that a model drafts for each row, int64 [B]."""
        if self.stop is None:
            return self.depth
        return np.minimum(self.depth, self.stop.model_depth)

    @property
    def deepest(self) -> int:
        """The largest depth of any row."""
        return int(self.depth.max(initial=0))

    @property
    def width(self) -> int:
        """The most tokens drafted for any row: the N of this round."""
        return self.deepest if self.tree is None else sum(self.tree.levels[: self.deepest])

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The most tokens drafted for each row, int64 [B]."""
        if self.tree is None:
            return self.depth
        return np.concatenate([[0], np.cumsum(self.tree.levels)]).astype(np.int64)[self.depth]


@dataclass(frozen=True, slots=True)
class RowOutcome:
    """What became of one row's draft in a round.

    Attributes:
        source: the drafter that its tokens came from.
        depth: the number of tokens drafted in a row.
        kept: how many of them were kept.
        confidence: of the tokens in a row, where the plan asked for it; empty otherwise.
    """

    source: str
    depth: int
    kept: int
    confidence: tuple[float, ...] = ()
