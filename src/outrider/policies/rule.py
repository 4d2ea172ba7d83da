"""When a draft ends, and when looked-up tokens take the place of a model's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..types.plan import StopRule
from .acceptance import Acceptance, buckets_of, rates_by_confidence


@dataclass(frozen=True)
class BreakEven(StopRule):
    """Draft another token exactly where it is expected to pay.

    A draft step is one for all rows, and a token more for one row is a column more for all. So the
    rows that share knowledge decide together: another step is taken if

        sum over rows still drafting of s[b, n + 1] > g * (draft_step_s + rows * verify_token_s)

    with s the product of the calibrated rates of the tokens drawn, by confidence, and of the next
    one's, by position, and g tokens a second. A seeded row decides by itself, by the same formula
    of one row: what it drafts must not depend on others. A replayed row goes on.

    Attributes:
        depths: that a model may draft, int64 [B].
        planned: that it is expected to draft, int64 [B].
        alone: rows that decide by themselves, bool [B].
        replayed: rows that repeat a recorded depth, bool [B].
        looked_up: those of them whose tokens were looked up, bool [B].
        probe: whether at least one token that can be looked up is.
        by_confidence: the rate at which a model's token of each confidence is kept, float64
            [B, BUCKETS].
        by_position: the rate at which a model's token is kept at each place, float64 [B, K].
        step: tokens that a draft step has to bring, for a row that decides by itself, or for the
            rows that decide together, float64 [B].
        token: tokens that one more verified token of a row has to bring, float64 [B].
        columns: tokens that each row gets at each depth, int64 [K]: 1 on chains.
        shared: what is known of all sequences.
        own: what is known of each.
    """

    depths: NDArray[np.int64]
    planned: NDArray[np.int64]
    alone: NDArray[np.bool_]
    replayed: NDArray[np.bool_]
    looked_up: NDArray[np.bool_]
    probe: bool
    by_confidence: NDArray[np.float64]
    by_position: NDArray[np.float64]
    step: NDArray[np.float64]
    token: NDArray[np.float64]
    columns: NDArray[np.int64]
    shared: Acceptance
    own: tuple[Acceptance, ...]

    @property
    def model_depth(self) -> NDArray[np.int64]:
        """The most tokens in a row that a model drafts for each row, int64 [B]."""
        return self.depths

    def continues(
        self, confidence: NDArray[np.float64], drafting: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """Decide which rows draft another token; see `StopRule`."""
        drawn = confidence.shape[1]
        places = self.by_position[:, : drawn + 1]
        if places.shape[1] <= drawn:  # Only a replay goes beyond the deepest draft.
            return drafting & self.replayed
        rates = np.take_along_axis(self.by_confidence, buckets_of(confidence), 1)
        rates = np.where(np.isnan(confidence), places[:, :drawn], rates)
        reached = rates.prod(1) * places[:, drawn]
        together = drafting & ~self.alone & ~self.replayed
        columns = self.columns[drawn]
        pays = reached > self.step + columns * self.token
        if together.any():
            needed = self.step[together][0] + len(drafting) * columns * self.token[together][0]
            pays = np.where(self.alone, pays, reached[together].sum() > needed)
        going: NDArray[np.bool_] = drafting & (pays | self.replayed)
        return going

    def kept(self, source: str, confidence: NDArray[np.float64], row: int) -> NDArray[np.float64]:
        """Estimate the probability that a row's token is kept; see `StopRule`."""
        # A replayed row went by its own history, as a seeded one does.
        known = None if self.alone[row] or self.replayed[row] else self.shared
        rates = rates_by_confidence(known, self.own[row : row + 1], source)[0]
        kept: NDArray[np.float64] = rates[buckets_of(confidence)]
        return kept

    def lookup(self, row: int, reach: NDArray[np.float64]) -> int:
        """Choose what gains more: looked-up tokens, and how many, or a model's; see `StopRule`."""
        if self.replayed[row]:
            return len(reach) if self.looked_up[row] else 0
        if not len(reach):
            return 0
        gains = np.cumsum(reach) - self.token[row] * np.arange(1, len(reach) + 1)
        best = int(gains.argmax())
        if gains[best] > max(0.0, self._model_gain(row)):
            return best + 1
        return int(self.probe and not self.alone[row] and not self.depths[row])

    def _model_gain(self, row: int) -> float:
        """Return the tokens that a model's draft brings beyond those that plain decoding makes in its time."""
        depth = int(self.planned[row])
        sharing = 1 if self.alone[row] else ((self.planned > 0) & ~self.alone).sum()
        expected = self.by_position[row, :depth].cumprod().sum()
        cost = (
            depth * self.step[row] / max(1, sharing) + self.columns[:depth].sum() * self.token[row]
        )
        return float(expected - cost)
