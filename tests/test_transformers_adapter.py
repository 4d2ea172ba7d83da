"""The slot-cache adapter on real architectures, in float64: transformers' own text."""

from __future__ import annotations

import copy
import inspect
import random
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf

from outrider import SamplingParams, SpeculativeConfig, SpeculativeDecoder, TransformersModel
from outrider.errors import ContextLengthError, InvalidConfigError, ModelError
from outrider.types.records import Distributions, DraftProposal, Prefix

from .families import CONTEXT, FAMILIES, VOCAB, greedy_reference, random_model, resembling

SLOTS = 5


def random_prompts(seed: int, lengths: tuple[int, ...]) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(VOCAB) for _ in range(length)] for length in lengths]


def drafted(*rows: list[int]) -> DraftProposal:
    """A proposal of ragged rows of tokens."""
    lengths = np.array([len(row) for row in rows])
    tokens = torch.zeros(len(rows), int(lengths.max()), dtype=torch.int64)
    for index, row in enumerate(rows):
        tokens[index, : len(row)] = torch.tensor(row, dtype=torch.int64)
    return DraftProposal(tokens, lengths, Distributions(point_masses=tokens))


class Wrapped:
    """A family's model behind the adapter, a resembling draft, and the model left as it was."""

    def __init__(self, family: str) -> None:
        # Gemma 2's own attention takes its softmax in float32 whatever the model's dtype.
        self.tolerance = 1e-5 if family == "gemma2" else 1e-10
        self.reference = random_model(family)
        draft = resembling(self.reference)
        self.target = TransformersModel(copy.deepcopy(self.reference), max_sequences=SLOTS)
        self.draft = TransformersModel(draft, max_sequences=SLOTS)

    def decoder(self, k: int) -> SpeculativeDecoder:
        return SpeculativeDecoder(
            self.target,
            self.draft,
            config=SpeculativeConfig(depth="fixed", num_speculative_tokens=k),
        )

    def check_integrity(self) -> None:
        for model in (self.target, self.draft):
            model.check_integrity()


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Wrapped:
    return Wrapped(request.param)


@pytest.fixture(scope="module")
def llama() -> Wrapped:
    return Wrapped("llama")


def greedy(length: int) -> SamplingParams:
    return SamplingParams(max_tokens=length, temperature=0)


def test_early_logits_equal_the_full_forward(family: Wrapped) -> None:
    """After rejected drafts, on ragged rows, from prefill to the sixth round."""
    rng = random.Random(3)
    paths = random_prompts(4, (2, 12, 23))
    names = [1000, 1001, 1002]
    worst = 0.0
    for _ in range(6):
        rows = [[rng.randrange(VOCAB) for _ in range(rng.randrange(1, 5))] for _ in paths]
        prefixes = [Prefix(name, path) for name, path in zip(names, paths, strict=True)]
        logits = family.target.verify(prefixes, drafted(*rows)).logits
        for row, (path, drafts) in enumerate(zip(paths, rows, strict=True)):
            with torch.no_grad():
                full = family.reference(torch.tensor([[*path, *drafts]])).logits[0]
            found = logits[row, : len(drafts) + 1]
            worst = max(worst, float((found - full[len(path) - 1 :]).abs().max()))
        paths = [
            [*path, *drafts[: rng.randrange(len(drafts) + 1)], rng.randrange(VOCAB)]
            for path, drafts in zip(paths, rows, strict=True)
        ]
    family.target.release(names)
    assert worst < family.tolerance


@pytest.mark.parametrize("gone", range(5))
def test_rows_whose_mate_is_gone_are_moved_together_and_see_the_same(
    family: Wrapped, gone: int
) -> None:
    """Drafts that were not read back yet, and what an idle slot keeps for others, move too."""
    names = list(range(2000, 2005))
    prefixes = [
        Prefix(name, path)
        for name, path in zip(names, random_prompts(8, (5, 9, 4, 12, 7)), strict=True)
    ]
    drafts = [[3, 1], [2], [5, 5], [7], [1, 4]]
    family.target.verify(prefixes, drafted(*drafts))
    family.target.release([names[gone]])
    rows = [row for row in range(5) if row != gone]
    longer = [prefixes[row].extended([*drafts[row], 6]) for row in rows]
    logits = family.target.verify(longer, drafted(*[[9]] * 4)).logits
    assert family.target._cache._gather is None
    family.check_integrity()
    again = family.target.verify([Prefix(3000, [*prefixes[gone].tokens, 8])], drafted([9])).logits
    tested = [*zip(longer, logits, strict=True), (Prefix(0, [*prefixes[gone].tokens, 8]), again[0])]
    for prefix, found in tested:
        with torch.no_grad():
            full = family.reference(torch.tensor([[*prefix.tokens.tolist(), 9]])).logits[0]
        assert float((found - full[-2:]).abs().max()) < family.tolerance
    family.target.release([*names, 3000], discard=True)


