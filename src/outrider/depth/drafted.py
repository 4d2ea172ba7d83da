"""Which rows of a batch draft: all, or those behind, while rows that are ahead rest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .costs import Prices


@dataclass(frozen=True, slots=True)
class Drafted:
    """Which rows draft, and what rounds then bring and take at each depth.

    Attributes:
        rows: whether each does.
        tokens: of all rows, by what they count.
        seconds: of the round.
    """

    rows: list[bool]
    tokens: list[float]
    seconds: list[float]

    @staticmethod
    def all_of(each: NDArray[np.float64], prices: Prices, deepest: int) -> Drafted:
        """All rows.

        Args:
            each: what each row emits at each depth, float64 [B, N + 1].
            prices: of rounds.
            deepest: how many steps are taken in any case.
        """
        whole = prices.rounds
        seconds = [float(whole[max(k, deepest)]) for k in range(each.shape[1])]
        return Drafted([True] * len(each), each.sum(0).tolist(), seconds)

    @staticmethod
    def some_of(
        each: NDArray[np.float64],
        weights: NDArray[np.float64],
        plain: float,
        times: NDArray[np.float64],
        tried: int,
    ) -> Drafted:
        """Those that gain most by it, as many as bring most in the time.

        Args:
            each: see `all_of`.
            weights: what a token of each row counts, float64 [B].
            plain: seconds of a plain round.
            times: of rounds where 1, 2, ... rows draft 1, 2, ..., N tokens, float64 [M, N], M >= B.
            tried: how deep they draft at most.
        """
        gains = weights[:, None] * (each - 1)
        order = np.argsort(-gains, axis=0, kind="stable")
        totals = len(each) + np.take_along_axis(gains, order, 0).cumsum(0)
        rates = totals[:, 1 : tried + 1] / times[: len(each), :tried]
        count, depth = np.unravel_index(int(rates.argmax()), rates.shape)
        chosen = order[: count + 1, depth + 1]
        rows = np.zeros(len(each), dtype=np.bool_)
        rows[chosen] = True
        tokens = len(each) + gains[chosen].sum(0)
        return Drafted(rows.tolist(), tokens.tolist(), [plain, *times[count].tolist()])
