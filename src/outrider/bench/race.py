"""Decoders raced against each other: a round of each in turn, so that noise meets them alike."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, sqrt
from statistics import median
from time import perf_counter
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..config.params import SamplingParams
from ..engine.decoder import SpeculativeDecoder
from ..engine.metrics import SpeculationMetrics, Tally
from ..engine.scheduler import Run
from ..types.records import RoundRecord
from .student import quantile

_RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Timed:
    """One way of decoding, on some prompts.

    Attributes:
        seconds: for each batch of prompts, as its `Lane` counts them.
        token_ids: for each batch, the tokens emitted for each prompt.
        metrics: of its rounds.
        full: for each batch, seconds and tokens of the rounds in which no prompt's text was over
            yet, but for the target's reading of the prompts.
        usual: for each batch, its seconds had each round taken what its kind usually took.
    """

    seconds: tuple[float, ...]
    token_ids: tuple[tuple[tuple[int, ...], ...], ...]
    metrics: SpeculationMetrics
    full: tuple[tuple[float, int], ...] = ()
    usual: tuple[float, ...] = ()

    @property
    def tokens(self) -> tuple[int, ...]:
        """How many tokens were emitted in each batch."""
        return tuple(sum(map(len, batch)) for batch in self.token_ids)

    @staticmethod
    def of(lanes: Sequence[Racer]) -> Timed:
        """What one way of decoding, lossless, has made of each batch."""
        tally = Tally()
        for lane in lanes:
            for record in lane.records:
                tally.add(record)
        return Timed(
            tuple(lane.seconds for lane in lanes),
            tuple(lane.token_ids for lane in lanes),
            tally.metrics(),
            tuple(_full(lane) for lane in lanes),
            _usual(lanes),
        )


def _full(lane: Racer) -> tuple[float, int]:
    """Seconds and tokens of the rounds of as many sequences as the first one.

    What a lane takes beside its rounds is shared out among all of them.
    """
    records = lane.records
    rounds = [one for one in records if len(one.emitted) == len(records[0].emitted)]
    beside = lane.seconds + lane.prompt_s - sum(one.total_s for one in records)
    seconds = sum(one.total_s for one in rounds) + beside * len(rounds) / len(records)
    return seconds - lane.prompt_s, sum(sum(one.emitted) for one in rounds)


def _usual(lanes: Sequence[Racer]) -> tuple[float, ...]:
    """Seconds of each lane with every round's time replaced by the median of its kind's.

    Rounds are of a kind that have as many sequences, are as wide, take as many steps of a drafter's
    model, and look tokens up or do not. So slow moments of the machine count for little: for
    nothing in kinds of which most rounds met none, and in full in those that came once. What single
    rounds took more for a reason, such as a drafter's reading of a prompt when it is first used, is
    left out with them. The first round of each lane, and what it takes beside its rounds, count as
    they are.
    """
    kinds: dict[tuple[int, ...], list[float]] = defaultdict(list)
    for lane in lanes:
        for one in lane.records[1:]:
            kinds[_kind(one)].append(one.total_s)
    took = {kind: median(times) for kind, times in kinds.items()}
    return tuple(
        lane.seconds + sum(took[_kind(one)] - one.total_s for one in lane.records[1:])
        for lane in lanes
    )


def _kind(record: RoundRecord) -> tuple[int, ...]:
    own = (
        0 if looked else deep for deep, looked in zip(record.depth, record.looked_up, strict=True)
    )
    width = max(record.drafted)
    return (len(record.emitted), width, max(own), any(record.looked_up) and width > 0)


def speedup(
    plain_s: Sequence[float],
    plain_tokens: Sequence[float],
    other_s: Sequence[float],
    other_tokens: Sequence[float],
    distinct: int | None = None,
) -> tuple[float, float, float]:
    """Tokens a second over plain decoding's, and a 95% interval.

    The standard error of the ratio's logarithm is bootstrapped over stretches, which are resampled
    in pairs, since both ways of decoding met the same prompt and the same noise. Resamples of n
    stretches vary by sqrt((n - 1) / n) too little, which is put right, and the interval is that of
    Student's t with n - 1 degrees of freedom: the percentiles of the resamples would hold the truth
    half of the time with two stretches, and four times in five with four. Repeats of a stretch say
    nothing of other prompts, and are added up before.

    One stretch says nothing of others: its interval is the ratio alone, and means nothing.

    Args:
        plain_s, plain_tokens: of each stretch of plain decoding.
        other_s, other_tokens: of the other way.
        distinct: how many stretches there are before they come again; None for all.
    """
    each = np.array([plain_s, other_s, plain_tokens, other_tokens], dtype=float)
    count = min(distinct or each.shape[1], each.shape[1])
    found = np.stack([each[:, first::count].sum(1) for first in range(count)], 1)
    ratio = float(_ratio(found.sum(1)))
    if count < 2:
        return ratio, ratio, ratio
    picks = np.random.default_rng(0).integers(count, size=(_RESAMPLES, count))
    error = float(np.log(_ratio(found[:, picks].sum(-1))).std()) * sqrt(count / (count - 1))
    margin = exp(quantile(count - 1) * error)
    return ratio, ratio / margin, ratio * margin


def compared(
    plain_s: Sequence[float],
    plain_tokens: Sequence[float],
    other_s: Sequence[float],
    other_tokens: Sequence[float],
    distinct: int,
) -> tuple[float, float | None, float | None]:
    """`speedup`, but no interval where fewer than two stretches are not repeats."""
    gain, low, high = speedup(plain_s, plain_tokens, other_s, other_tokens, distinct)
    return (gain, None, None) if min(len(plain_s), distinct) < 2 else (gain, low, high)


def _ratio(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    plain_s, other_s, plain_tokens, other_tokens = sums
    return np.asarray((other_tokens / other_s) / (plain_tokens / plain_s))


def race(
    decoders: Sequence[SpeculativeDecoder],
    batches: Sequence[Sequence[Sequence[int]]],
    params: SamplingParams,
) -> list[Timed]:
    """Decode batches of prompts with several decoders, one round of each in turn.

    Args:
        decoders: of the same models, lossless; each decodes in slots of its own.
        batches: for each batch, the token ids of its prompts.
        params: of every request; where it has a seed, the others of a batch have the next ones:
            with one for all their texts would be alike.
    """
    raced = []
    for batch in batches:
        each = [
            params if params.seed is None else replace(params, seed=params.seed + row)
            for row in range(len(batch))
        ]
        lanes = [Lane(decoder, batch, each) for decoder in decoders]
        in_turn(lanes)
        raced.append(lanes)
    return [Timed.of(lanes) for lanes in zip(*raced, strict=True)]


class Racer(Protocol):
    """One way of decoding on its way through a batch of prompts, with a clock of its own.

    Attributes:
        running: whether there is more to decode.
        seconds: from the request to the last token, but for `prompt_s`.
        prompt_s: of the target's first forward, which reads the prompts.
        records: of its rounds; their times may stand in the first alone.
        failure: why it ended without a text, if it did. What is Outrider's own raises instead.
    """

    running: bool
    seconds: float
    prompt_s: float
    records: list[RoundRecord]
    failure: str | None

    @property
    def token_ids(self) -> tuple[tuple[int, ...], ...]:
        """What was emitted for each prompt."""
        ...

    def advance(self) -> None:
        """Decode some more: a round, or as little as can be decoded at once."""
        ...

    def close(self) -> None:
        """Free what is held."""
        ...


def in_turn(lanes: Sequence[Racer], *, whole: bool = False) -> None:
    """Run lanes to their ends.

    Args:
        lanes: in the order of their turns.
        whole: whether a turn is all of the batch, and not one round.
    """
    try:
        while any(lane.running for lane in lanes):
            for lane in lanes:
                lane.advance()
                while whole and lane.running:
                    lane.advance()
    finally:
        for lane in lanes:
            lane.close()


class Lane:
    """One decoder on its way through a batch, and its own clock: a `Racer`.

    The clock runs from the request to the end of the last round, but for the target's first
    forward: there it reads the prompts, which takes as long with drafts as without. What a drafter
    does in that round counts, its reading of the prompts too.

    Args:
        decoder: of any number of sequences.
        batch: the token ids of the prompts.
        params: of each request.
    """

    def __init__(
        self,
        decoder: SpeculativeDecoder,
        batch: Sequence[Sequence[int]],
        params: Sequence[SamplingParams],
    ) -> None:
        start = perf_counter()
        states = [
            state
            for prompt, asked in zip(batch, params, strict=True)
            for state in decoder.start(list(prompt), asked)
        ]
        self._rounds = iter(Run(decoder, states, discard=True))
        self.seconds = perf_counter() - start
        self.prompt_s = 0.0
        self.records: list[RoundRecord] = []
        self.running = True
        self.failure: str | None = None
        self._emitted: dict[int, list[int]] = {state.prefix.sequence_id: [] for state in states}

    @property
    def token_ids(self) -> tuple[tuple[int, ...], ...]:
        """What was emitted for each prompt."""
        return tuple(tuple(tokens) for tokens in self._emitted.values())

    def advance(self) -> None:
        """One more round, if there is one."""
        if not self.running:
            return
        start = perf_counter()
        step = next(self._rounds, None)
        self.seconds += perf_counter() - start
        self.running = step is not None
        if step is None:
            return
        if not self.records:
            self.prompt_s = step.record.target_s
            self.seconds -= self.prompt_s
        self.records.append(step.record)
        for state, tokens in zip(step.batch.states, step.emitted, strict=True):
            self._emitted[state.prefix.sequence_id] += tokens

    def close(self) -> None:
        """Free what is held."""
        self._rounds.close()
