"""Rounds of transformers' assisted generation, timed beside the bare forwards each of them made.

Forward hooks note the inputs of every forward. At each of the target's forwards a round ends, and
its forwards are run again at once, on their own inputs and on caches as they were; the hooks' time
and the repetitions' are taken out of the round's.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from copy import copy
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch

from .replay import SKIPPED, Sample


@dataclass(frozen=True, slots=True)
class _Forward:
    """A forward that can be run again: the model, its inputs, and its cache as it was then."""

    hf_model: Any
    inputs: dict[str, Any]

    @staticmethod
    def of(hf_model: Any, inputs: dict[str, Any]) -> _Forward:
        """A call, with a cache that does not grow when the original does."""
        cache = snapshot(inputs["past_key_values"])
        return _Forward(hf_model, inputs | {"past_key_values": cache})

    def seconds(self) -> float:
        """Run it, and time the model's call alone."""
        start = perf_counter()
        self.hf_model(**self.inputs)
        return perf_counter() - start


class _Probe:
    """A forward hook on target and draft that cuts the time between target forwards into rounds.

    Attributes:
        samples: of the rounds that drafted `depth` tokens.
    """

    def __init__(self, target: Any, depth: int) -> None:
        self.samples: list[Sample] = []
        self._target = target
        self._width = depth + 1
        self._calls: list[_Forward] = []
        self._rounds = 0
        self._repeating = False
        self._start = 0.0
        self._paused = 0.0

    def __call__(self, hf_model: Any, _: tuple[Any, ...], inputs: dict[str, Any]) -> None:
        """Before a forward: note it, and end a round if it is the target's."""
        if self._repeating:
            return
        now = perf_counter()
        if hf_model is self._target:
            self._end_round(now - self._start - self._paused)
            self._calls = [_Forward.of(hf_model, inputs)]
            self._paused = 0.0
            self._start = perf_counter()
        else:
            self._calls.append(_Forward.of(hf_model, inputs))
            self._paused += perf_counter() - now

    def _end_round(self, seconds: float) -> None:
        """A round is a target forward and all that follows it until the next."""
        self._rounds += 1
        whole = len(self._calls) == self._width
        if self._rounds <= 1 + SKIPPED or not whole:
            return
        self._repeating = True
        self.samples.append(Sample(seconds, sum(call.seconds() for call in self._calls)))
        self._repeating = False


def assisted_samples(
    target: Any,
    draft: Any,
    prompt: Sequence[int],
    sampling: dict[str, Any],
    depth: int,
    max_tokens: int,
    seed: int,
) -> list[Sample]:
    """Time the rounds of one assisted generation of `max_tokens` tokens.

    Args:
        target: a causal language model of transformers.
        draft: its assistant; its generation config, the only one looked at, is set here.
        prompt: token ids.
        sampling: keyword arguments of `generate`.
        depth: tokens drafted a round.
        max_tokens: where the generation ends, the only stop.
        seed: of torch's generator.
    """
    for model in (target, draft):
        model.generation_config.eos_token_id = None
    draft.generation_config.num_assistant_tokens = depth
    draft.generation_config.num_assistant_tokens_schedule = "constant"
    draft.generation_config.assistant_confidence_threshold = 0.0
    ids = torch.tensor([list(prompt)])
    probe = _Probe(target, depth)
    with ExitStack() as stack:
        for model in (target, draft):
            handle = model.register_forward_pre_hook(probe, with_kwargs=True)
            stack.callback(handle.remove)
        torch.manual_seed(seed)
        target.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            assistant_model=draft,
            max_new_tokens=max_tokens,
            **sampling,
        )
    return probe.samples


def snapshot(cache: Any) -> Any:
    """A `DynamicCache` that can grow without the original growing: it replaces its tensors."""
    twin = copy(cache)
    twin.layers = [copy(layer) for layer in cache.layers]
    return twin
