"""Tokenizers made for tests."""

from __future__ import annotations

import string
from itertools import product
from typing import Any

import tokenizers
import transformers as tf

from .families import VOCAB


def toy_tokenizer() -> Any:
    """A tokenizer of one, two and three letters a token, whose text is its tokens joined."""
    letters = string.ascii_lowercase
    pieces = [*letters, *map("".join, product("abcde", "fghij")), *map("".join, product("x", "yz"))]
    pieces += ["cde", "hij", "ijk", "klm", "xyz", "abc", "fgh"]
    vocab = {piece: index for index, piece in enumerate([*pieces, "#"])}
    assert len(vocab) == VOCAB
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="#"))
    model.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    model.decoder = tokenizers.decoders.Fuse()
    return tf.PreTrainedTokenizerFast(tokenizer_object=model)
