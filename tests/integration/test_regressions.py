"""Defects once found in the engine and the adapter, each held off by the case that showed it."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf

from outrider import (
    ModelDrafter,
    SamplingParams,
    SpeculativeConfig,
    SpeculativeDecoder,
    TransformersModel,
)
from outrider.certify import exact_distribution
from outrider.certify.reference import distance, target_distribution
from outrider.errors import (
    DegenerateDistributionError,
    InvalidConfigError,
    ModelError,
)
from outrider.random import Philox4x32, Race, inverse_cdf
from outrider.runtimes.tabular import TabularModel, mock_pair
from outrider.sampling.distributions import PackedParams, distributions
from outrider.types.records import Distributions, DraftPlan, DraftProposal, Prefix, TargetScores
from outrider.verification import TraversalVerification, Tree
from tests.support.families import random_model, resembling

CPU = torch.device("cpu")


def small(vocab_size: int, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    config = tf.LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=64,
        eos_token_id=None,
    )
    model = tf.LlamaForCausalLM(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.normal_(0, 0.5)
    model.generation_config.eos_token_id = None
    return model


def test_decoders_that_share_a_model_do_not_share_its_slots() -> None:
    model = TransformersModel(random_model("llama"), max_sequences=1)
    one, two = SpeculativeDecoder(model), SpeculativeDecoder(model)
    params = SamplingParams(max_tokens=20, seed=1)
    expected = one.generate([1, 2, 3], params).token_ids
    one, two = SpeculativeDecoder(model), SpeculativeDecoder(model)
    stream = one.stream([1, 2, 3], params)
    begun = [next(stream).token_id for _ in range(3)]
    with pytest.raises(ModelError, match="1 sequences are live"):
        two.generate([1, 2, 3], SamplingParams(max_tokens=20, seed=2))
    assert (*begun, *(event.token_id for event in stream)) == expected
    model.check_integrity()


@pytest.mark.parametrize("k", [0, 2])
@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_the_exact_distribution_of_cached_models(k: int, batch_size: int) -> None:
    """Enumeration gives the distribution of full forwards of a real architecture."""
    hf_model = small(3)
    target = TransformersModel(copy.deepcopy(hf_model), max_sequences=5)
    draft = TransformersModel(small(3, seed=1), max_sequences=5)
    config = SpeculativeConfig(depth="fixed", num_speculative_tokens=k)
    decoder = SpeculativeDecoder(target, draft, config=config)

    def distribution(prefix: tuple[int, ...]) -> np.ndarray:
        with torch.no_grad():
            row: np.ndarray = hf_model(torch.tensor([prefix])).logits[0, -1].softmax(-1).numpy()
            return row

    params = SamplingParams(max_tokens=3)
    found = exact_distribution(decoder, (0, 1), params, batch_size=batch_size)
    assert (
        distance(found, target_distribution(TabularModel(distribution, 3), (0, 1), params)) < 1e-12
    )
    assert not target.live_sequences
    assert decoder.metrics.rounds == 0


class Padded(ModelDrafter):
    """Drafts one token less than planned, and fills what lies beyond with a number."""

    def __init__(self, model: TabularModel, padding: float) -> None:
        super().__init__(model)
        self._padding = padding

    def propose(self, prefixes: list[Prefix], plan: DraftPlan, ctx: Any) -> DraftProposal:
        made = super().propose(prefixes, plan, ctx)
        assert made.distributions is not None
        assert made.distributions.probs is not None
        lengths = np.maximum(plan.depth - 1, 0)
        beyond = torch.arange(made.width) >= torch.from_numpy(lengths)[:, None]
        probs = made.distributions.probs.masked_fill(beyond[..., None], self._padding)
        return DraftProposal(made.tokens, lengths, Distributions(probs=probs))


@pytest.mark.parametrize("verification", ["block", "token"])
@pytest.mark.parametrize("padding", [float("nan"), -1e30, 0.0])
def test_what_lies_beyond_a_rows_drafts_is_not_looked_at(verification: str, padding: float) -> None:
    target, draft = mock_pair(3, 2)
    config = SpeculativeConfig(depth="fixed", num_speculative_tokens=3, verification=verification)
    decoder = SpeculativeDecoder(target, Padded(draft, padding), config=config)
    params = SamplingParams(max_tokens=4)
    distribution = exact_distribution(decoder, (0, 1), params)
    assert distance(distribution, target_distribution(target, (0, 1), params)) < 1e-12


def test_nan_logits_beyond_a_rows_drafts_are_not_looked_at() -> None:
    target, draft = mock_pair(3, 2)

    class NanBeyond(TabularModel):
        def verify(self, prefixes: list[Prefix], proposal: DraftProposal) -> TargetScores:
            logits = super().verify(prefixes, proposal).logits
            for row, length in enumerate(proposal.lengths):
                logits[row, length + 1 :] = torch.nan
            return TargetScores(logits)

    decoder = SpeculativeDecoder(NanBeyond(target.probabilities, 3), draft)
    outputs = decoder.generate([[0], [1]], [SamplingParams(max_tokens=m, seed=1) for m in (3, 9)])
    assert [len(output.token_ids) for output in outputs] == [3, 9]


def test_a_draft_with_fewer_embeddings_reads_any_prompt() -> None:
    target = TransformersModel(small(9))
    draft = TransformersModel(small(5, seed=1))
    decoder = SpeculativeDecoder(target, ModelDrafter(draft, 9))
    output = decoder.generate([8, 1, 7], SamplingParams(max_tokens=30, seed=1))
    plain = SpeculativeDecoder(target)
    greedy = SamplingParams(max_tokens=20, temperature=0)
    assert len(output.token_ids) == 30
    assert decoder.generate([8], greedy).token_ids == plain.generate([8], greedy).token_ids


@pytest.mark.filterwarnings("ignore")
def test_frequencies_that_depend_on_the_batch_limit_the_context() -> None:
    """Beyond its original context a "longrope" model is another function of the same prefix."""
    config = tf.Phi3Config(
        vocab_size=31,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=160,
        original_max_position_embeddings=32,
        pad_token_id=0,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "short_factor": [1.0] * 4,
            "long_factor": [4.0] * 4,
            "original_max_position_embeddings": 32,
        },
    )
    torch.manual_seed(0)
    model = TransformersModel(tf.Phi3ForCausalLM(config).double())
    assert model.max_length == 32


def test_a_draft_step_that_was_interrupted_is_not_relied_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reference = random_model("llama")
    model = TransformersModel(copy.deepcopy(reference), max_sequences=1)
    cursor = model.open([Prefix(1, [3, 1, 4])], 3)

    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(model), "forward", interrupted)
        with pytest.raises(KeyboardInterrupt):
            cursor.step(torch.tensor([7]))
    nothing = DraftProposal(torch.zeros(1, 0, dtype=torch.int64), np.zeros(1, dtype=int), None)
    found = model.verify([Prefix(1, [3, 1, 4, 7, 5])], nothing).logits[0, 0]
    with torch.no_grad():
        expected = reference(torch.tensor([[3, 1, 4, 7, 5]])).logits[0, -1]
    assert float((found - expected).abs().max()) < 1e-10


def test_an_interrupted_request_frees_its_slots_and_is_not_shared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = TransformersModel(random_model("llama"), max_sequences=2)
    decoder = SpeculativeDecoder(model, model)
    params = SamplingParams(max_tokens=16, temperature=0)
    expected = decoder.generate([3, 1, 4], params).token_ids
    discarded: list[bool] = []
    release = model.release
    stream = decoder.stream([3, 1, 4], params)
    next(stream)

    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    def noted(ids: Any, *, discard: bool = False) -> None:
        discarded.append(discard)
        release(ids, discard=discard)

    with monkeypatch.context() as patch:
        patch.setattr(type(model), "forward", interrupted)
        patch.setattr(model, "release", noted)
        with pytest.raises(KeyboardInterrupt):
            list(stream)
    assert discarded[0]
    assert not model.live_sequences
    assert decoder.generate([3, 1, 4], params).token_ids == expected


def test_prompts_may_be_any_sequence_and_are_never_half_consumed() -> None:
    decoder = SpeculativeDecoder(mock_pair(4, 1)[0])
    params = SamplingParams(max_tokens=3, seed=1)
    expected = [decoder.generate([i], params).token_ids for i in range(3)]
    for prompts in (
        [np.array([i]) for i in range(3)],
        [torch.tensor([i]) for i in range(3)],
        ((0,), (1,), (2,)),
    ):
        outputs: Any = decoder.generate(prompts, params)
        assert [output.token_ids for output in outputs] == expected
    for one in (np.array([2]), torch.tensor([2]), (2,)):
        assert decoder.generate(one, params).token_ids == expected[2]
    with pytest.raises(InvalidConfigError, match="prompts="):
        decoder.generate((p for p in [[0], [1]]), params)


def test_a_step_refuses_what_cannot_be_stepped() -> None:
    decoder = SpeculativeDecoder(mock_pair(4, 1)[0])
    (state,) = decoder.start([0], SamplingParams(max_tokens=1))
    done = decoder.step(decoder.pack([state])).batch
    for batch in (done, decoder.pack([]), decoder.pack([state, state])):
        with pytest.raises(InvalidConfigError, match="batch="):
            decoder.step(batch)


def test_a_rows_distribution_does_not_depend_on_its_mates_filters() -> None:
    torch.manual_seed(0)
    logits = torch.randn(3, 2, 4000) * 3
    mixed = [SamplingParams(), SamplingParams(top_p=0.8), SamplingParams(top_k=9)]
    together, _ = distributions(logits, PackedParams.pack(mixed, 4000, CPU))
    assert together.probs is not None
    for row, params in enumerate(mixed):
        alone, _ = distributions(logits[row : row + 1], PackedParams.pack([params], 4000, CPU))
        assert alone.probs is not None
        assert (together.probs[row] == alone.probs[0]).all()


def test_a_chance_with_a_draw_of_its_own_is_asked() -> None:
    class Counted(Philox4x32):
        asked = 0

        def draw(self, distributions: torch.Tensor, keys: Any) -> torch.Tensor:
            Counted.asked += 1
            return super().draw(distributions, keys)

    target, draft = mock_pair(4, 1)
    counted = SpeculativeDecoder(target, draft, chance=Counted())
    plain = SpeculativeDecoder(target, draft)
    params = SamplingParams(max_tokens=9, seed=4)
    assert counted.generate([0], params).token_ids == plain.generate([0], params).token_ids
    assert Counted.asked > 0


def test_one_decoder_may_be_used_from_several_threads() -> None:
    target = TransformersModel(random_model("llama"), max_sequences=4)
    draft = TransformersModel(resembling(random_model("llama")), max_sequences=4)
    decoder = SpeculativeDecoder(target, draft)
    asked = [([1 + i % 3, 5], SamplingParams(max_tokens=24, seed=i)) for i in range(24)]
    expected = [decoder.generate(*pair).token_ids for pair in asked]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda pair: decoder.generate(*pair).token_ids, asked))
    assert found == expected
    assert not target.live_sequences
    assert decoder.metrics.emitted == 2 * 24 * 24


def three(max_tokens: int, **asked: Any) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, **asked)


def test_a_mixture_keeps_no_token_that_was_not_drafted() -> None:
    """A row without drafts beside one with three: its distribution is the target's own."""
    target, draft = mock_pair(3, 1)
    config = SpeculativeConfig(depth="fixed", num_speculative_tokens=3, verification="mixture")
    decoder = SpeculativeDecoder(target, draft, config=config)
    mates = decoder.start((1,), three(5))
    found = exact_distribution(decoder, (0,), three(1), mates=mates)
    assert distance(found, target_distribution(target, (0,), three(1))) < 1e-12


