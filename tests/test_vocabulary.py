"""A draft of another vocabulary: the target's law stays exact, and its greedy text the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from outrider import (
    SamplingParams,
    SpeculativeConfig,
    SpeculativeDecoder,
    TransformersModel,
    VocabularyDrafter,
)
from outrider.certify import exact_law
from outrider.certify.reference import distance, target_law
from outrider.drafters import vocabulary
from outrider.drafters.respelling import Respeller, Writer
from outrider.drafters.spelling import Spelling, counterparts
from outrider.errors import InvalidConfigError, VocabMismatchError
from outrider.models.tabular import TabularModel, mock_pair
from outrider.records import Prefix

from .families import greedy_reference

TOLERANCE = 1e-12
TEXT = '''def area(width, height):
    """The area of a rectangle: naïve, in m² — größer als 0 €."""
    if width < 0 or height < 0:
        raise ValueError("a side is negative")
    return width * height


def volume(width, height, depth):
    """The volume of a box; 体积 is width × height × depth."""
    return area(width, height) * depth


for number in range(10):
    print(number, area(number, 2 * number), volume(number, number, number))
'''


def fast(tokenizer: Tokenizer, **marks: str) -> Any:
    return tf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **marks)


def toy(words: list[str], merges: list[tuple[str, str]], end: str | None = None) -> Any:
    """A byte-level tokenizer of a few tokens, numbered as they are listed."""
    made = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, merges))
    made.decoder = decoders.ByteLevel()
    if end is None:
        return fast(made)
    made.add_special_tokens([end])
    return fast(made, eos_token=end)


def byte_level(size: int, text: str, end: str = "<|end|>") -> Any:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[end],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([text], trainer)
    return fast(made, eos_token=end)


def metaspace(size: int, text: str) -> Any:
    """As Llama's: a space before every text, and bytes for characters it does not have."""
    made = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    lone = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=["<unk>", "<s>", "</s>", *lone], show_progress=False
    )
    made.train_from_iterator([text.replace("体积", "")], trainer)
    state = made.to_str().replace('"special":true', '"special":false', 0)
    wrapped = fast(Tokenizer.from_str(state), bos_token="<s>", eos_token="</s>")
    return wrapped


TARGET = toy(["a", "b", "ab", "c"], [("a", "b")])
DRAFTS = {
    "smaller": toy(["b", "a"], []),
    "larger": toy(["c", "bb", "a", "b", "ab", "ca"], [("b", "b"), ("a", "b"), ("c", "a")]),
    "one_common": toy(["cc", "c"], [("c", "c")]),
}


def error(
    drafter: Any, params: SamplingParams, seed: int = 0, **config: Any
) -> float:
    target, _ = mock_pair(4, seed)
    settings = SpeculativeConfig(**{"num_speculative_tokens": 2, **config})
    decoder = SpeculativeDecoder(target, drafter, config=settings)
    found = exact_law(decoder, (0, 1, 2), params)
    return distance(found, target_law(target, (0, 1, 2), params))


def drafter(name: str, match: str = "tokens", seed: int = 0) -> VocabularyDrafter:
    tokenizer = DRAFTS[name]
    model = mock_pair(len(tokenizer), 40 + seed)[0]
    return VocabularyDrafter(model, tokenizer, TARGET, match=match)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", DRAFTS)
@pytest.mark.parametrize("match", ["tokens", "text"])
@pytest.mark.parametrize("verification", ["token", "block", "coupled"])
def test_the_law_is_the_targets(name: str, match: str, verification: str) -> None:
    for seed in range(2):
        params = SamplingParams(max_tokens=4, stop_token_ids=(3,))
        made = drafter(name, match, seed)
        assert error(made, params, seed, verification=verification) < TOLERANCE


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.0},
        {"temperature": 0.6, "top_k": 2},
        {"top_p": 0.7},
        {"repetition_penalty": 1.4, "presence_penalty": 0.3},
        {"logit_bias": {0: -100.0, 1: -100.0}},
        {"bad_words": [[0], [1]]},
        {"bad_words": [[0], [1], [3]]},
    ],
    ids=str,
)
@pytest.mark.parametrize("match", ["tokens", "text"])
def test_the_law_under_parameters(params: dict[str, Any], match: str) -> None:
    """Be it that they forbid every token that the draft has: "smaller" has 0 and 1 only."""
    asked = SamplingParams(max_tokens=3, **params)
    for name in ("smaller", "larger"):
        assert error(drafter(name, match), asked) < TOLERANCE


@pytest.mark.parametrize(
    "config",
    [
        {"verification": "traversal", "tree_shape": (2, 1)},
        {"verification": "traversal", "tree_shape": (2, 2), "tree_children": "with_replacement"},
        {"verification": "recursive", "tree_budget": 3},
    ],
    ids=str,
)
def test_the_law_of_trees(config: dict[str, Any]) -> None:
    for name in ("smaller", "larger"):
        assert error(drafter(name), SamplingParams(max_tokens=3), **config) < TOLERANCE
