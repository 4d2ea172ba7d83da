"""Draft while the draft is confident: decided anew before each token, without learning.

Method: AdaEDL (Agrawal et al. 2024, arXiv 2410.18351) takes max(0, 1 - sqrt(0.2 H)), H the entropy
in nats of the distribution that a token was drawn from, for the probability that it is kept. That
is a heuristic and no bound: of a target and a draft that have nothing to do with each other, tokens
are often kept less. AdaEDL compares it with a threshold that is moved until a wanted share is kept;
here the threshold follows from what a token costs, so that nothing is remembered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..types.records import DraftPlan, SequenceState
from .base import Policy
from .fixed import Shape
from .rule import Rule


@dataclass(frozen=True)
class ConfidenceRule(Rule):
    """Draw another token if that raises tokens per second, going by the confidences as they are.

    With confidences a_i and a draft step that costs c plain rounds, n tokens in a row emit
    E(n) = 1 + a_1 + a_1 a_2 + ... and take 1 + n c. The next token's confidence is not known before
    its step; it is taken to be the last one's. So another is drawn unless
    a_1 ... a_n a_n (1 + n c) < c E(n). A draft whose logits are not finite goes on.

    Attributes:
        cost_ratio: c.
    """

    cost_ratio: float

    def _pays(
        self, confidence: NDArray[np.float64], drafting: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        del drafting
        reached = confidence.cumprod(1)
        tokens = 1 + reached.sum(1)
        rounds = 1 + confidence.shape[1] * self.cost_ratio
        ends = reached[:, -1] * confidence[:, -1] * rounds < self.cost_ratio * tokens
        pays: NDArray[np.bool_] = ~ends
        return pays

    def _looked_up(self, row: int, reach: NDArray[np.float64]) -> int:
        """Use looked-up tokens if at least one of them is expected to be kept."""
        return len(reach) if not self.depths[row] or reach.sum() >= 1 else 0


class ConfidenceDepth(Policy):
    """Draft while the draft is confident enough to pay, `num_speculative_tokens` at most.

    Nothing is learnt or measured: a request is drafted alike whatever came before it and whoever
    shares its batch. One token is drafted at least, none where a step costs more than a round.

    Args:
        shape: of the drafts: chains.
        cost_ratio: a draft step beside a plain round of the target.
        looks_up: whether some of the drafter's tokens take no step of a model.
    """

    def __init__(self, shape: Shape, cost_ratio: float, *, looks_up: bool = False) -> None:
        self._shape = shape
        self._cost_ratio = cost_ratio
        self._looks_up = looks_up

    def plan(self, knowledge: Any, states: Sequence[SequenceState]) -> DraftPlan:
        """Plan the most tokens of each state, and what ends a draft before."""
        del knowledge
        most, model_most, recorded = self._shape.allowed(states)
        unpaid = (self._cost_ratio > 1) & (recorded < 0)
        rule = ConfidenceRule(np.where(unpaid, 0, model_most), recorded, self._cost_ratio)
        depth = most if self._looks_up else np.where(unpaid, 0, most)
        return DraftPlan(depth, self._shape.tree, rule)
