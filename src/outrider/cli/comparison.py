"""Decoding the same prompts plainly and speculatively, on one clock."""

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
"""Decoded of each prompt before it is timed, so that both sides find the prompt computed."""

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

    @property
    def shares(self) -> tuple[float, float, float]:
        """Of the time in rounds: drafting, in the target's forward pass, everything else."""
        metrics = self.metrics
        draft, target = metrics.draft_s / metrics.total_s, metrics.target_s / metrics.total_s
        return draft, target, 1 - draft - target


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
            return f"{clause} (slower: decode with `outrider generate --method none`)"
        return clause

    def document(self) -> dict[str, Any]:
        """The comparison as JSON takes it."""
        return {
            "temperature": self.temperature,
            "speedup": self.speedup,
            "prompts": len(self.plain.token_ids),
            "identical": self.identical,
            "plain": _document(self.plain),
            "speculative": _document(self.speculative),
        }


@dataclass(frozen=True, slots=True)
class Contest:
    """Decoders over the same models: the two that are compared, and one that is not timed."""

    plain: SpeculativeDecoder
    speculative: SpeculativeDecoder
    untimed: SpeculativeDecoder

    def compare(
        self,
        prompts: Sequence[str],
        params: SamplingParams,
        report: Callable[[float, float], None],
    ) -> Comparison:
        """Decode every prompt on both sides, token by token in turn, so that both meet the same
        noise of the machine.

        Args:
            prompts: to continue, one at a time.
            params: of every request; with `ignore_eos`, so that both sides emit `max_tokens`.
            report: is told after each prompt the tokens per second of plain and of speculative.
        """
        plain, speculative = lanes = _Lane(self.plain), _Lane(self.speculative)
        warm_up = replace(params, max_tokens=min(params.max_tokens, WARM_UP_TOKENS))
        for prompt in prompts:
            self.untimed.generate(prompt, warm_up)
            for lane in lanes:
                lane.enter(prompt, params)
            for _ in range(params.max_tokens + 1):
                for lane in lanes:
                    lane.advance()
            report(plain.side().tokens_per_s, speculative.side().tokens_per_s)
        return Comparison(params.temperature, plain.side(), speculative.side())


class _Lane:
    """One decoder on its way through the prompts, and its own clock."""

    def __init__(self, decoder: SpeculativeDecoder) -> None:
        decoder.reset_metrics()
        self._decoder = decoder
        self._events: Iterator[StreamEvent] = iter(())
        self._token_ids: list[list[int]] = []
        self._wall_s = 0.0

    def enter(self, prompt: str, params: SamplingParams) -> None:
        """Begin with a prompt."""
        start = perf_counter()
        self._events = self._decoder.stream(prompt, params)
        self._wall_s += perf_counter() - start
        self._token_ids.append([])

    def advance(self) -> None:
        """Take the next token, or the end of the stream."""
        start = perf_counter()
        event = next(self._events, None)
        self._wall_s += perf_counter() - start
        if event is not None:
            self._token_ids[-1].append(event.token_id)

    def side(self) -> Side:
        """What it has made of the prompts so far."""
        return Side(tuple(map(tuple, self._token_ids)), self._wall_s, self._decoder.metrics)


def _document(side: Side) -> dict[str, Any]:
    return {
        "completion_tokens": sum(map(len, side.token_ids)),
        "wall_s": side.wall_s,
        "tokens_per_s": side.tokens_per_s,
        "ms_per_round": side.ms_per_round,
        "token_ids": side.token_ids,
        "speculation": figures.speculation(side.metrics),
        "timing": figures.timing(side.metrics),
    }