def test_a_mixture_leaves_greedy_rows_alone_in_any_batch() -> None:
    config = SpeculativeConfig(
        depth="fixed", num_speculative_tokens=2, verification="mixture", mixture_budget=0.3
    )
    for seed in range(10):
        target, draft = mock_pair(3, seed, 0.0)
        decoder = SpeculativeDecoder(target, draft, config=config)
        mates = decoder.start((1,), three(9))
        greedy = three(4, temperature=0)
        assert len(exact_distribution(decoder, (0,), greedy, mates=mates)) == 1


@pytest.mark.parametrize("method", ["probabilistic", "greedy"])
def test_nan_in_a_round_of_trees_is_named(method: str) -> None:
    target, draft = mock_pair(3, 1)

    class Broken(TabularModel):
        def verify(self, prefixes: Any, proposal: DraftProposal) -> TargetScores:
            logits = super().verify(prefixes, proposal).logits.clone()
            logits[0, 0] = torch.nan
            return TargetScores(logits)

    config = SpeculativeConfig(
        depth="fixed",
        num_speculative_tokens=2,
        tree_shape=(2, 1),
        draft_sample_method=method,
    )
    decoder = SpeculativeDecoder(Broken(target.probabilities, 3), draft, config=config)
    states = [decoder.start((i,), three(9, seed=1, depths=(1 + i,)))[0] for i in (0, 1)]
    wanted = f"target's logits for sequence {states[0].prefix.sequence_id} have NaN"
    with pytest.raises(DegenerateDistributionError, match=wanted):
        decoder.step(decoder.pack(states))


