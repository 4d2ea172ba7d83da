"""The target's first layers as its drafter, in the target's own blocks."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from outrider import (
    EarlyExitDrafter,
    HybridDrafter,
    ModelDrafter,
    SamplingParams,
    SpeculativeConfig,
    SpeculativeDecoder,
    SuffixDrafter,
)
from outrider.certify import exact_distribution
from outrider.certify.reference import distance, target_distribution
from outrider.errors import InvalidConfigError, ModelError
from outrider.runtimes.flat import FlatBatch
from outrider.runtimes.transformers.early_exit import first_layers, truncated
from outrider.runtimes.transformers.model import TransformersModel
from outrider.types.records import DraftProposal, Prefix, RoundRecord
from tests.support.families import VOCAB, Distributions, greedy_reference, random_model

FAMILIES = ("llama", "qwen3", "mistral", "gemma3", "gpt2", "gpt_neox", "opt", "falcon")
SLOTS = 5


def random_prompts(seed: int, lengths: tuple[int, ...]) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(VOCAB) for _ in range(length)] for length in lengths]


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> tuple[Any, TransformersModel]:
    model = TransformersModel(random_model(request.param), max_sequences=SLOTS)
    return random_model(request.param), model


@pytest.fixture(scope="module")
def llama() -> tuple[Any, TransformersModel]:
    return random_model("llama"), TransformersModel(random_model("llama"), max_sequences=SLOTS)


def greedy(length: int) -> SamplingParams:
    return SamplingParams(max_tokens=length, temperature=0)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.slow
def test_greedy_equals_generate_on_ragged_batches(family: Any, layers: int) -> None:
    reference, target = family
    prompts = random_prompts(layers, (1, 4, 9, 20, 37))
    expected = [greedy_reference(reference, prompt, 16) for prompt in prompts]
    drafter = EarlyExitDrafter(target, layers)
    for k in range(9):
        config = SpeculativeConfig(depth="fixed", num_speculative_tokens=k)
        outputs = SpeculativeDecoder(target, drafter, config=config).generate(prompts, greedy(16))
        assert [out.token_ids for out in outputs] == expected
        target.check_integrity()
    trees = SpeculativeConfig(depth="fixed", tree_shape=(2, 2, 1), num_speculative_tokens=3)
    outputs = SpeculativeDecoder(target, drafter, config=trees).generate(prompts, greedy(16))
    assert [out.token_ids for out in outputs] == expected
    target.check_integrity()
    assert not target.live_sequences


@pytest.mark.parametrize("config", [{}, {"tree_shape": (2, 1)}], ids=["chain", "tree"])
@pytest.mark.slow
def test_the_distribution_is_the_targets(family: Any, config: dict[str, Any]) -> None:
    """Three tokens likely enough at each place, to keep the enumeration small."""
    reference, target = family
    settings = SpeculativeConfig(depth="fixed", num_speculative_tokens=2, **config)
    decoder = SpeculativeDecoder(target, EarlyExitDrafter(target, 1), config=settings)
    params = SamplingParams(max_tokens=3, top_k=3, temperature=2.0)
    found = exact_distribution(decoder, (5, 9, 2), params)
    expected = target_distribution(Distributions(reference), (5, 9, 2), params)
    assert distance(found, expected) < 1e-9


def test_the_draft_is_the_first_layers_with_the_head(family: Any) -> None:
    """Its logits are those of a model of these layers, cached or not, on ragged rows."""
    reference, target = family
    shallow = truncated(reference, 2)
    prefixes = [Prefix(i, ids) for i, ids in enumerate(random_prompts(3, (2, 9, 30)))]
    fed = torch.tensor([[3, 5], [7, 1], [60, 2]])
    cursor = target.open(prefixes, 3, first_layers(target.hf_model, 2))
    found = [cursor.logits]
    with torch.inference_mode():
        found += [cursor.step(fed[:, step]) for step in range(2)]
        for row, prefix in enumerate(prefixes):
            full = shallow(torch.tensor([[*prefix.tokens.tolist(), *fed[row].tolist()]])).logits[0]
            for step in range(3):
                torch.testing.assert_close(
                    found[step][row], full[len(prefix) - 1 + step], rtol=0, atol=1e-9
                )
    target.release(range(3))


def test_parameters_are_shared_and_the_target_keeps_its_layers(llama: Any) -> None:
    reference, _ = llama
    shallow = truncated(reference, 1)
    assert len(reference.model.layers) == 3
    assert len(shallow.model.layers) == 1
    own = {id(parameter) for parameter in reference.parameters()}
    assert all(id(parameter) in own for parameter in shallow.parameters())


def counted(target: TransformersModel, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The columns that each forward computes, and in how many layers."""
    calls: list[tuple[int, int]] = []
    forward = TransformersModel.forward

    def noting(self: Any, batch: FlatBatch, run: Any = None) -> Tensor:
        depth = 3 if run is None else len(run.model.layers)
        calls.append((int((batch.missing + batch.drafted).max()), depth))
        return forward(self, batch, run)

    monkeypatch.setattr(TransformersModel, "forward", noting)
    return calls


