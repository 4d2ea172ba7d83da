"""Rounds of the engine, timed beside the bare model forwards that each of them made.

A first pass decodes a request and notes every forward. A second pass decodes the same request with
nothing noted, and after each of its rounds runs that round's forwards again, on the inputs noted
before: same tokens, masks, positions and columns. So the model is timed on equal work, in an equal
state, a moment later, and what is left of the round is the engine's own.

A third pass decodes the request once more, with each forward answered by the output noted before.
What it takes is the engine's own again, free of the models' noise, but also of the cold caches that
a forward leaves behind: a lower figure, and a steadier one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any
from unittest.mock import patch

import torch

from outrider import (
    ModelDrafter,
    SamplingParams,
    SpeculativeConfig,
    SpeculativeDecoder,
    TransformersModel,
)
from outrider.runtimes.transformers.slot_cache import SlotCache

SKIPPED = 3
"""Rounds at the start of a request that are not timed: the prefill, and the first of each shape."""

Emitted = tuple[list[int], ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """One round: seconds on the wall clock, of its forwards run bare, and with them answered."""

    round_s: float
    forwards_s: float
    answered_s: float | None = None

    @property
    def own_s(self) -> float:
        """What the round took beyond its forwards."""
        return self.round_s - self.forwards_s


@dataclass(frozen=True, slots=True)
class _Forward:
    """A forward that can be run again, with where its cache was aimed; and its output."""

    hf_model: Any
    inputs: dict[str, Any]
    aim: tuple[Any, ...]
    output: Any

    def seconds(self) -> float:
        """Run it, and time the model's call alone."""
        self.inputs["past_key_values"].aim(*self.aim)
        start = perf_counter()
        self.hf_model(**self.inputs)
        return perf_counter() - start


@dataclass(frozen=True, slots=True)
class Replay:
    """A request of the engine, and every forward it makes.

    Attributes:
        decoder: of `models`.
        models: target and draft, with one slot each, so that every pass uses the same.
        prompt: token ids.
        params: with a seed, and room for every round to draft to its full depth.
        rounds: what each round emitted, and its forwards.
    """

    decoder: SpeculativeDecoder
    models: tuple[TransformersModel, TransformersModel]
    prompt: Sequence[int]
    params: SamplingParams
    rounds: list[tuple[Emitted, list[_Forward]]]

    @staticmethod
    def noted(
        models: tuple[TransformersModel, TransformersModel],
        prompt: Sequence[int],
        params: SamplingParams,
        depth: int,
        rounds: int,
    ) -> Replay:
        """Decode `rounds` rounds after the skipped ones, each drafting `depth` tokens, and note."""
        target, draft = models
        config = SpeculativeConfig(num_speculative_tokens=depth, depth="fixed")
        decoder = SpeculativeDecoder(target, ModelDrafter(draft), config=config)
        replay = Replay(decoder, models, prompt, params, [])
        with _noting([model.hf_model for model in models]) as forwards:
            for _, emitted in replay._steps(SKIPPED + rounds):
                replay.rounds.append((emitted, forwards.copy()))
                forwards.clear()
        return replay

    def samples(self) -> list[Sample]:
        """Time every round but those skipped, in the second and the third pass."""
        timed = []
        for seconds, calls in self._again():
            with torch.inference_mode():
                timed.append((seconds, sum(call.seconds() for call in calls)))
        answered = self.answered()
        return [
            Sample(seconds, forwards_s, answered_s)
            for (seconds, forwards_s), answered_s in zip(timed, answered, strict=True)
        ][SKIPPED:]

    def answered(self) -> list[float]:
        """Seconds of every round in a third pass, where no model computes anything."""
        outputs = iter([call.output for _, calls in self.rounds for call in calls])
        with ExitStack() as stack:
            for model in self.models:
                answer = patch.object(model.hf_model, "forward", lambda **_: next(outputs))
                stack.enter_context(answer)
            return [seconds for seconds, _ in self._again()]

    def _again(self) -> Iterator[tuple[float, list[_Forward]]]:
        """Decode the request again: the seconds of each round, and the forwards it makes."""
        steps = self._steps(len(self.rounds))
        for (seconds, emitted), (expected, calls) in zip(steps, self.rounds, strict=True):
            if emitted != expected:
                raise RuntimeError(f"a pass emitted {emitted} where the first emitted {expected}")
            yield seconds, calls

    def _steps(self, count: int) -> Iterator[tuple[float, Emitted]]:
        """Step the request `count` times: the seconds of each round, and what it emitted.

        The slots are wiped at the end, so that every pass begins alike.
        """
        batch = self.decoder.pack(self.decoder.start(self.prompt, self.params))
        for _ in range(count):
            start = perf_counter()
            step = self.decoder.step(batch)
            seconds = perf_counter() - start
            yield seconds, step.emitted
            batch = step.batch
        for model in self.models:
            model.release([batch.states[0].prefix.sequence_id], discard=True)


@contextmanager
def _noting(hf_models: Sequence[Any]) -> Iterator[list[_Forward]]:
    """The forwards that these models run meanwhile."""
    forwards: list[_Forward] = []
    aims: dict[int, tuple[Any, ...]] = {}
    aim = SlotCache.aim

    def noting_aim(cache: SlotCache, *where: Any) -> None:
        aims[id(cache)] = where
        aim(cache, *where)

    def noting_forward(hf_model: Any) -> Callable[..., Any]:
        forward = hf_model.forward

        def noted(**inputs: Any) -> Any:
            output = forward(**inputs)
            aimed = aims[id(inputs["past_key_values"])]
            forwards.append(_Forward(hf_model, inputs, aimed, output))
            return output

        return noted

    with ExitStack() as stack:
        stack.enter_context(patch.object(SlotCache, "aim", noting_aim))
        for hf_model in hf_models:
            stack.enter_context(patch.object(hf_model, "forward", noting_forward(hf_model)))
        yield forwards
