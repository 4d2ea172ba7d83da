"""A drafter that drafts from the target's hidden states: what it is given, and the output's law."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from outrider import SamplingParams, SpeculativeConfig, SpeculativeDecoder, TransformersModel
from outrider.certify import exact_distribution
from outrider.certify.reference import distance, target_distribution
from outrider.drafters.base import DraftContext, Drafter, nothing_drafted
from outrider.engine.scheduler import Scheduler
from outrider.errors import ModelError
from outrider.runtimes.tabular import mock_pair
from outrider.types.records import (
    Distributions as Made,
)
from outrider.types.records import (
    DraftPlan,
    DraftProposal,
    HiddenStates,
    Prefix,
)
from tests.support.families import VOCAB, Distributions, greedy_reference, random_model

LAYER = 2


class Head(Drafter):
    """Drafts one token from a layer's state of the token before the last, by a random matrix."""

    hidden_layers = (LAYER,)
    cost_ratio = 0.1

    def __init__(self, width: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.weights = torch.randn(width, VOCAB, dtype=torch.float64, generator=generator)
        self.drafted = 0
        self.states: dict[tuple[int, ...], torch.Tensor] = {}
        self.given: list[HiddenStates] = []

    @property
    def vocab_size(self) -> int:
        return VOCAB

    def observe_round(self, hidden: Sequence[HiddenStates]) -> None:
        for each in hidden:
            self.given.append(each)
            tokens = each.prefix.tokens.tolist()
            for place, state in enumerate(each.states[:, 0], each.start + 1):
                self.states[tuple(tokens[:place])] = state

    def last(self, prefix: Prefix) -> torch.Tensor | None:
        """The state of the token before the last; of other sequences that begin alike, too."""
        return self.states.get(tuple(prefix.tokens[:-1].tolist()))

    def propose(
        self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: DraftContext
    ) -> DraftProposal:
        last = [self.last(prefix) for prefix in prefixes]
        known = np.array([state is not None for state in last])
        depth = plan.model_depth.clip(max=1) * known
        if not depth.any():
            return nothing_drafted(len(prefixes), ctx.device)
        self.drafted += int(depth.sum())
        ctx.limit_depths(depth)
        zero = torch.zeros(len(self.weights), dtype=torch.float64)
        rows = torch.stack([zero if state is None else state for state in last])
        made = ctx.distribution(rows @ self.weights)
        drawn = ctx.pick(made, 0)[:, None]
        assert made.probs is not None
        return DraftProposal(drawn, depth, Made(probs=made.probs[:, None]))


def decoder_of(model: Any) -> tuple[SpeculativeDecoder, Head]:
    head = Head(model.config.hidden_size)
    config = SpeculativeConfig(depth="fixed", num_speculative_tokens=1)
    target = TransformersModel(model, max_sequences=3, prefill_chunk=8)
    return SpeculativeDecoder(target, head, config=config), head


@pytest.mark.parametrize("chunk", [None, 5])
def test_it_is_given_the_states_of_all_that_the_target_computed(chunk: int | None) -> None:
    model = random_model("llama")
    decoder, head = decoder_of(model)
    prompts = [[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8], [2, 7]]
    params = SamplingParams(max_tokens=12, seed=1)
    with Scheduler(decoder, prefill_chunk=chunk) as scheduler:
        states = [decoder.start(prompt, params)[0] for prompt in prompts]
        scheduler.submit(states)
        last: dict[int, Any] = {}
        while not scheduler.idle:
            if (step := scheduler.step()) is not None:
                last |= {s.prefix.sequence_id: s for s in step.batch.states}
    for sequence_id, state in last.items():
        parts = [each for each in head.given if each.prefix.sequence_id == sequence_id]
        tokens = state.prefix.tokens.tolist()
        with torch.inference_mode():
            found = model(input_ids=torch.tensor([tokens]), output_hidden_states=True)
        place = 0
        for part in parts:
            assert part.start == place
            place += len(part.states)
            assert part.prefix.tokens.tolist() == tokens[:place]
            own = found.hidden_states[LAYER][0, part.start : place]
            torch.testing.assert_close(part.states[:, 0], own, rtol=0, atol=1e-9)
        assert place in (len(tokens) - 1, len(tokens))
    assert head.drafted


def test_it_may_use_the_target_while_it_is_given_states(caplog: pytest.LogCaptureFixture) -> None:
    model = random_model("llama")
    head: Any
    decoder, head = decoder_of(model)
    free = list[Any]()

    def looks(given: Any, argument: Any) -> Any:
        free.append(decoder.target.free_blocks)
        return given(argument)

    head.observe_round, head.known = partial(looks, head.observe_round), partial(looks, head.known)
    prompts = [[place % 50 for place in range(40)], [7] * 30]
    outputs = decoder.generate(prompts, SamplingParams(max_tokens=5, top_k=1))
    for prompt, output in zip(prompts, outputs, strict=True):
        assert tuple(output.token_ids) == greedy_reference(model, prompt, 5)
    assert free
    assert not caplog.records


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_the_distribution_is_the_targets(temperature: float) -> None:
    model = random_model("llama")
    decoder, head = decoder_of(model)
    params = SamplingParams(max_tokens=3, top_k=3, temperature=temperature)
    found = exact_distribution(decoder, (5, 9, 2), params)
    expected = target_distribution(Distributions(model), (5, 9, 2), params)
    assert distance(found, expected) < 1e-9
    assert head.drafted


def test_a_target_without_hidden_states_is_refused() -> None:
    with pytest.raises(ModelError, match=r"TabularModel gives no hidden states of layers \[2\]"):
        SpeculativeDecoder(mock_pair(VOCAB, seed=1)[0], Head(8))
