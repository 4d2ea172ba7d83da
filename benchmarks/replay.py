"""Rounds of the engine, timed beside the bare model forwards that each of them made.

A first pass decodes a request and notes every forward's inputs. A second pass decodes the same
request with nothing noted, and after each of its rounds runs that round's forwards again, on the
inputs noted before: same tokens, masks, positions and columns. So the model is timed on equal work,
in an equal state, a moment later, and what is left of the round is the engine's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any
from unittest.mock import patch

import torch

from outrider import ModelDrafter, Pair, SamplingParams, SpeculativeConfig, SpeculativeDecoder
from outrider.models.slots import SlotCache

SKIPPED = 3
"""Rounds at the start of a request that are not timed: prefill, and the first of each shape."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One round: seconds on the wall clock, and seconds of its forwards run bare."""

    round_s: float
    forwards_s: float

    @property
    def own_s(self) -> float:
        """What the round took beyond its forwards."""
        return self.round_s - self.forwards_s


@dataclass(frozen=True, slots=True)
class _Forward:
    """A forward that can be run again: the model, its inputs, and where its cache was aimed."""

    hf_model: Any
    inputs: dict[str, Any]
    aim: tuple[Any, ...]

    def seconds(self) -> float:
        """Run it, and time the model's call alone."""
        self.inputs["past_key_values"].aim(*self.aim)
        start = perf_counter()
        self.hf_model(**self.inputs)
        return perf_counter() - start


def engine_samples(
    pair: Pair, prompt: Sequence[int], params: SamplingParams, depth: int, rounds: int
) -> list[Sample]:
    """Time `rounds` rounds that draft `depth` tokens each.

    Args:
        pair: models with one slot each, so that both passes find the same.
        prompt: token ids.
        params: with a seed, and room for every round to draft to its full depth.
        depth: tokens drafted a round.
        rounds: how many are timed.
    """
    assert isinstance(pair.drafter, ModelDrafter)
    models = (pair.target, pair.drafter.model)
    config = SpeculativeConfig(num_speculative_tokens=depth, depth="fixed")
    decoder = SpeculativeDecoder(pair.target, pair.drafter, config=config)

    noted: list[list[_Forward]] = []
    with _noted([model.hf_model for model in models]) as forwards:  # type: ignore[attr-defined]
        for _ in _emissions(decoder, prompt, params, SKIPPED + rounds):
            noted.append(forwards.copy())
            forwards.clear()

    samples = []
    start = perf_counter()
    with torch.inference_mode():
        for again in noted:
            pass
    return samples
