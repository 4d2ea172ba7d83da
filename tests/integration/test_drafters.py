"""Drafters with models of transformers: text stays the target's own, whatever drafts it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as tf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from outrider import (
    HybridDrafter,
    ModelDrafter,
    NgramDrafter,
    SamplingParams,
    SpeculativeConfig,
    SpeculativeDecoder,
    SuffixDrafter,
    TransformersModel,
    VocabularyDrafter,
)
from outrider.drafters.base import Drafter

from ..support.families import greedy_reference

TEXT = '''def area(width, height):
    """The area of a rectangle: naïve, in m² — größer als 0 €."""
    return width * height


for number in range(10):
    print(number, area(number, 2 * number))
'''
PROMPTS = ("def area", "größer", "for number in range(10):\n    print(")


def byte_level(size: int, text: str) -> Any:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([text], trainer)
    return tf.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|end|>")


LARGE, SMALL = byte_level(400, TEXT), byte_level(320, TEXT[::-1] + TEXT[:200])


def llama(tokenizer: Any, seed: int) -> Any:
    torch.manual_seed(seed)
    config = tf.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        tie_word_embeddings=False,
    )
    model = tf.LlamaForCausalLM(config).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.normal_(0, 0.35)
    model.generation_config.eos_token_id = None
    return model


@pytest.fixture(scope="module")
def target() -> TransformersModel:
    return TransformersModel(llama(LARGE, 0), max_sequences=4)


@pytest.fixture(scope="module")
def expected() -> list[tuple[int, ...]]:
    reference = llama(LARGE, 0)
    return [greedy_reference(reference, LARGE.encode(prompt), 24) for prompt in PROMPTS]


@pytest.mark.parametrize("match", ["tokens", "text"])
@pytest.mark.parametrize("tree", [None, (2, 2)])
def test_a_draft_of_another_vocabulary_leaves_greedy_text_as_it_is(
    target: TransformersModel, expected: list[tuple[int, ...]], match: Any, tree: Any
) -> None:
    model = TransformersModel(llama(SMALL, 1), max_sequences=4)
    drafter = VocabularyDrafter(model, SMALL, LARGE, match=match)
    config = SpeculativeConfig(depth="fixed", num_speculative_tokens=3, tree_shape=tree)
    decoder = SpeculativeDecoder(target, drafter, tokenizer=LARGE, config=config)
    outputs = decoder.generate(list(PROMPTS), SamplingParams(max_tokens=24, temperature=0))
    assert [output.token_ids for output in outputs] == expected
    assert decoder.metrics.drafted > 0


def drafters() -> list[Drafter]:
    model = TransformersModel(llama(LARGE, 0), max_sequences=4, max_length=24)
    return [ModelDrafter(model), HybridDrafter(model, SuffixDrafter(), min_expected=1)]


@pytest.mark.parametrize("tree", [None, (2, 2)])
def test_the_targets_context_alone_limits_a_request(
    target: TransformersModel, expected: list[tuple[int, ...]], tree: Any
) -> None:
    """Past the end of the draft's context a model drafts nothing, and a look-up goes on."""
    prompts = [LARGE.encode(prompt) for prompt in PROMPTS]
    assert min(map(len, prompts)) < 24 < min(map(len, prompts)) + 24
    for drafter in drafters():
        config = SpeculativeConfig(depth="fixed", num_speculative_tokens=4, tree_shape=tree)
        decoder = SpeculativeDecoder(target, drafter, config=config)
        outputs = decoder.generate(prompts, SamplingParams(max_tokens=24, temperature=0))
        assert [output.token_ids for output in outputs] == expected
        assert decoder.metrics.accepted > 0


@pytest.mark.parametrize("drafter", [NgramDrafter(), SuffixDrafter()])
def test_look_ups_propose_nothing_behind_a_token_that_ends_the_request(
    target: TransformersModel, drafter: Drafter
) -> None:
    """Of a text that repeats itself each round could draft four tokens."""
    prompt = LARGE.encode(("a b c d " * 6).strip())
    config = SpeculativeConfig(depth="fixed", num_speculative_tokens=4)
    for stops, drafted in (((), 4), (tuple(set(prompt)), 1)):
        records: list[Any] = []
        decoder = SpeculativeDecoder(target, drafter, config=config, on_round=records.append)
        decoder.generate(prompt, SamplingParams(max_tokens=6, temperature=0, stop_token_ids=stops))
        assert records[0].drafted == (drafted,)
