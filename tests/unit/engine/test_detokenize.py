"""Text as it streams, and where stop strings end it: the text of the whole output, always.

The tokenizers are byte-level, with tokens of halves of characters, and of SentencePiece's kind,
with spaces as a mark and byte tokens that are read together.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import tokenizers
import transformers as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models

from outrider import SamplingParams
from outrider.engine import stopping
from outrider.engine.detokenize import SafeOffsets, StreamDecoder, held_back
from outrider.engine.stopping import find_stop, until_stop
from outrider.types.records import Prefix, SequenceState
from tests.support.tokenizers import HALF, SPECIAL, byte_level, metaspace, sentence_pieces, wrapped


def joined() -> Any:
    """Of neither kind that is known: all of the output is decoded."""
    vocab = {piece: i for i, piece in enumerate(["a", "b", "ab", "é", "€", "##a"])}
    return wrapped(models.WordLevel(vocab, unk_token="a"), decoders.WordPiece(cleanup=False))


MAKERS: list[Callable[[], Any]] = [byte_level, sentence_pieces, metaspace, joined]


@cache
def made(maker: Callable[[], Any]) -> Any:
    return maker()


BYTES = [0x0A, 0x41, 0x61, 0x82, 0xA9, 0xAC, 0xC3, 0xE2, 0xF0, 0x9F, 0x98, 0x80, 0xFF]
"""Enough for letters, for characters of two, three and four bytes, and for what is none."""


@st.composite
def outputs(draw: st.DrawFn) -> tuple[Any, list[int]]:
    """A tokenizer, and tokens that need not be the tokens of any text."""
    tokenizer = made(draw(st.sampled_from(MAKERS)))
    size = len(tokenizer)
    common = [*(byte for byte in BYTES if byte < size), *range(max(0, size - 12), size)]
    token = st.one_of(st.sampled_from(common), st.integers(0, size - 1))
    return tokenizer, draw(st.lists(token, max_size=30))


def text(tokenizer: Any, ids: list[int]) -> str:
    whole: str = tokenizer.decode(ids, skip_special_tokens=True)
    return whole


def streamed(tokenizer: Any, ids: list[int], stops: tuple[str, ...] = ()) -> list[str]:
    """What is shown with each token, and at the end."""
    stream = StreamDecoder(tokenizer, stops)
    return [*map(stream.push, ids), stream.finish(text(tokenizer, ids))]


@settings(max_examples=500, deadline=None, derandomize=True)
@given(outputs())
@pytest.mark.slow
def test_pieces_join_to_the_text_of_the_whole(output: tuple[Any, list[int]]) -> None:
    """So that no half of a character is ever shown that is not one in the end."""
    assert "".join(streamed(*output)) == text(*output)


@pytest.mark.slow
@settings(max_examples=200, deadline=None, derandomize=True)
@given(outputs(), st.lists(st.text("ab é€", min_size=1, max_size=4), max_size=3))
def test_stop_strings_are_held_back_and_nothing_lost(
    output: tuple[Any, list[int]], stops: list[str]
) -> None:
    pieces = streamed(*output, tuple(stops))
    assert "".join(pieces) == text(*output)
    shown, hidden = "".join(pieces[:-1]), pieces[-1]
    if any(stop in text(*output) for stop in stops):
        return
    for stop in stops:
        for n in range(1, len(stop) - len(hidden)):
            begun = stop[:n] + hidden
            assert not (shown.endswith(stop[:n]) and stop.startswith(begun))


@pytest.mark.slow
@settings(max_examples=200, deadline=None, derandomize=True)
@given(outputs())
def test_nothing_is_held_back_longer_than_it_may_change(output: tuple[Any, list[int]]) -> None:
    """After a token that ends a character, and is no byte of a run, all text is shown."""
    tokenizer, ids = output
    offsets = SafeOffsets.of(tokenizer)
    pieces = streamed(tokenizer, ids)
    for end in range(1, len(ids) + 1):
        so_far = text(tokenizer, ids[:end])
        grown = len(so_far) > len(text(tokenizer, ids[: end - 1]))
        if grown and not so_far.endswith(HALF) and not (offsets and offsets.open(ids[end - 1])):
            assert "".join(pieces[:end]) == so_far


def test_a_run_of_bytes_that_turns_unreadable_was_not_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A newline is a byte token in many models; the byte after it may take it along."""
    tokenizer = made(sentence_pieces)
    a = tokenizer.convert_tokens_to_ids("a")
    ids = [a, 0x0A, 0xC3, a]
    assert text(tokenizer, ids) == f"a{HALF}{HALF}a"
    assert "".join(streamed(tokenizer, ids)) == text(tokenizer, ids)
    # Planted fault: bytes that are shown as soon as they are a text.
    monkeypatch.setattr(SafeOffsets, "open", lambda *_: False)
    assert "".join(streamed(tokenizer, ids)) == f"a\n{HALF}a"


