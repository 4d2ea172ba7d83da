"""Prompts in every form that tokenizers return them, and requests that do not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers.processors import TemplateProcessing
from transformers import BatchEncoding, PreTrainedTokenizerFast

from outrider import SamplingParams
from outrider.engine.requests import parse_request, split_prompts, token_ids
from outrider.errors import (
    ContextLengthError,
    EmptyPrefixError,
    InvalidConfigError,
    TokenOutOfRangeError,
)
from outrider.runtimes.base import Capabilities
from outrider.sampling.grammar import Grammars
from tests.support.alphabet import alphabet

PAD, BOS = 9, 10


def tokenizer() -> PreTrainedTokenizerFast:
    """One token a letter, with a beginning of text that it puts before every text."""
    made = alphabet(tuple("abcdefgh"))
    made.add_special_tokens({"pad_token": "<pad>", "bos_token": "<s>"})
    made.chat_template = (
        "{{ bos_token }}{% for message in messages %}{{ message['content'] }}{% endfor %}"
    )
    assert (made.pad_token_id, made.bos_token_id) == (PAD, BOS)
    made.backend_tokenizer.post_processor = TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", BOS)]
    )
    return made


TOKENIZER = tokenizer()
MESSAGES = [{"role": "user", "content": "abc"}]


GRAMMARS = Grammars(TOKENIZER, 11, frozenset())


def target(max_length: int = 32) -> Capabilities:
    return Capabilities(11, torch.device("cpu"), max_length=max_length)


def parsed(
    prompt: Any, max_length: int = 32, drafts: bool = True, **fields: Any
) -> tuple[int, ...]:
    params = SamplingParams(**({"max_tokens": 2} | fields))
    return parse_request(
        prompt, params, TOKENIZER, target(max_length), GRAMMARS, drafts=drafts
    ).token_ids


def all_of(prompts: Any) -> list[tuple[int, ...]]:
    return [parsed(prompt) for prompt in split_prompts(prompts)[0]]


@pytest.mark.parametrize("of", [list, tuple, np.array, torch.tensor], ids=lambda of: of.__name__)
def test_one_prompt_and_several_in_every_container(of: Callable[..., Any]) -> None:
    assert split_prompts(of([1, 2]))[1]
    assert all_of(of([1, 2])) == [(1, 2)]
    assert not split_prompts([of([1, 2]), of([3])])[1]
    assert all_of([of([1, 2]), of([3]), "ab"]) == [(1, 2), (3,), (BOS, 0, 1)]
    assert all_of(of([[1, 2]])) == [(1, 2)]
    assert token_ids(of([1, 2]), None) == (1, 2)
    assert split_prompts([]) == ([], False)


def test_what_a_tokenizer_returns_is_taken_without_its_padding() -> None:
    both = ["ab", "abcde"]
    expected = [(BOS, 0, 1), (BOS, 0, 1, 2, 3, 4)]
    assert all_of(TOKENIZER("ab")) == expected[:1]
    assert split_prompts(TOKENIZER("ab"))[1]
    for side in ("left", "right"):
        TOKENIZER.padding_side = side
        for kind in (None, "np", "pt"):
            padded = TOKENIZER(both, padding=True, return_tensors=kind)
            assert isinstance(padded, BatchEncoding)
            assert all_of(padded) == expected
    assert all_of(TOKENIZER(both)) == expected
    assert all_of([TOKENIZER("ab"), TOKENIZER("abcde", return_tensors="pt")]) == expected
    assert all_of(TOKENIZER("ab", return_attention_mask=False)) == expected[:1]


def test_a_bare_array_of_several_prompts_is_refused_with_a_hint() -> None:
    padded = TOKENIZER(["ab", "abcde"], padding=True, return_tensors="pt")
    for bare in (
        padded["input_ids"],
        padded["input_ids"].numpy(),
        {"input_ids": padded["input_ids"]},
    ):
        with pytest.raises(InvalidConfigError, match=r"an array of 2 rows.*attention_mask"):
            split_prompts(bare)


def test_a_chat_begins_once_be_it_ids_or_rendered_text() -> None:
    expected = [(BOS, 0, 1, 2)]
    assert all_of(TOKENIZER.apply_chat_template(MESSAGES)) == expected
    assert all_of(TOKENIZER.apply_chat_template(MESSAGES, return_tensors="pt")) == expected
    assert all_of(TOKENIZER.apply_chat_template([MESSAGES, MESSAGES])) == expected * 2
    text = TOKENIZER.apply_chat_template(MESSAGES, tokenize=False)
    assert tuple(TOKENIZER.encode(text)) == (BOS, BOS, 0, 1, 2)
    assert all_of(text) == all_of("abc") == expected


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        (5, "a text, a sequence of token ids, or a list"),
        (None, "a text, a sequence of token ids, or a list"),
        ({"ids": [1]}, "input_ids and an attention_mask"),
        ({"input_ids": [1, 2], "attention_mask": [1]}, "input_ids and an attention_mask"),
        ({"input_ids": [1, 2], "attention_mask": 1}, "input_ids and an attention_mask"),
        ([[1, 2], 3], "a flat sequence of integer token ids"),
        ([[0.5]], "a flat sequence of integer token ids"),
        ("a\ud800", "text that UTF-8 can write; character 1"),
        (["a", "\udfff"], "text that UTF-8 can write"),
    ],
    ids=str,
)
def test_what_is_no_prompt_is_refused(prompts: Any, message: str) -> None:
    with pytest.raises(InvalidConfigError, match=message):
        all_of(prompts)


def test_a_text_needs_a_tokenizer() -> None:
    with pytest.raises(InvalidConfigError, match="made without a tokenizer"):
        token_ids("ab", None)


def test_the_targets_context_alone_limits_a_request() -> None:
    assert parsed([1] * 5, 8, drafts=False, max_tokens=3) == (1,) * 5
    with pytest.raises(ContextLengthError, match=r"target's context of 8 tokens; use max_tokens <"):
        parsed([1] * 6, 8, max_tokens=3)
    with pytest.raises(ContextLengthError, match="shorten the prompt"):
        parsed([1] * 9, 8, max_tokens=3)
    with pytest.raises(EmptyPrefixError):
        parsed([], 8)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"logit_bias": {11: 1.0}}, "logit_bias has token id 11"),
        ({"bad_words": [[1, 12]]}, "bad_words has token id 12"),
        ({"stop_token_ids": [11]}, "stop_token_ids has token id 11"),
        ({"allowed_token_ids": [1, 11]}, "allowed_token_ids has token id 11"),
        ({"prediction": [11]}, "prediction has token id 11"),
    ],
    ids=str,
)
def test_tokens_of_another_vocabulary_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(TokenOutOfRangeError, match=message):
        parsed([1], **fields)
    with pytest.raises(TokenOutOfRangeError, match="prompt has token id -1"):
        parsed([1, -1])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"bad_words": [[token] for token in range(11)]}, "none that forbid every token"),
        (
            {
                "bad_words": [[t] for t in range(10)],
                "min_tokens": 1,
                "stop_token_ids": (10,),
            },
            "every token ends the request",
        ),
        ({"bad_words": [[1], [2]], "allowed_token_ids": [2, 1]}, "every token of allowed"),
        (
            {"allowed_token_ids": [2, 1], "min_tokens": 1, "stop_token_ids": (1, 2)},
            "is forbidden by bad_words or allowed_token_ids",
        ),
    ],
    ids=["bad words", "min_tokens", "bad words of those allowed", "min_tokens of those allowed"],
)
def test_parameters_that_leave_nothing_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfigError, match=message):
        parsed([1], **fields)


def test_depths_need_a_drafter_and_stop_strings_a_tokenizer() -> None:
    with pytest.raises(InvalidConfigError, match=r"depths=.*has no drafter"):
        parsed([1], drafts=False, depths=(0, -2))
    params = SamplingParams(stop="a", max_tokens=2)
    with pytest.raises(InvalidConfigError, match=r"stop=.*without a tokenizer"):
        parse_request([1], params, None, target(), GRAMMARS, drafts=False)
    with pytest.raises(InvalidConfigError, match="params="):
        parse_request([1], {"n": 1}, None, target(), GRAMMARS, drafts=False)


def test_a_predicted_text_has_no_special_tokens_around_it() -> None:
    for given in ("abc", [0, 1, 2], torch.tensor([0, 1, 2])):
        params = SamplingParams(max_tokens=2, prediction=given)
        request = parse_request([1], params, TOKENIZER, target(), GRAMMARS, drafts=True)
        assert request.prediction is not None
        assert request.prediction.tolist() == [0, 1, 2]