def test_a_greedy_rows_tree_does_not_depend_on_its_mates() -> None:
    target, draft = mock_pair(7, 8)
    for asked in ({}, {"top_k": 2}):
        config = SpeculativeConfig(depth="fixed", num_speculative_tokens=3, tree_budget=4)
        decoder = SpeculativeDecoder(target, draft, config=config)
        for prompt in range(7):
            greedy = three(20, temperature=0, seed=1, **asked)
            alone = decoder.generate((prompt,), greedy)
            mate = three(20, temperature=0.5, seed=2)
            beside = decoder.generate([(prompt,), (1,)], [greedy, mate])[0]
            assert alone.depths == beside.depths
            assert alone.token_ids == beside.token_ids


def test_a_ceiling_is_of_the_rounds_it_stands_beside() -> None:
    target, draft = mock_pair(4, 3, 0.9)
    config = SpeculativeConfig(depth="fixed", num_speculative_tokens=3, tree_shape=(2, 2, 2))
    decoder = SpeculativeDecoder(target, draft, config=config)
    decoder.generate([(0,), (1,)], [three(60, seed=1), three(90, temperature=0)])
    assert decoder.metrics.ceiling is None
    decoder.reset_metrics()
    decoder.generate((0,), three(20, temperature=0))
    assert decoder.metrics.ceiling == decoder.metrics.acceptance_length


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_wide_distributions_in_half_precision_are_drawn_from(kind: torch.dtype) -> None:
    wide = torch.full((1, 1 << 14), 2.0**-14, dtype=kind)
    assert int(inverse_cdf(wide, torch.tensor([0.5], dtype=torch.float64))) == 1 << 13


def test_a_token_without_mass_never_wins_a_race() -> None:
    class Zero(Philox4x32):
        def race(self, keys: Any, size: int) -> Any:
            return np.zeros((len(keys), size))

    race = Race(Zero(), np.zeros((1, 5), dtype=np.uint64))
    assert int(race.times(torch.tensor([[0.0, 1.0, 0.0]]), 0).argmin()) == 1


def test_trees_may_be_very_deep() -> None:
    tokens = torch.zeros(1, 1500, dtype=torch.int64)
    proposal = DraftProposal(
        tokens,
        np.array([1500]),
        Distributions(probs=torch.full((1, 1, 2), 0.5, dtype=torch.float64)),
        distribution_rows=np.zeros((1, 1500), dtype=np.int64),
    )
    target = torch.full((1, 1501, 2), 0.5, dtype=torch.float64)
    distribution, _ = TraversalVerification().stop_distribution(Tree.of(proposal, target))
    assert float(distribution[0, -1]) == 1
