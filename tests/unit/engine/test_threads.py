"""What the guide says of threads: calls run beside each other, share slots, and hold no lock."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier
from typing import Any

import pytest
import torch

from outrider import (
    HybridDrafter,
    ModelDrafter,
    SamplingParams,
    SpeculativeConfig,
    SpeculativeDecoder,
    StructuredOutput,
    SuffixDrafter,
)
from outrider.errors import ModelError
from outrider.runtimes.base import Capabilities
from outrider.runtimes.tabular import TabularModel, mock_pair
from tests.support.alphabet import alphabet

TEXTS = ("a", "b", "c", "d")
V = 5


@pytest.fixture
def hurried() -> Iterator[None]:
    """Let threads change places as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


class Roomy(TabularModel):
    """A model with so many slots."""

    slots = 2

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, max_sequences=self.slots)


def decoder_of(target: Any, drafter: Any, **asked: Any) -> SpeculativeDecoder:
    config = SpeculativeConfig(num_speculative_tokens=3, **asked)
    return SpeculativeDecoder(target, drafter, tokenizer=alphabet(TEXTS), config=config)


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("drafter", ["model", "suffix", "hybrid"])
def test_calls_of_several_threads_give_what_they_give_alone(drafter: str) -> None:
    target, draft = mock_pair(V, 1)
    model = ModelDrafter(draft)
    drafters = {"model": model, "suffix": SuffixDrafter(), "hybrid": HybridDrafter.usual(draft)}
    decoder = decoder_of(target, drafters[drafter], depth="fixed")
    form = StructuredOutput(regex="[ab]+(cd?)*")
    asked = [
        SamplingParams(
            max_tokens=12, seed=i, n=2, stop=("dd",), structured_output=form if i % 2 else None
        )
        for i in range(16)
    ]
    expected = [decoder.generate([i % 4], asked[i]) for i in range(16)]
    before = decoder.metrics.emitted

    def text(index: int) -> list[Any]:
        if index % 3:
            found = decoder.generate([index % 4], asked[index])
            return [choice.token_ids for choice in found.choices]
        tokens: list[list[int]] = [[], []]
        for event in decoder.stream([index % 4], asked[index]):
            tokens[event.choice].append(event.token_id)
        return [tuple(each) for each in tokens]

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(text, range(16)))
    assert found == [[choice.token_ids for choice in output.choices] for output in expected]
    assert decoder.metrics.emitted == 2 * before


def test_rounds_of_several_calls_run_at_once_and_user_code_under_no_lock() -> None:
    """Each call's processor waits for the other's: a lock around rounds would never end."""
    meeting = Barrier(2, timeout=60)

    def meet(history: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        meeting.wait()
        return logits

    target, _ = mock_pair(V, 1)
    decoder = decoder_of(target, None)
    params = [SamplingParams(max_tokens=3, seed=i, logits_processors=(meet,)) for i in (1, 2)]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda asked: decoder.generate([0], asked).token_ids, params))
    assert [len(tokens) for tokens in found] == [3, 3]


def test_a_call_that_finds_no_slot_free_says_so() -> None:
    target, _ = mock_pair(V, 1)
    decoder = decoder_of(Roomy(target.probabilities, V), None)
    inside, after = Barrier(2, timeout=60), Barrier(2, timeout=60)

    def hold(history: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        if len(history) == 1:
            inside.wait()
            after.wait()
        return logits

    held = SamplingParams(max_tokens=2, seed=1, logits_processors=(hold,))
    params = [held, SamplingParams(max_tokens=2)]
    with ThreadPoolExecutor(1) as pool:
        going = pool.submit(decoder.generate, [[0], [1]], params)
        inside.wait()
        with pytest.raises(ModelError, match="all 2 slots are held by generate"):
            decoder.generate([2])
        after.wait()
        assert len(going.result()) == 2
    assert decoder.slots.free == 2