def test_what_a_row_alone_sees_is_what_it_sees_in_a_batch(family: Wrapped) -> None:
    views = family.target.views
    for start in (0, 1, 5, 63, 64, 100, CONTEXT - 1):
        for length in (1, 2, 5, 16, 17):
            alone = views.chain([start], length)
            joined = views.chain([start, start], length).rows(1, 2)
            torch.testing.assert_close(alone.masks, joined.masks, rtol=0, atol=0)
            assert alone.positions.equal(joined.positions)
            assert alone.columns.equal(joined.columns)


@pytest.mark.parametrize("k", range(9))
def test_greedy_equals_generate_alone_and_in_ragged_batches(family: Wrapped, k: int) -> None:
    prompts = random_prompts(k, (1, 4, 9, 20, 37))
    expected = [greedy_reference(family.reference, prompt, 20) for prompt in prompts]
    decoder = family.decoder(k)
    batched = decoder.generate(prompts, greedy(20))
    alone = decoder.generate(prompts[k % 5], greedy(20))
    assert [out.token_ids for out in batched] == expected
    assert alone.token_ids == expected[k % 5]
    family.check_integrity()


def test_more_requests_than_slots_reuse_idle_slots_and_never_take_live_ones(
    family: Wrapped,
) -> None:
    prompts = random_prompts(11, (3, 30, 6, 2, 14, 7, 25, 5, 11, 1, 18))
    lengths = [4, 17, 9, 12, 6, 15, 3, 11, 8, 20, 5]
    outputs = family.decoder(3).generate(prompts, [greedy(length) for length in lengths])
    for prompt, length, output in zip(prompts, lengths, outputs, strict=True):
        assert output.token_ids == greedy_reference(family.reference, prompt, length)
    family.check_integrity()


def test_choices_of_one_prompt_are_independent_and_share_its_columns(family: Wrapped) -> None:
    prompt = random_prompts(5, (24,))[0]
    output = family.decoder(3).generate(prompt, SamplingParams(max_tokens=12, n=3, temperature=0))
    expected = greedy_reference(family.reference, prompt, 12)
    assert [choice.token_ids for choice in output.choices] == [expected] * 3
    sampled = family.decoder(3).generate(prompt, SamplingParams(max_tokens=12, n=3, seed=1))
    assert len({choice.token_ids for choice in sampled.choices}) == 3


def test_a_prompt_that_shares_a_long_prefix_with_a_live_one(family: Wrapped) -> None:
    shared = random_prompts(6, (40,))[0]
    decoder = family.decoder(4)
    stream = decoder.stream(shared, greedy(30))
    first = [next(stream).token_id for _ in range(7)]
    other = decoder.generate([*shared, 5, 7], greedy(15))
    rest = [event.token_id for event in stream]
    assert other.token_ids == greedy_reference(family.reference, [*shared, 5, 7], 15)
    assert (*first, *rest) == greedy_reference(family.reference, shared, 30)


def test_what_of_a_new_prefix_was_computed_already_is_told_with_its_logits(llama: Wrapped) -> None:
    """By the caller's rows; what a sequence goes on with is not told again."""
    target = TransformersModel(copy.deepcopy(llama.reference), max_sequences=3)
    shared, other = random_prompts(7, (40, 30))
    nothing = drafted([])
    assert target.verify([Prefix(0, shared)], nothing).cached == (0,)
    assert target.verify([Prefix(0, [*shared, 1])], nothing).cached == (0,)
    prefixes = [Prefix(2, other), Prefix(1, [*shared, 5, 7])]
    assert target.verify(prefixes, drafted([], [])).cached == (0, 40)
    target.release([0, 1, 2])
    assert target.verify([Prefix(3, [*other, 3])], nothing).cached == (30,)


