"""When a draft ends, and when looked-up tokens take the place of a model's."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..types.plan import StopRule
from .acceptance import Acceptance, buckets_of, rates


@dataclass(frozen=True)
class Rule(StopRule):
    """Repeat recorded depths, and go by confidences as they are; see `StopRule`.

    Attributes:
        depths: that a model may draft, int64 [B].
        recorded: the tokens to look up in a row that repeats a recorded round, int64 [B]; -1 in
            other rows.
    """

    depths: NDArray[np.int64]
    recorded: NDArray[np.int64]

    @property
    def model_depth(self) -> NDArray[np.int64]:
        """The most tokens in a row that a model drafts for each row, int64 [B]."""
        return self.depths

    def continues(
        self, confidence: NDArray[np.float64], drafting: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """Decide which rows draft another token: those that it pays for, and those replayed."""
        return drafting & ((self.recorded >= 0) | self._pays(confidence, drafting))

    def kept(self, source: str, confidence: NDArray[np.float64]) -> NDArray[np.float64]:
        """Take a confidence for the probability that the token is kept."""
        del source
        return np.clip(np.nan_to_num(confidence), 0.0, 1.0)

    def lookup(self, row: int, reach: NDArray[np.float64]) -> int:
        """Choose how many looked-up tokens to propose: in a replayed row as many as it had."""
        if self.recorded[row] >= 0:
            return min(int(self.recorded[row]), len(reach))
        return self._looked_up(row, reach)

    @abstractmethod
    def _pays(
        self, confidence: NDArray[np.float64], drafting: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """Decide which rows another token pays for, bool [B]; arguments as of `continues`."""

    @abstractmethod
    def _looked_up(self, row: int, reach: NDArray[np.float64]) -> int:
        """Choose how many looked-up tokens to propose for a row that is not replayed."""


@dataclass(frozen=True)
class BreakEven(Rule):
    """Draft another token exactly where it is expected to pay.

    A draft step is one for all rows, and a token more for one row is a column more for all. So the
    rows that share knowledge decide together: another step is taken if

        sum over rows still drafting of s[b, n + 1] > g * (draft_step_s + rows * verify_token_s)

    with s the product of the calibrated rates of the tokens drawn, by confidence, and of the next
    one's, by position, and g tokens a second. A seeded row decides by itself, by the same formula
    of one row: what it drafts must not depend on others.

    Attributes:
        group: which of G groups decides about each row, int64 [B].
        rows: rows padded to the widest draft of the group, int64 [G].
        step: tokens that a draft step has to bring, float64 [G].
        token: tokens that one more verified token of a row has to bring, float64 [G].
        looked_up: the most tokens that are looked up for a row, int64 [G].
        probe: whether at least one token is drafted although that is not expected to pay, bool [G].
        gain: tokens that the model's draft is expected to bring each row beyond those of plain
            rounds in its time, float64 [B]; infinite for a row that is left to the model.
        by_confidence: the rate at which a model's token of each confidence is kept, float64
            [B, BUCKETS].
        by_position: the rate at which a model's token is kept at each place, float64 [B, K].
        columns: tokens that each row gets at each depth, int64 [K]: 1 on chains.
        steps: draft steps that each depth takes beyond the one before, int64 [K].
        shared, own: of each row, what is known of all that it may go by, and of itself beside them.
    """

    group: NDArray[np.int64]
    rows: NDArray[np.int64]
    step: NDArray[np.float64]
    token: NDArray[np.float64]
    looked_up: NDArray[np.int64]
    probe: NDArray[np.bool_]
    gain: NDArray[np.float64]
    by_confidence: NDArray[np.float64]
    by_position: NDArray[np.float64]
    columns: NDArray[np.int64]
    steps: NDArray[np.int64]
    shared: Sequence[Acceptance]
    own: Sequence[Acceptance]

    def _pays(
        self, confidence: NDArray[np.float64], drafting: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        drawn = confidence.shape[1]
        if self.by_position.shape[1] <= drawn:  # Only a replay goes beyond the deepest draft.
            return np.zeros_like(drafting)
        kept = np.take_along_axis(self.by_confidence, buckets_of(confidence), 1)
        reached = np.where(drafting, kept.prod(1) * self.by_position[:, drawn], 0.0)
        gains = np.bincount(self.group, reached, len(self.step))
        needed = self.step * self.steps[drawn] + self.rows * self.columns[drawn] * self.token
        pays: NDArray[np.bool_] = (gains > needed)[self.group]
        return pays

    def kept(self, source: str, confidence: NDArray[np.float64]) -> NDArray[np.float64]:
        """Estimate the probability that each token is kept; see `StopRule`."""
        by_confidence, _ = rates(self.shared, self.own, source)
        return np.take_along_axis(by_confidence, buckets_of(confidence), 1)

    def _looked_up(self, row: int, reach: NDArray[np.float64]) -> int:
        """Choose what gains more: looked-up tokens, and how many, or a model's."""
        group = self.group[row]
        reach = reach[: self.looked_up[group]]
        gains = np.cumsum(reach) - self.token[group] * np.arange(1, len(reach) + 1)
        if gains.max(initial=0.0) > max(0.0, self.gain[row]):
            return int(gains.argmax()) + 1
        return int(self.probe[group] and len(reach) > 0 and not self.depths[row])
