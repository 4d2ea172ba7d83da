"""Candidates raced against each other: whichever is behind on its own clock decodes a round."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from time import perf_counter
from typing import Any, cast

from .. import (
    Pair,
    SamplingParams,
    SpeculationMetrics,
    SpeculativeConfig,
    SpeculativeDecoder,
    StreamEvent,
    SuffixDrafter,
)
from ..config.params import WITH_MODEL
from ..engine.compatibility import parts_of
from ..engine.methods import make_drafter
from ..runtimes.base import Runtime
from ..types.records import RoundRecord
from .records import PLAIN, Candidate

Tokens = tuple[int, ...]
Turns = Generator[float, None, "Run"]
"""Yields, after each turn, the seconds on the clock so far; returns what came of it."""


@dataclass(frozen=True, slots=True)
class Run:
    """What one candidate made of one stretch.

    Attributes:
        seconds: from the request to the last token, without the target's first forward pass: it
            prefills the prompts, and takes as long with drafts as without. What a drafter does in
            that round counts.
        token_ids: emitted for each prompt.
        metrics: of the rounds so far; None for systems that do not report them.
        failure: why there is no output; None if there is one.
    """

    seconds: float
    token_ids: tuple[Tokens, ...]
    metrics: SpeculationMetrics | None = None
    failure: str | None = None

    @property
    def tokens(self) -> int:
        """How many tokens were emitted."""
        return sum(map(len, self.token_ids))


class Runner(ABC):
    """A candidate that is ready to decode stretches.

    Attributes:
        decoder: what reports figures of rounds; None where nothing does.
    """

    candidate: Candidate
    decoder: SpeculativeDecoder | None = None

    @abstractmethod
    def turns(
        self, prompts: Sequence[Tokens], params: Sequence[SamplingParams], seed: int
    ) -> Turns:
        """Decode a stretch, a round a turn if it can, else all; `seed` is for who wants one."""


class OutriderRunner(Runner):
    """A decoder of Outrider's own.

    Its target has slots of its own, so that it finds no prompt that another has prefilled.

    Args:
        target, drafter: what decodes.
        candidate: what it is called.
        settings: of the decoder; events have text if there is a tokenizer.

    Attributes:
        events, records: the tokens and rounds of the last stretch so far.
    """

    decoder: SpeculativeDecoder

    def __init__(
        self, target: Any, drafter: Any = None, candidate: Candidate = PLAIN, **settings: Any
    ) -> None:
        self.candidate = candidate
        self.events: list[StreamEvent] = []
        self.records: list[RoundRecord] = []
        self.decoder = SpeculativeDecoder(target, drafter, on_round=self.records.append, **settings)

    @staticmethod
    def of(candidate: Candidate, pair: Pair, slots: int) -> OutriderRunner:
        """Make a candidate ready over a pair's weights, with room for `slots` sequences.

        The pool in which suffix look-up remembers earlier outputs is off: a prompt that comes again
        would be answered from it.

        Raises:
            InvalidConfigError: its settings contradict each other, or there is no draft model.
        """
        target, model = pair.target.fresh(slots), pair.model_drafter
        if candidate.drafter in WITH_MODEL and model is not None:
            model = model.fresh(slots)
        suffix = SuffixDrafter(max_pool_tokens=0)
        drafter = make_drafter(candidate.drafter, target, model, suffix=suffix)
        return OutriderRunner(target, drafter, candidate, config=config_of(candidate))

    def turns(
        self, prompts: Sequence[Tokens], params: Sequence[SamplingParams], seed: int
    ) -> Turns:
        """Decode a stretch, with nothing of earlier ones in the models' caches."""
        for part in parts_of(self.decoder.target, self.decoder.drafter):
            if isinstance(part, Runtime):
                part.reset()
        self.events.clear()
        self.records.clear()
        seconds, start = 0.0, perf_counter()
        # A stream is a generator; closing it frees what the models hold.
        stream = cast(
            Generator[StreamEvent], self.decoder.stream(list(map(list, prompts)), list(params))
        )
        with closing(stream):
            # The first event of a round carries it out, the others are ready by then.
            for event in stream:
                self.events.append(event)
                self.events += islice(stream, sum(self.records[-1].emitted) - 1)
                seconds += perf_counter() - start
                yield seconds
                start = perf_counter()
        token_ids = tuple(
            tuple(event.token_id for event in self.events if event.request == request)
            for request in range(len(prompts))
        )
        return Run(seconds - self.records[0].target_s, token_ids, self.decoder.metrics)


@dataclass(slots=True)
class Lane:
    """A runner on its way through a stretch: the seconds on its clock, and at the end its run."""

    runner: Runner
    turns: Turns
    seconds: float = 0.0
    run: Run | None = None


Watch = Callable[[Sequence[Lane]], object]
"""Called with all lanes after each turn; raises `Enough` to end the race there."""


class Enough(Exception):
    """The race ends, and the stretch that it is in does not count."""


def race(
    runners: Sequence[Runner],
    prompts: Sequence[Tokens],
    params: Sequence[SamplingParams],
    seed: int = 0,
    watch: Watch | None = None,
) -> list[Run]:
    """Decode one stretch with every runner; the one that is behind on its clock has the next turn.

    Who is first rotates with `seed`, which also seeds the systems that want one.
    """
    lanes = [Lane(runner, runner.turns(prompts, params, seed)) for runner in runners]
    first = seed % len(lanes)
    order = lanes[first:] + lanes[:first]
    try:
        while running := [lane for lane in order if lane.run is None]:
            lane = min(running, key=lambda lane: lane.seconds)
            try:
                lane.seconds = next(lane.turns)
            except StopIteration as end:
                lane.run = end.value
            if watch is not None:
                watch(lanes)
    finally:
        for lane in lanes:
            lane.turns.close()
    return [lane.run for lane in lanes if lane.run is not None]


def config_of(candidate: Candidate) -> SpeculativeConfig:
    """Return how a candidate of Outrider's speculates.

    Raises:
        InvalidConfigError: its settings contradict each other.
    """
    verification: Any = candidate.verification or "block"
    return SpeculativeConfig(
        num_speculative_tokens=candidate.depth,
        depth="adaptive" if candidate.depth is None else "fixed",
        verification=verification,
        tree_shape=candidate.tree,
    )
