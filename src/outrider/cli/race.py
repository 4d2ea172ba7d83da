"""Decoding the same prompts plainly and speculatively, each on its own clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

from . import figures

if TYPE_CHECKING:
    from ..config.params import SamplingParams
    from ..engine.decoder import SpeculativeDecoder
    from ..engine.metrics import SpeculationMetrics
    from ..engine.outputs import StreamEvent

WARM_UP_TOKENS = 8
"""Decoded of each prompt before it is timed, so that both lanes find the prompt computed."""

INDISTINCT = 0.03
"""Speedups nearer to one than this are not called faster or slower."""


@dataclass(frozen=True, slots=True)
class Side:
    """What one way of decoding made of the prompts.

    Attributes:
        token_ids: the tokens emitted for each prompt.
        wall_s: seconds on the wall clock from request to last token, summed over the prompts.
        metrics: of its rounds.
    """

    token_ids: tuple[tuple[int, ...], ...]
    wall_s: float
    metrics: SpeculationMetrics

    @property
    def tokens_per_s(self) -> float:
        """Tokens emitted per second on the wall clock."""
        return sum(map(len, self.token_ids)) / self.wall_s

    @property
    def ms_per_round(self) -> float:
        """Milliseconds a round takes."""
        return 1e3 * self.metrics.total_s / self.metrics.rounds

    def document(self) -> dict[str, Any]:
        """The side as JSON takes it."""
        return {
            "completion_tokens": sum(map(len, self.token_ids)),
            "wall_s": self.wall_s,
            "tokens_per_s": self.tokens_per_s,
            "ms_per_round": self.ms_per_round,
            "token_ids": self.token_ids,
            "speculation": figures.speculation(self.metrics),
            "timing": figures.timing(self.metrics),
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both sides at one temperature."""

    temperature: float
    plain: Side
    speculative: Side

    @property
    def speedup(self) -> float:
        """Speculative over plain tokens per second."""
        return self.speculative.tokens_per_s / self.plain.tokens_per_s

    @property
    def identical(self) -> int:
        """How many prompts both sides continued with the same tokens."""
        pairs = zip(self.plain.token_ids, self.speculative.token_ids, strict=True)
        return sum(plain == speculative for plain, speculative in pairs)

    def verdict(self) -> str:
        """What speculation did to the speed, in one clause."""
        clause = f"{self.speedup:.2f}x as fast at temperature {self.temperature:g}"
        if abs(self.speedup - 1) <= INDISTINCT:
            return f"{clause} (no difference)"
        if self.speedup < 1:
            return f"{clause} (slower: use --method none)"
        return clause

    def sameness(self) -> str:
        """Whether both sides wrote the same texts, and why not where that is expected."""
        where = f"temperature {self.temperature:g}"
        if self.temperature > 0 and self.speculative.metrics.lossy:
            return f"{where}: lossy verification, speculative texts are of another distribution"
        if self.temperature > 0:
            return f"{where}: the two texts are different draws from the same distribution"
        count, total = self.identical, len(self.plain.token_ids)
        if count == total:
            return f"{where}: texts equal with and without speculation, {count} of {total} prompts"
        return (
            f"{where}: texts equal for {count} of {total} prompts; rounding differs with the "
            "number of tokens in a forward pass, and can flip a near-tie"
        )

    def document(self) -> dict[str, Any]:
        """The comparison as JSON takes it."""
        return {
            "temperature": self.temperature,
            "speedup": self.speedup,
            "prompts": len(self.plain.token_ids),
            "identical": self.identical,
            "plain": self.plain.document(),
            "speculative": self.speculative.document(),
        }


class Lane:
    """One decoder on its way through the prompts, and its own clock.

    Attributes:
        events: of the prompt that it is at.
        done: whether it is at the prompt's end.
    """

    def __init__(self, decoder: SpeculativeDecoder) -> None:
        decoder.reset_metrics()
        self.events: list[StreamEvent] = []
        self.done = False
        self._decoder = decoder
        self._stream: Iterator[StreamEvent] = iter(())
        self._finished: list[tuple[int, ...]] = []
        self._before_s = 0.0
        self.lap_s = 0.0

    def enter(self, prompt: str, params: SamplingParams) -> None:
        """Begin with a prompt."""
        self.events, self.done = [], False
        self._before_s += self.lap_s
        start = perf_counter()
        self._stream = self._decoder.stream(prompt, params)
        self.lap_s = perf_counter() - start

    def advance(self) -> None:
        """Take the next token, or the end of the stream."""
        start = perf_counter()
        event = next(self._stream, None)
        self.lap_s += perf_counter() - start
        if event is not None:
            self.events.append(event)
            return
        self.done = True
        self._finished.append(tuple(event.token_id for event in self.events))

    def side(self) -> Side:
        """Sum up what it has made of the prompts so far."""
        return Side(tuple(self._finished), self._before_s + self.lap_s, self._decoder.metrics)


def compare(
    decoders: Sequence[SpeculativeDecoder],
    prompts: Sequence[str],
    params: SamplingParams,
    draw: Callable[[int, Lane, Lane], None],
) -> Comparison:
    """Decode every prompt on two lanes: whichever is behind on its clock takes the next token.

    Args:
        decoders: the plain one, the speculative one, and one that is not timed.
        prompts: to continue, one at a time.
        params: of every request, with `ignore_eos`, so that both sides emit `max_tokens`.
        draw: takes, after each token, the prompt's index and both lanes.
    """
    plain, speculative, untimed = decoders
    lanes = Lane(plain), Lane(speculative)
    warm_up = replace(params, max_tokens=min(params.max_tokens, WARM_UP_TOKENS))
    for index, prompt in enumerate(prompts):
        untimed.generate(prompt, warm_up)
        for lane in lanes:
            lane.enter(prompt, params)
        while running := [lane for lane in lanes if not lane.done]:
            min(running, key=lambda lane: lane.lap_s).advance()
            draw(index, *lanes)
    return Comparison(params.temperature, lanes[0].side(), lanes[1].side())