def test_long_prompts_are_prefilled_in_chunks(llama: Wrapped) -> None:
    target = TransformersModel(copy.deepcopy(llama.reference), max_sequences=3, prefill_chunk=16)
    prompts = random_prompts(7, (100, 33, 65))
    outputs = SpeculativeDecoder(target).generate(prompts, greedy(6))
    for prompt, output in zip(prompts, outputs, strict=True):
        assert output.token_ids == greedy_reference(llama.reference, prompt, 6)


def test_one_model_can_be_target_and_drafter(llama: Wrapped) -> None:
    prompt = random_prompts(8, (10,))[0]
    decoder = SpeculativeDecoder(
        llama.target, llama.target, config=SpeculativeConfig(depth="fixed")
    )
    output = decoder.generate(prompt, greedy(25))
    assert output.token_ids == greedy_reference(llama.reference, prompt, 25)
    assert output.metrics.acceptance_rate == 1


def test_a_closed_stream_gives_its_slot_back(llama: Wrapped) -> None:
    decoder = llama.decoder(2)
    for seed in range(2 * SLOTS):
        stream = decoder.stream(random_prompts(seed, (4,))[0], greedy(20))
        next(stream)
        stream.close()
    llama.check_integrity()
    assert not llama.target.live_sequences


def test_a_live_slot_is_never_taken(llama: Wrapped) -> None:
    target = TransformersModel(copy.deepcopy(llama.reference), max_sequences=2)
    nothing = DraftProposal(torch.zeros(1, 0, dtype=torch.int64), np.zeros(1, dtype=int), None)
    target.verify([Prefix(1, [3])], nothing)
    target.verify([Prefix(2, [4])], nothing)
    with pytest.raises(ModelError, match=r"sequence 3 is new and all 2 slots are live"):
        target.verify([Prefix(3, [5])], nothing)
    target.release([1])
    target.verify([Prefix(3, [5])], nothing)
    target.check_integrity()


def test_a_sequence_may_be_rewritten_anywhere(llama: Wrapped) -> None:
    """A target is a function of prefixes: the same id with other tokens gets their logits."""
    for path in ([1, 2, 3, 4, 5, 6], [1, 2, 9], [9, 9, 9, 9, 9, 9, 9, 9], [1]):
        found = llama.target.verify([Prefix(77, path)], drafted([8, 8])).logits[0]
        with torch.no_grad():
            full = llama.reference(torch.tensor([[*path, 8, 8]])).logits[0, -3:]
        assert float((found - full).abs().max()) < 1e-10
    llama.target.release([77])


def test_a_sequence_may_fill_the_context_to_the_last_token(llama: Wrapped) -> None:
    prompts = random_prompts(9, (CONTEXT - 6, 20))
    outputs = llama.decoder(8).generate(prompts, [greedy(6), greedy(30)])
    for prompt, output in zip(prompts, outputs, strict=True):
        length = len(output.token_ids)
        assert output.token_ids == greedy_reference(llama.reference, prompt, length)


def test_a_request_beyond_the_context_is_refused(llama: Wrapped) -> None:
    with pytest.raises(ContextLengthError, match=r"150 tokens and max_tokens=11.*max_tokens <= 10"):
        llama.decoder(2).generate([1] * 150, greedy(11))
    with pytest.raises(ContextLengthError, match=r"has 161 tokens and 1 drafts.*context is 160"):
        llama.target.verify([Prefix(1, [1] * 161)], drafted([1]))


