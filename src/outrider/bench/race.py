"""Candidates raced against each other: a round of each in turn, so that noise meets them alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

from .. import (
    EarlyExitDrafter,
    HybridDrafter,
    ModelDrafter,
    NgramDrafter,
    Pair,
    PredictionDrafter,
    SamplingParams,
    SpeculationMetrics,
    SpeculativeConfig,
    SpeculativeDecoder,
    StreamEvent,
    SuffixDrafter,
    TransformersModel,
)
from ..engine.compatibility import parts_of
from ..errors import InvalidConfigError
from ..runtimes.base import Runtime
from ..types.records import RoundRecord
from .options import LOSSY
from .records import PLAIN, Candidate

Clock = Callable[[], float]
Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """What one candidate made of one stretch.

    Attributes:
        seconds: from the request to the last token, without `prompt_s`.
        prompt_s: of the target's first forward pass, which reads the prompts; it takes as long
            with drafts as without. What a drafter does in that round counts in `seconds`.
        token_ids: emitted for each prompt.
        round_s: the seconds of each round, the first one's reading included; none where rounds
            are not reported.
        failure: why there is no output; None if there is one.
    """

    seconds: float
    prompt_s: float
    token_ids: tuple[Tokens, ...]
    round_s: tuple[float, ...] = ()
    failure: str | None = None

    @property
    def tokens(self) -> int:
        """How many tokens were emitted."""
        return sum(map(len, self.token_ids))


class Lane(ABC):
    """One candidate on its way through a stretch, with a clock of its own."""

    running = True

    @abstractmethod
    def advance(self) -> None:
        """Decode as little as can be decoded at once: a round, or a whole request."""

    @abstractmethod
    def result(self) -> Run:
        """What came of it, once it is not running."""

    def close(self) -> None:
        """Free what is held."""


class Runner(ABC):
    """A candidate that is ready to decode stretches.

    Attributes:
        candidate: the way of decoding.
        lossy: whether its output may differ from the target's distribution.
        whole: whether a turn is a whole request, because it cannot be stopped within one.
    """

    candidate: Candidate
    lossy = False
    whole = False

    @abstractmethod
    def lane(self, prompts: Sequence[Tokens], params: Sequence[SamplingParams], seed: int) -> Lane:
        """At the start of a stretch; `seed` is for a system that wants one."""

    def metrics(self) -> SpeculationMetrics | None:
        """Figures over every round since `forget_metrics`; None if rounds are not reported."""
        return None

    def forget_metrics(self) -> None:
        """Start counting anew."""


class OutriderRunner(Runner):
    """A decoder of Outrider's own.

    Args:
        target: in slots of its own, so that it finds no prompt that another candidate has read.
        drafter: proposes tokens; None decodes plainly.
        candidate: names it in results.
        config: how speculation is done.
        clock: seconds.
    """

    def __init__(
        self,
        target: Any,
        drafter: Any = None,
        candidate: Candidate = PLAIN,
        config: SpeculativeConfig | None = None,
        clock: Clock = perf_counter,
    ) -> None:
        self.candidate = candidate
        self.lossy = candidate.verification in LOSSY
        self._target = target
        self._config = config
        self._clock = clock
        self._records: list[RoundRecord] = []
        self.decoder = SpeculativeDecoder(
            target, drafter, config=config, on_round=self._records.append
        )

    @staticmethod
    def of(
        candidate: Candidate, pair: Pair, slots: int, clock: Clock = perf_counter
    ) -> OutriderRunner:
        """Make a candidate ready over a pair's weights, with room for `slots` sequences.

        Raises:
            InvalidConfigError: its settings contradict each other, or there is no draft model.
        """
        target = fresh(pair.target, slots)
        drafter = drafter_of(candidate, pair, target, slots)
        return OutriderRunner(target, drafter, candidate, config_of(candidate), clock)

    def lane(self, prompts: Sequence[Tokens], params: Sequence[SamplingParams], seed: int) -> Lane:
        """At the start of a stretch, with nothing of earlier ones in the models' caches.

        Only coupled decoding is seeded: it may still be adaptive.
        """
        for part in parts_of(self.decoder.target, self.decoder.drafter):
            if isinstance(part, Runtime):
                part.reset()
        return _DecoderLane(
            self.decoder, self._records, prompts, self._seeded(params, seed), self._clock
        )

    def undrafted(
        self, prompts: Sequence[Tokens], params: Sequence[SamplingParams], seed: int
    ) -> tuple[Tokens, ...]:
        """What coupled decoding has to emit: the text of the same seeds without drafts."""
        plain = SpeculativeDecoder(self._target, config=self._config)
        outputs = plain.generate([list(prompt) for prompt in prompts], self._seeded(params, seed))
        return tuple(output.token_ids for output in outputs)

    def metrics(self) -> SpeculationMetrics:
        """Figures over every round since `forget_metrics`."""
        return self.decoder.metrics

    def forget_metrics(self) -> None:
        """Start counting anew."""
        self.decoder.reset_metrics()

    def _seeded(self, params: Sequence[SamplingParams], seed: int) -> list[SamplingParams]:
        if self.candidate.verification != "coupled":
            return list(params)
        return [replace(asked, seed=seed + row) for row, asked in enumerate(params)]


class _DecoderLane(Lane):
    """A stretch of Outrider's own, a round at a time, through the decoder's public stream."""

    def __init__(
        self,
        decoder: SpeculativeDecoder,
        records: list[RoundRecord],
        prompts: Sequence[Tokens],
        params: Sequence[SamplingParams],
        clock: Clock,
    ) -> None:
        self._clock, self._records = clock, records
        records.clear()
        start = clock()
        self._events: Iterator[StreamEvent] = decoder.stream(
            [list(prompt) for prompt in prompts], params
        )
        self._seconds = clock() - start
        self._token_ids: list[list[int]] = [[] for _ in prompts]
        self._round_s: list[float] = []
        self._unfinished = len(prompts)

    def advance(self) -> None:
        """One more round: its first event carries it out, the others are ready by then."""
        start = self._clock()
        self._take(next(self._events))
        for _ in range(sum(self._records[-1].emitted) - 1):
            self._take(next(self._events))
        self._round_s.append(self._clock() - start)
        self._seconds += self._round_s[-1]
        self.running = self._unfinished > 0

    def _take(self, event: StreamEvent) -> None:
        self._token_ids[event.request].append(event.token_id)
        self._unfinished -= event.finish_reason is not None

    def result(self) -> Run:
        """What came of it."""
        prompt_s = self._records[0].target_s
        return Run(
            seconds=self._seconds - prompt_s,
            prompt_s=prompt_s,
            token_ids=tuple(map(tuple, self._token_ids)),
            round_s=tuple(self._round_s),
        )

    def close(self) -> None:
        """Free what the models hold."""
        # A stream is a generator; closing it ends its requests.
        self._events.close()  # type: ignore[attr-defined]


def race(
    runners: Sequence[Runner],
    prompts: Sequence[Tokens],
    params: Sequence[SamplingParams],
    seed: int = 0,
) -> list[Run]:
    """Decode one stretch with every runner, in turn: rounds, or whole requests where one must.

    Whose turn is first rotates with `seed`.

    Args:
        runners: each decodes in slots of its own.
        prompts: the token ids of each prompt.
        params: of each request.
        seed: of what is drawn by systems that want one, and of the order.
    """
    whole = any(runner.whole for runner in runners)
    lanes = [runner.lane(prompts, params, seed) for runner in runners]
    order = [lanes[(place + seed) % len(lanes)] for place in range(len(lanes))]
    try:
        while any(lane.running for lane in lanes):
            for lane in order:
                if lane.running:
                    lane.advance()
                while whole and lane.running:
                    lane.advance()
    finally:
        for lane in lanes:
            lane.close()
    return [lane.result() for lane in lanes]


def config_of(candidate: Candidate) -> SpeculativeConfig:
    """How a candidate of Outrider's speculates.

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