def state(ids: list[int], params: SamplingParams) -> SequenceState:
    return SequenceState(Prefix(0, [1, *ids]), 1, params, frozenset(), 0)


def reference(
    tokenizer: Any, emitted: list[int], tokens: list[int], params: SamplingParams
) -> list[int]:
    """The tokens up to the one that completes a stop string, from whole texts alone."""
    for index in range(max(0, params.min_tokens - len(emitted) - 1), len(tokens)):
        before = text(tokenizer, [*emitted, *tokens[:index]])
        whole = text(tokenizer, [*emitted, *tokens[: index + 1]])
        if stopping.find_stop(before, whole, params.stop) is not None:
            return tokens[: index + 1]
    return tokens


@st.composite
def rounds(draw: st.DrawFn) -> tuple[Any, list[int], list[int], SamplingParams]:
    tokenizer, ids = draw(outputs())
    seeded = random.Random(draw(st.integers(0, 10**6)))
    size = len(tokenizer)
    common = [*(byte for byte in BYTES if byte < size), *range(max(0, size - 12), size)]
    before = [seeded.choice(common) for _ in range(draw(st.integers(0, 80)))]
    stops = st.text(f"ab é€\n{HALF}", min_size=1, max_size=5)
    params = SamplingParams(
        max_tokens=1000,
        min_tokens=draw(st.sampled_from([0, 0, 5, 85])),
        stop=tuple(draw(st.lists(stops, min_size=1, max_size=3))),
    )
    return tokenizer, before, ids[:9], params


@settings(max_examples=600, deadline=None, derandomize=True)
@given(rounds())
@pytest.mark.slow
def test_stop_strings_end_a_round_where_they_do_in_the_whole_text(
    asked: tuple[Any, list[int], list[int], SamplingParams],
) -> None:
    tokenizer, before, tokens, params = asked
    found, _ = until_stop(state(before, params), tokens, tokenizer)
    assert found == reference(*asked)


