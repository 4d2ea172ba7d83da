"""What an answer says of tokens: their own bytes, which join to the text, and names apart."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the server extra is not installed")

from fastapi.testclient import TestClient

from outrider import SpeculativeDecoder
from outrider.server.tokens import TokenTexts
from tests.support.scripted import scripted
from tests.support.server import TEMPLATE, toy_server
from tests.support.tokenizers import SPECIAL, byte_level, metaspace, sentence_pieces, toy_tokenizer

TEXT = "na\u00efve \U0001f600\u6f22\u5b57"


def spelled(tokenizer: Any, pieces: Sequence[Any]) -> list[int]:
    """Token ids: of pieces as they are written, or the ids themselves."""
    found = (tokenizer.convert_tokens_to_ids(p) if isinstance(p, str) else p for p in pieces)
    return list(found)


CASES: dict[str, tuple[Callable[[], Any], list[Any], str]] = {
    "bytes": (byte_level, [*TEXT.encode()], TEXT),
    "bytes and an end": (byte_level, [*TEXT.encode(), SPECIAL], TEXT),
    "parts of characters": (byte_level, [97, 256 + 3, 0xA9, 256 + 1], "a" + "a\u00e9" + " a"),
    "half a character": (byte_level, [97, 0xF0, 0x9F], "a\ufffd"),
    "byte tokens": (sentence_pieces, [*TEXT.encode()], TEXT),
    "pieces": (
        sentence_pieces,
        ["\u2581a", "\u2581a", 0xC3, 0xA9, "\u20ac", "\u2581"],
        "a a\u00e9\u20ac ",
    ),
    "metaspace": (metaspace, ["\u2581a", "\u2581a", "ab", "\u2581\u2581"], "a aab  "),
    "joined texts": (toy_tokenizer, ["abc", "xy", "x"], "abcxyx"),
}


def answered(name: str, **body: Any) -> Any:
    """The choice of a model that writes a case's tokens."""
    make, pieces, _ = CASES[name]
    tokenizer = make()
    tokenizer.chat_template = TEMPLATE
    script, length = spelled(tokenizer, pieces), len(tokenizer.encode("aba"))
    decoder = SpeculativeDecoder(scripted(script, len(tokenizer), length), tokenizer=tokenizer)
    asked: dict[str, Any] = {"messages": [{"role": "assistant", "content": "b"}]}
    more = {"max_tokens": len(script), "temperature": 0, "logprobs": True, "top_logprobs": 2}
    with toy_server(decoder) as server:
        response = TestClient(server.app).post("/v1/chat/completions", json=asked | more | body)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]


@pytest.mark.parametrize("name", CASES)
def test_the_bytes_of_tokens_join_to_the_text(name: str) -> None:
    found = answered(name)
    content = found["logprobs"]["content"]
    data = b"".join(bytes(each["bytes"]) for each in content)
    expected = CASES[name][2]
    assert found["message"]["content"] == expected
    assert data.decode(errors="replace") == expected
    if "half" not in name:
        assert data == expected.encode()
    for each in content:
        read = bytes(each["bytes"]).decode(errors="replace")
        assert each["token"] == (read or SPECIAL)
        assert each["top_logprobs"][0] == {k: each[k] for k in ("token", "logprob", "bytes")}


def test_a_token_that_ends_the_text_brings_no_bytes() -> None:
    ended = answered("bytes", stop_token_ids=[ord("v")])["logprobs"]["content"]
    assert (ended[-1]["token"], ended[-1]["bytes"]) == ("v", [])


def test_tokens_of_the_same_text_have_names_of_their_own() -> None:
    """In completions they are keys: parts of characters, and a byte that a piece spells, too."""
    texts = TokenTexts(byte_level())
    assert texts.keys([0xF0, 0x9F, 97, 0xC3], first=False) == {
        0xF0: "bytes:\\xf0", 0x9F: "bytes:\\x9f", 97: "a", 0xC3: "bytes:\\xc3"
    }  # fmt: skip
    tokenizer = sentence_pieces()
    texts = TokenTexts(tokenizer)
    piece = tokenizer.convert_tokens_to_ids("a")
    assert texts.keys([piece, 97, 0xE2], first=False) == {
        piece: "a", 97: "token_id:97", 0xE2: "bytes:\\xe2"
    }  # fmt: skip


@pytest.mark.parametrize("seed", range(5))
def test_the_token_is_among_the_likeliest(seed: int) -> None:
    with toy_server() as server:
        body = {"prompt": "abc", "logprobs": 5, "max_tokens": 30, "temperature": 9.0, "seed": seed}
        found = TestClient(server.app).post("/v1/completions", json=body).json()["choices"][0]
    own = found["logprobs"]
    rows = zip(own["tokens"], own["token_logprobs"], own["top_logprobs"], strict=True)
    sizes = []
    for token, value, top in rows:
        assert top[token] == value
        sizes.append(len(top))
    assert set(sizes) <= {5, 6}
    assert 6 in sizes


def test_any_tokens_join_to_their_text() -> None:
    """But for bytes that are no text, of which each decoder makes characters of its own."""
    rng = random.Random(0)
    for make in (byte_level, sentence_pieces, metaspace):
        tokenizer = make()
        texts = TokenTexts(tokenizer)
        for _ in range(300):
            ids = [rng.randrange(len(tokenizer)) for _ in range(rng.randint(1, 6))]
            parts = [texts.data(token, first=place == 0) for place, token in enumerate(ids)]
            data = b"".join(part or b"" for part in parts)
            text = tokenizer.decode(ids, skip_special_tokens=True)
            if "\ufffd" not in text and ids[0] != len(tokenizer) - 1:
                assert data == text.encode()