def drafter_of(candidate: Candidate, pair: Pair, target: Any, slots: int) -> Any:
    """Make what a candidate drafts with; None for plain decoding.

    The pool in which suffix look-up remembers earlier outputs is off: a prompt that comes again
    would be answered from it.

    Raises:
        InvalidConfigError: the candidate wants a draft model, and there is none.
    """
    match candidate.drafter:
        case "none":
            return None
        case "ngram":
            return NgramDrafter()
        case "suffix":
            return SuffixDrafter(max_pool_tokens=0)
        case "prediction":
            return PredictionDrafter()
        case "early_exit":
            assert candidate.exit_layers is not None
            return EarlyExitDrafter(target, candidate.exit_layers)
    if pair.model_drafter is None:
        raise InvalidConfigError("drafters", candidate.drafter, "suffix or ngram without a draft")
    model = own_drafter(pair, slots)
    if candidate.drafter == "draft_model":
        return model
    return HybridDrafter(model, SuffixDrafter(max_pool_tokens=0), PredictionDrafter())


def own_drafter(pair: Pair, slots: int) -> Any:
    """The pair's draft model in slots of its own; one of another vocabulary is shared."""
    drafter = pair.model_drafter
    if not isinstance(drafter, ModelDrafter):
        return drafter
    return ModelDrafter(fresh(drafter.model, slots), drafter.vocab_size)


def fresh(model: Any, slots: int) -> Any:
    """A runtime over the same weights with empty slots; other runtimes than ours are shared."""
    if isinstance(model, TransformersModel):
        return TransformersModel(model.hf_model, max_sequences=slots)
    return model