def test_a_window_that_begins_in_a_run_of_bytes_would_show(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Planted fault: the window's bytes are a text, those of the whole run are not."""
    tokenizer = made(sentence_pieces)
    params = SamplingParams(max_tokens=1000, stop=("é",))
    before, tokens = [0xC3] + [0x61] * 20, [0xC3, 0xA9]
    assert reference(tokenizer, before, tokens, params) == tokens
    assert until_stop(state(before, params), tokens, tokenizer) == (tokens, None)
    monkeypatch.setattr(SafeOffsets, "before", lambda _, ids, place: place)
    assert until_stop(state(before, params), tokens, tokenizer) == (tokens, "stop")


@pytest.mark.parametrize("maker", MAKERS)
def test_what_is_decoded_each_round_does_not_grow(
    maker: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a decoder that is known; another is given all of the output."""
    tokenizer = made(maker)
    longest = 0
    decode = stopping._text

    def counted(tokenizer: Any, ids: list[int]) -> str:
        nonlocal longest
        longest = max(longest, len(ids))
        return decode(tokenizer, ids)

    monkeypatch.setattr(stopping, "_text", counted)
    letter = tokenizer.convert_tokens_to_ids("a")
    params = SamplingParams(max_tokens=5000, stop=("no such text",))
    until_stop(state([letter] * 3000, params), [letter] * 5, tokenizer)
    assert longest == (3005 if maker is joined else 11 + 8 + 5)


ENDLESS: list[tuple[Callable[[], Any], list[str]]] = [
    (byte_level, ["ÿ"]),
    (byte_level, ["â", "Ĥ"]),
    (byte_level, ["Ã", SPECIAL]),
    (byte_level, ["Ã", *[SPECIAL] * 9]),
    (sentence_pieces, [HALF]),
    (sentence_pieces, ["<0xFF>", HALF]),
    (metaspace, [SPECIAL]),
    (joined, [SPECIAL]),
]
"""Tokenizers, and pieces that follow each other, with which no text is ever complete."""


def decoded(maker: Callable[[], Any], pieces: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """How many tokens are decoded to stream 400 of them."""
    tokenizer = made(maker)
    ids = (tokenizer.convert_tokens_to_ids(pieces) * 400)[:400]
    whole, looked_at = text(tokenizer, ids), 0
    stream = StreamDecoder(tokenizer)
    decode = type(tokenizer).decode

    def counted(self: Any, ids: Any, **options: Any) -> Any:
        nonlocal looked_at
        looked_at += len(ids)
        return decode(self, ids, **options)

    with monkeypatch.context() as patched:
        patched.setattr(type(tokenizer), "decode", counted)
        shown = [*map(stream.push, ids)]
    assert "".join([*shown, stream.finish(whole)]) == whole
    return looked_at


@pytest.mark.parametrize(("maker", "pieces"), ENDLESS)
def test_what_is_decoded_for_a_token_does_not_grow(
    maker: Callable[[], Any], pieces: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of bytes that are no text, and of tokens that have none, there may be thousands."""
    assert decoded(maker, pieces, monkeypatch) <= 8 * 400
    # Planted fault: the window is decoded each time.
    monkeypatch.setattr("outrider.engine.detokenize._CHARACTER", 1000)
    monkeypatch.setattr("outrider.engine.detokenize.special_tokens", lambda _: {})
    assert decoded(maker, pieces, monkeypatch) > 20 * 400


def test_what_is_not_known_is_not_assumed() -> None:
    class Own(tf.PreTrainedTokenizerFast):
        def decode(self, *args: Any, **kwargs: Any) -> Any:
            return super().decode(*args, **kwargs).upper()

    backend = byte_level().backend_tokenizer
    cleaning = tf.PreTrainedTokenizerFast(
        tokenizer_object=backend, clean_up_tokenization_spaces=True
    )
    undecoded = tokenizers.Tokenizer(models.BPE({"a": 0}, []))
    trailing = tokenizers.Tokenizer(models.BPE({"a": 0}, []))
    trailing.decoder = decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 0, 1)])
    for tokenizer in (
        Own(tokenizer_object=backend),
        cleaning,
        tf.PreTrainedTokenizerFast(tokenizer_object=undecoded),
        tf.PreTrainedTokenizerFast(tokenizer_object=trailing),
        made(joined),
        None,
    ):
        assert SafeOffsets.of(tokenizer) is None
    assert SafeOffsets.of(made(byte_level)) == replace(
        SafeOffsets(made(byte_level), runs=True), runs=False
    )


def test_finding_and_holding_back() -> None:
    assert find_stop("xa", "xab", ["ab"]) == (1, 3)
    assert find_stop("ab", "abc", ["ab"]) is None
    assert find_stop("ab", "abab", ["ab", "ba"]) == (1, 3)
    assert find_stop("x", "xab", ["abc", "ab", "a"]) == (1, 2)
    assert find_stop(HALF, "é", ["é"]) == (0, 1)
    assert held_back("xxab", ["abc", "bd"]) == 2
    assert held_back("xxb", ["abc", "bd"]) == 1
    assert held_back("xx", ["abc"]) == 0
    assert held_back("", []) == 0


@pytest.mark.parametrize(
    ("fields", "reachable"),
    [
        ({}, 5),
        ({"stop_token_ids": (98,)}, 2),
        ({"stop_token_ids": (99,)}, 3),
        ({"stop": "bc"}, 3),
        ({"stop": "bc", "min_tokens": 5}, 5),
        ({"stop": "xa"}, 1),
        ({"max_tokens": 3}, 2),
    ],
    ids=str,
)
def test_nodes_of_a_draft_are_reached_up_to_the_first_stop(
    fields: dict[str, Any], reachable: int
) -> None:
    """After "x" the draft is "abcd"; the prefix is the first node, and the end the last."""
    tokenizer = made(byte_level)
    params = SamplingParams(**({"max_tokens": 9} | fields))
    ends = frozenset(params.stop_token_ids)
    one = replace(state([ord("x")], params), stop_ids=ends)
    kept, reason = until_stop(one, [97, 98, 99, 100], tokenizer)
    assert len(kept) + (reason is None) == reachable
