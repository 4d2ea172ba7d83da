"""Configurations of a tuner raced against plain decoding, several at once."""

from __future__ import annotations

from collections.abc import Sequence

from ..config.params import SamplingParams
from .contending import WITH_MODEL, config_of
from .measure import Tokens, reading_s
from .race import Lane, Timed, compared, in_turn
from .records import Contender, Measurement
from .search import Models


class Heat:
    """Contenders that decode the same batches, a round of each in turn.

    Their decoders are fresh: what one has learnt of these prompts is not to help the next. They
    share a draft model, which reads a prompt once; what that takes counts for each that asks it.

    Args:
        models: the pair.
        contenders: as many as there are slots for.
        params: of every request.
    """

    def __init__(
        self, models: Models, contenders: Sequence[Contender], params: SamplingParams
    ) -> None:
        self._models = models
        self._drafting = [contender.drafter in WITH_MODEL for contender in contenders]
        self._decoders = [models.decoder(contender) for contender in contenders]
        self._params = params
        self.batches: list[list[Lane]] = []

    def run(self, batch: Sequence[Tokens]) -> None:
        """Decode a batch; if that is interrupted, none of it counts."""
        models, reading = self._models, 0.0
        if any(self._drafting) and models.drafter is not None:
            reading = reading_s(models.target, models.drafter, batch, self._params, keep=True)
        lanes = [Lane(decoder, batch, [self._params] * len(batch)) for decoder in self._decoders]
        first = len(self.batches) % len(lanes)
        in_turn([*lanes[first:], *lanes[:first]])
        for lane, drafting in zip(lanes, self._drafting, strict=True):
            lane.seconds += reading * drafting
        self.batches.append(lanes)

    def timed(self) -> list[Timed]:
        """What each contender has done so far."""
        return [Timed.of(lanes) for lanes in zip(*self.batches, strict=True)]


def measurement(
    contender: Contender,
    timed: Timed,
    plain: Timed,
    workload: str,
    temperature: float,
    batch: int,
    dtype: str,
    distinct: int,
) -> Measurement:
    """What a contender's run comes to beside plain decoding.

    Args:
        contender: who.
        timed: the run.
        plain: plain decoding, in the same heat.
        workload, temperature, batch, dtype: as in the `Measurement`.
        distinct: how many batches there are before they come again.
    """
    gain, low, high = compared(plain.seconds, plain.tokens, timed.seconds, timed.tokens, distinct)
    same = sum(a == b for a, b in zip(timed.token_ids, plain.token_ids, strict=True))
    certain = temperature == 0 and not config_of(contender).lossy
    return Measurement(
        contender=contender,
        workload=workload,
        temperature=temperature,
        batch=batch,
        dtype=dtype,
        seconds=timed.seconds,
        tokens=timed.tokens,
        metrics=timed.metrics,
        identical=same if certain else None,
        speedup=gain,
        low=low,
        high=high,
        usual_s=timed.usual,
    )
