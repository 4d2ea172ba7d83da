"""Which rows of a batch draft: all, or those behind, while rows that are ahead rest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .costs import Prices

_RESTING = 1.01
"""How much better it has to look that some rows rest: what looks best is chosen from many, and the
drafter has to read what they emit meanwhile."""


@dataclass(frozen=True, slots=True)
class Drafted:
    """Which rows draft, and what rounds then bring and take at each depth.

    Attributes:
        rows: whether each does.
        tokens: of all rows, by what they count.
        seconds: of the round.
        drafting: seconds of its draft, beside what is drafted in any case.
    """

    rows: list[bool]
    tokens: list[float]
    seconds: list[float]
    drafting: list[float]

    def at_most(self, tokens: float, depth: float) -> float:
        """How many times as fast as plain decoding so many tokens are at a depth, if verified free.

        Verifying drafts takes no less than a plain round. What looks so is nearly always a plain
        round that was measured at another time, and drafts that are never kept would seem to gain.
        Drafting comes before that: a device on which it hides what launching the target takes would
        gain more.
        """
        plain_s = self.seconds[0]
        draft_s = float(np.interp(depth, np.arange(len(self.drafting)), self.drafting))
        return tokens / self.tokens[0] * plain_s / (plain_s + draft_s)

    @property
    def at_least(self) -> list[float]:
        """Seconds of the round at each depth, but no less than of a plain one and the draft."""
        plain_s = self.seconds[0]
        pairs = zip(self.seconds, self.drafting, strict=True)
        return [max(seconds, plain_s + draft_s) for seconds, draft_s in pairs]

    @staticmethod
    def all_of(each: NDArray[np.float64], prices: Prices, deepest: int) -> Drafted:
        """All rows.

        Args:
            each: what each row emits at each depth, float64 [B, N + 1].
            prices: of rounds.
            deepest: how many steps are taken in any case.
        """
        depths = np.arange(each.shape[1]).clip(deepest)
        drafting = prices.drafting[depths] - prices.drafting[deepest]
        seconds = prices.rounds[depths]
        rows, tokens = [True] * len(each), each.sum(0)
        return Drafted(rows, tokens.tolist(), seconds.tolist(), drafting.clip(0).tolist())

    @staticmethod
    def some_of(
        each: NDArray[np.float64],
        weights: NDArray[np.float64],
        plain: float,
        times: NDArray[np.float64],
        drafting: NDArray[np.float64],
        tried: int,
    ) -> Drafted:
        """All rows; or those that gain most, as many as bring most in the time, if clearly more.

        Args:
            each: see `all_of`.
            weights: what a token of each row counts, float64 [B].
            plain: seconds of a plain round.
            times: of rounds where 1, 2, ... rows draft 1, 2, ..., N tokens, float64 [M, N], M >= B.
            drafting: of their drafts, beside looking tokens up, float64 [M, N].
            tried: how deep they draft at most.
        """
        gains = weights[:, None] * (each - 1)
        order = np.argsort(-gains, axis=0, kind="stable")
        totals = len(each) + np.take_along_axis(gains, order, 0).cumsum(0)
        rates = totals[:, 1 : tried + 1] / times[: len(each), :tried]
        rates[:-1] /= _RESTING
        count, depth = np.unravel_index(int(rates.argmax()), rates.shape)
        chosen = order[: count + 1, depth + 1]
        rows = np.zeros(len(each), dtype=np.bool_)
        rows[chosen] = True
        tokens = len(each) + gains[chosen].sum(0)
        seconds, drafts = [plain, *times[count].tolist()], [0.0, *drafting[count].tolist()]
        return Drafted(rows.tolist(), tokens.tolist(), seconds, drafts)