def tiny(config: Any) -> Any:
    torch.manual_seed(0)
    return tf.AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: tiny(tf.BloomConfig(vocab_size=31, hidden_size=16, n_layer=1, n_head=2)), "ALiBi"),
        (
            lambda: tiny(
                tf.FalconConfig(
                    vocab_size=31,
                    hidden_size=16,
                    num_hidden_layers=1,
                    num_attention_heads=2,
                    alibi=True,
                )
            ),
            "ALiBi",
        ),
        (
            lambda: tiny(
                tf.MambaConfig(vocab_size=31, hidden_size=16, num_hidden_layers=1, state_size=4)
            ),
            "recurrent state",
        ),
        (
            lambda: tf.T5ForConditionalGeneration(
                tf.T5Config(vocab_size=31, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
            ),
            "encoder-decoder",
        ),
        (
            lambda: tiny(
                tf.Lfm2Config(
                    vocab_size=31,
                    hidden_size=16,
                    intermediate_size=32,
                    num_hidden_layers=2,
                    num_attention_heads=2,
                    num_key_value_heads=1,
                    layer_types=["conv", "full_attention"],
                )
            ),
            "'conv'",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_architectures_that_cannot_be_cut_back_are_refused(make: Any, reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        TransformersModel(make())


def test_a_model_whose_cache_disagrees_with_its_forward_is_refused() -> None:
    """The check at construction: a model that ignores positions when it is given a cache."""
    model = random_model("llama")
    forward = model.forward

    def careless(*args: Any, position_ids: Any = None, **kwargs: Any) -> Any:
        wrong = None if position_ids is None else position_ids * 0
        return forward(*args, position_ids=wrong, **kwargs)

    model.forward = careless
    careless.__signature__ = inspect.signature(forward)
    with pytest.raises(ModelError, match="other logits after a rejected draft"):
        TransformersModel(model)


def test_a_model_whose_siblings_see_each_other_is_refused() -> None:
    """The check at construction: a model that takes all columns before its own for its text."""
    model = random_model("llama")
    forward = model.forward

    def careless(*args: Any, attention_mask: Any = None, **kwargs: Any) -> Any:
        if attention_mask is not None:
            own = attention_mask.shape[-1] - 1 - (attention_mask.flip(-1) == 0).int().argmax(-1)
            seen = torch.arange(attention_mask.shape[-1]) <= own[..., None]
            attention_mask = torch.zeros_like(attention_mask).masked_fill(~seen, -torch.inf)
        return forward(*args, attention_mask=attention_mask, **kwargs)

    model.forward = careless
    careless.__signature__ = inspect.signature(forward)
    with pytest.raises(ModelError, match="other logits after a rejected draft"):
        TransformersModel(model)


def test_a_model_with_nan_weights_is_refused_for_what_it_is() -> None:
    model = random_model("llama")
    model.lm_head.weight.data[3] = torch.nan
    with pytest.raises(ModelError, match="NaN or infinite logits for a few tokens"):
        TransformersModel(model)


@pytest.mark.parametrize(
    ("field", "value"), [("max_sequences", 0), ("prefill_chunk", 0), ("max_length", 161)]
)
def test_bad_sizes_are_refused_by_name(llama: Wrapped, field: str, value: int) -> None:
    with pytest.raises(InvalidConfigError, match=f"{field}={value}"):
        TransformersModel(copy.deepcopy(llama.reference), **{field: value})


@pytest.mark.parametrize("noise", [0.0, 5.0])
def test_a_draft_catches_up_in_one_forward(
    llama: Wrapped, noise: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the one token it was not fed, or after full acceptance with the last two of them."""
    near = resembling(llama.reference, noise)
    draft = TransformersModel(near, max_sequences=1)
    widths: list[int] = []
    forward = draft.forward

    def noted(slots: Any, starts: Any, tokens: Any, *rest: Any) -> Any:
        widths.append(tokens.shape[1])
        return forward(slots, starts, tokens, *rest)

    monkeypatch.setattr(draft, "forward", noted)
    config = SpeculativeConfig(num_speculative_tokens=3, depth="fixed")
    decoder = SpeculativeDecoder(llama.target, draft, config=config)
    output = decoder.generate(random_prompts(2, (5,))[0], greedy(17))
    assert output.metrics.acceptance_rate == (1 if noise == 0 else pytest.approx(0, abs=0.1))
    first = 2 if noise == 0 else 1
    assert widths[:9] == [5, 1, 1, first, 1, 1, first, 1, 1]


def test_room_that_was_made_does_not_grow_under_a_sequence() -> None:
    """And makes no other text; more than the context is refused."""
    model = TransformersModel(random_model("llama"), max_sequences=2)
    asked = SamplingParams(max_tokens=70, temperature=0, ignore_eos=True)
    room = model._cache.capacity
    model.reserve(80)
    before = model._cache.capacity
    assert before >= 80 > room
    other = TransformersModel(random_model("llama"), max_sequences=2)
    plain = SpeculativeDecoder(other).generate([1, 2, 3], asked)
    assert other._cache.capacity > room
    again = SpeculativeDecoder(model).generate([1, 2, 3], asked)
    assert again.choices[0].token_ids == plain.choices[0].token_ids
    assert model._cache.capacity == before
    for tokens in (0, model.max_length + 1):
        with pytest.raises(InvalidConfigError, match="tokens"):
            model.reserve(tokens)
