"""Toy tokenizers: a vocabulary written out, so that every mask can be found by hand."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

END = "<end>"
PRINTED = [*range(33, 127), *range(161, 173), *range(174, 256)]
"""The bytes that byte-level vocabularies write as themselves (GPT-2's convention)."""


def alphabet(
    texts: Sequence[str], *, ids: Sequence[int] | None = None, end: bool = True
) -> PreTrainedTokenizerFast:
    """A tokenizer of these tokens, numbered as they come; one after them ends the text."""
    numbers = range(len(texts)) if ids is None else ids
    spelled = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    vocabulary = {
        spelled.pre_tokenize_str(text)[0][0]: i for i, text in zip(numbers, texts, strict=True)
    }
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = spelled
    tokenizer.decoder = decoders.ByteLevel()
    if end:
        tokenizer.add_special_tokens([END])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def every_byte() -> PreTrainedTokenizerFast:
    """A tokenizer whose token i is the byte i."""
    letters = sorted(set(range(256)) - set(PRINTED))
    vocabulary = {chr(i): i for i in PRINTED} | {chr(256 + n): i for n, i in enumerate(letters)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)
