"""Tokenizers made for tests."""

from __future__ import annotations

import string
from itertools import count, product
from typing import Any

import tokenizers
import transformers as tf
from tokenizers import decoders, models

from .families import VOCAB

HALF = "\N{REPLACEMENT CHARACTER}"
SPECIAL = "<end>"


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


def wrapped(model: Any, decoder: Any) -> Any:
    """A tokenizer of transformers with one special token, `SPECIAL`."""
    backend = tokenizers.Tokenizer(model)
    backend.decoder = decoder
    return tf.PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=SPECIAL)


def byte_level() -> Any:
    """Bytes, and merges of them that begin and end in the middle of characters."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = zip((byte for byte in range(256) if byte not in shown), count(256), strict=False)
    character = {byte: chr(byte) for byte in shown} | {byte: chr(at) for byte, at in others}
    pieces = [bytes([byte]) for byte in range(256)]
    pieces += [
        b"ab",
        b" a",
        "é".encode(),
        b"a\xc3",
        b"\xa9b",
        b"\x82\xac",
        b"\xac\xe2",
        b"\xff\xff",
    ]
    vocab = {"".join(character[byte] for byte in piece): i for i, piece in enumerate(pieces)}
    return wrapped(models.BPE(vocab, []), decoders.ByteLevel())


def sentence_pieces() -> Any:
    """Pieces with spaces as marks, and byte tokens that are read together."""
    pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    pieces += ["▁", "a", "b", "▁a", "ab", "é", "€", "▁▁", "ba▁", HALF]
    decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    vocab = {piece: i for i, piece in enumerate(pieces)}
    return wrapped(models.BPE(vocab, [], byte_fallback=True), decoder)


def metaspace() -> Any:
    """Pieces with spaces as marks, and no byte tokens."""
    vocab = {piece: i for i, piece in enumerate(["▁", "a", "b", "▁a", "ab", "é", "€", "▁▁"])}
    return wrapped(models.WordLevel(vocab, unk_token="a"), decoders.Metaspace())