def test_a_prefix_is_computed_once_and_a_draft_forward_has_one_column(
    llama: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, target = llama
    drafter = EarlyExitDrafter(target, 1)
    decoder = SpeculativeDecoder(
        target, drafter, config=SpeculativeConfig(depth="fixed", num_speculative_tokens=3)
    )
    calls = counted(target, monkeypatch)
    decoder.generate(random_prompts(8, (40,))[0], greedy(12))
    assert calls[:5] == [(40, 3), (1, 1), (1, 1), (1, 1), (4, 3)]
    assert all(call in ((1, 1), (4, 3), (3, 3), (2, 3), (1, 3)) for call in calls[1:])


@pytest.mark.parametrize("looks_up", [False, True])
def test_the_target_reads_prompts_in_its_own_time(
    llama: Any, monkeypatch: pytest.MonkeyPatch, looks_up: bool
) -> None:
    """Before the drafter is asked, which drafts with the first layers and computes none in all."""
    _, target = llama
    drafter: Any = EarlyExitDrafter(target, 1)
    if looks_up:
        drafter = HybridDrafter(drafter, SuffixDrafter(max_pool_tokens=0), min_expected=99.0)
    records: list[RoundRecord] = []
    decoder = SpeculativeDecoder(
        target,
        drafter,
        config=SpeculativeConfig(depth="fixed", num_speculative_tokens=3),
        on_round=records.append,
    )
    calls, drafting = counted(target, monkeypatch), []
    propose = ModelDrafter.propose

    def noting(self: Any, *args: Any) -> Any:
        first = len(calls)
        proposal = propose(self, *args)
        drafting.extend(calls[first:])
        return proposal

    monkeypatch.setattr(ModelDrafter, "propose", noting)
    prompts = random_prompts(14 + looks_up, (40, 23))
    decoder.generate(prompts, greedy(12))
    assert [call for call in calls if call[0] > 4] == [(39, 3), (22, 3)]
    assert drafting
    assert {depth for call, depth in drafting if call < 5} == {1}
    if looks_up:  # It may draft in the first round, for which the target has to prefill.
        return
    assert len(drafting) == sum(depth == 1 for _, depth in calls)
    assert records[0].cached == (0, 0)
    records.clear()
    decoder.generate(prompts, greedy(2))
    assert records[0].cached == (39, 22)


@pytest.mark.parametrize("relies", [False, True])
def test_columns_that_were_only_drafted_are_not_relied_on(llama: Any, relies: bool) -> None:
    """Fault: what the first layers computed is taken for the target's own."""
    reference, target = llama
    prompts = random_prompts(5 + relies, (3, 4))  # Blocks may still hold the last test's texts.
    prefixes = [Prefix(name, ids) for name, ids in enumerate(prompts)]
    cursor = target.open(prefixes, 2, first_layers(target.hf_model, 1))
    cursor.step(torch.tensor([7, 8]))
    if relies:
        target._settle(prefixes, cursor._drafts)
    texts = [[*ids, token, 5] for ids, token in zip(prompts, (7, 8), strict=True)]
    longer = [Prefix(name, ids) for name, ids in enumerate(texts)]
    tokens = torch.empty(2, 0, dtype=torch.int64)
    found = target.verify(longer, DraftProposal(tokens, np.zeros(2, np.int64), None)).logits
    with torch.inference_mode():
        due = torch.stack([reference(torch.tensor([ids])).logits[0, -1] for ids in texts])
    assert bool((found[:, 0] - due).abs().max() < 1e-9) is not relies
    target.release(target.live_sequences, discard=True)


@pytest.mark.slow
def test_a_seeded_request_goes_by_the_share_of_layers(llama: Any) -> None:
    """As if it had been configured: a step in two of three layers is no eighth of a forward."""
    _, target = llama
    drafter, params = EarlyExitDrafter(target, 2), SamplingParams(max_tokens=40, temperature=1.0)
    prompts = random_prompts(3, (5, 8, 13, 21))
    drafters = [(drafter, None), (drafter, 2 / 3), (drafter, 0.125)]
    hybrid = HybridDrafter(drafter, SuffixDrafter(max_pool_tokens=0))
    drafters += [(hybrid, None), (hybrid, 2 / 3)]
    depths = []
    for one, cost_ratio in drafters:
        config = SpeculativeConfig(cost_ratio=cost_ratio)
        outputs = SpeculativeDecoder(target, one, config=config).generate(
            prompts, [replace(params, seed=seed) for seed in range(len(prompts))]
        )
        depths.append([out.depths for out in outputs])
    assert depths[0] == depths[1] != depths[2]
    assert depths[3] == depths[4]


def test_what_cannot_be_left_early_is_refused(llama: Any) -> None:
    _, target = llama
    for layers in (0, 3, True + 0.5):
        with pytest.raises(InvalidConfigError, match=r"an integer in 1\.\.2"):
            EarlyExitDrafter(target, layers)
    with pytest.raises(InvalidConfigError, match="a TransformersModel"):
        EarlyExitDrafter(target.hf_model, 1)
    twice = random_model("llama")
    twice.others = torch.nn.ModuleList(torch.nn.Identity() for _ in range(3))
    with pytest.raises(ModelError, match="has 2 lists of 3 layers"):
        truncated(twice, 1)
