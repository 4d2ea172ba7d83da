"""What a contender has done under a regime, stretch by stretch."""

from __future__ import annotations

from collections.abc import Sequence

from ..engine.metrics import Tally
from .entrants import Entrant
from .matrix import Regime
from .race import Racer, compared
from .records import Measurement


class Score:
    """Adds stretches up.

    Args:
        entrant: whose they are.
    """

    def __init__(self, entrant: Entrant) -> None:
        self.entrant = entrant
        self._seconds: list[float] = []
        self._prompt_s: list[float] = []
        self._tokens: list[int] = []
        self._same: list[bool] = []
        self._tally = Tally(lossy=entrant.lossy)

    def __len__(self) -> int:
        return len(self._tokens)

    def add(self, lane: Racer, expected: tuple[tuple[int, ...], ...] | None) -> None:
        """Count a stretch; `expected` is what it should have emitted, where that is known."""
        self._seconds.append(lane.seconds)
        self._prompt_s.append(lane.prompt_s)
        self._tokens.append(sum(map(len, lane.token_ids)))
        if expected is not None:
            self._same.append(lane.token_ids == expected)
        for record in lane.records:
            self._tally.add(record)

    def measurement(
        self,
        plain: Score,
        regime: Regime,
        asked: Sequence[int],
        distinct: int,
        *,
        partial: bool,
    ) -> Measurement:
        """What it comes to beside plain decoding.

        Args:
            plain: the score of plain decoding on the same stretches.
            regime: that of both.
            asked: how many tokens each stretch was to emit. If one of the two emitted another
                number there is no speedup.
            distinct: how many stretches there are before they are repeated.
            partial: whether stretches are missing.
        """
        ratio: float | None = None
        low: float | None = None
        high: float | None = None
        if self._tokens == plain._tokens == list(asked):
            ratio, low, high = compared(
                plain._seconds, plain._tokens, self._seconds, self._tokens, distinct
            )
        return Measurement(
            contender=self.entrant.contender,
            workload=regime.workload.name,
            temperature=regime.temperature,
            batch=regime.batch,
            dtype=regime.dtype,
            seconds=tuple(self._seconds),
            tokens=tuple(self._tokens),
            metrics=self._tally.metrics(),
            identical=sum(self._same) if self._same else None,
            speedup=ratio,
            low=low,
            high=high,
            prompt_s=tuple(self._prompt_s),
            partial=partial,
        )
