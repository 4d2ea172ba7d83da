"""A text in one tokenizer's tokens, written in another's, as it grows.

Drafts may be drawn after any prefix, so that how it is written costs acceptance at most. It is
written as the draft would write the text itself, but for three things: a character that is not
complete yet is spelled byte by byte, special tokens without a counterpart are left out, and what
lies some way back stays as it was written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

from tokenizers import Tokenizer

from ...types.protocols import SpellingTokenizer
from ...types.records import Prefix
from .spelling import Spelling

_TAIL = 16
"""At least this many of the last tokens are written anew each time, at most three times as many."""

_PIECES = 2**14
"""How many pieces of texts are remembered, of up to 32 tokens each."""


class Writer:
    """Bytes as the tokens of a tokenizer.

    Args:
        tokenizer: a fast tokenizer of transformers, or one that says what its tokens spell.
        spelling: what its tokens spell.

    Attributes:
        opening: the tokens that stand before every text: one that says that it starts, or none.
    """

    def __init__(self, tokenizer: Any, spelling: Spelling) -> None:
        self._encode = _encoder(tokenizer, special=False)
        before = _encoder(tokenizer, special=True)("")[:1]
        self.opening = [token for token in before if token == spelling.bos]
        self.spelling = spelling
        # Some put a space before every text, which a text that goes on must not get.
        spelled = [spelling.words.get(index, b"") for index in self._encode("a")]
        self._leading_space = b"".join(spelled).startswith(b" ")

    def written(self, data: bytes, *, opens: bool) -> list[int]:
        """Write a part of a text, be it cut within a character; `opens` if it is the first.

        Bytes that make no character are spelled one by one, or left out where the vocabulary has
        none.
        """
        ids: list[int] = []
        while data:
            text, broken, after = _split(data)
            if text:
                ids += self._text(text, opens=opens)
            lone = [data[i : i + 1] for i in range(*broken)]
            ids += [self.spelling.ids[byte] for byte in lone if byte in self.spelling.ids]
            data, opens = after, False
        return ids

    def _text(self, text: str, *, opens: bool) -> list[int]:
        if opens or not self._leading_space:
            return self._encode(text)
        lead_in = "a" if text[0].isspace() else "\n"
        lead, whole = self._encode(lead_in), self._encode(lead_in + text)
        return whole[len(lead) :] if whole[: len(lead)] == lead else self._encode(text)


class Respeller:
    """Prefixes of the target, written in the draft's tokens: the same prefix always alike.

    A text is cut into pieces from its beginning on, and what they are written as is remembered. So
    a round writes the last few tokens anew, and looks the rest up.

    Args:
        target: what the target's tokens spell.
        writer: writes the draft's tokens.
        counterparts: the draft's token for target tokens that both have.
    """

    def __init__(self, target: Spelling, writer: Writer, counterparts: dict[int, int]) -> None:
        self._target = target
        self._writer = writer
        draft = writer.spelling
        self._specials: dict[int, list[int]] = {
            index: [counterparts[index]] if index in counterparts else []
            for index in target.specials
        }
        if target.bos is not None and target.bos != target.eos and draft.bos is not None:
            self._specials[target.bos] = [draft.bos]
        self._piece = lru_cache(_PIECES)(self._written_piece)

    def written(self, prefix: Prefix) -> Prefix:
        """Return the prefix in the draft's tokens, at least one, under the same sequence id."""
        start, ids = 0, list[int]()
        while len(prefix) > start + 3 * _TAIL:
            window = tuple(prefix.tokens[start : start + 2 * _TAIL].tolist())
            count, piece = self._piece(window, opens=start == 0)
            ids += piece
            start += count
        ids += self._tokens(prefix.tokens[start:].tolist(), opens=start == 0)
        draft = self._writer.spelling
        marks = [mark for mark in (draft.bos, draft.eos, 0) if mark is not None]
        return Prefix(prefix.sequence_id, ids or marks[:1])

    def _written_piece(self, window: tuple[int, ...], *, opens: bool) -> tuple[int, list[int]]:
        """Return how many of some tokens are a piece, and the draft's tokens for them."""
        count = self._cut(window)
        return count, self._tokens(window[:count], opens=opens)

    def _tokens(self, tokens: Sequence[int], *, opens: bool) -> list[int]:
        """Return the draft's tokens for the target's; `opens` if a text starts with them."""
        ids: list[int] = []
        data = b""
        first = opens
        for token in tokens:
            if token not in self._specials:
                data += self._target.words.get(token, b"")
                continue
            ids += self._writer.written(data, opens=first) + self._specials[token]
            data, first = b"", first and not data
        ids += self._writer.written(data, opens=first)
        lead = self._writer.opening if opens else []
        return ids if ids[: len(lead)] == lead else lead + ids

    def _cut(self, tokens: Sequence[int]) -> int:
        """Return how many of these tokens make a piece: up to where any tokenizer cuts.

        That is before a space that ends a word, or else before a character; at least one.
        """
        words = [self._target.words.get(token, b"") for token in tokens]
        for place in range(len(tokens) - 1, 0, -1):
            before, word = words[place - 1], words[place]
            if not word or (word[:1] == b" " and word[1:2].strip() and before[-1:].strip()):
                return place
        for place in range(len(tokens) - 1, 0, -1):
            if words[place][0] & 0xC0 != 0x80:
                return place
        return max(1, len(tokens))


def _encoder(tokenizer: Any, *, special: bool) -> Callable[[str], list[int]]:
    """Return what encodes a text, with the tokens that belong around one if `special`."""
    if isinstance(tokenizer, SpellingTokenizer):
        return partial(tokenizer.encode, add_special_tokens=special)
    # As texts are written, whatever batches it was last used for.
    given = tokenizer.backend_tokenizer
    backend = Tokenizer.from_str(given.to_str())
    backend.encode_special_tokens = given.encode_special_tokens
    backend.no_padding()
    backend.no_truncation()
    return lambda text: backend.encode(text, add_special_tokens=special).ids


def _split(data: bytes) -> tuple[str, tuple[int, int], bytes]:
    """Split bytes: the text they begin with, where some make no character, and what follows."""
    try:
        return data.decode(), (0, 0), b""
    except UnicodeDecodeError as error:
        broken = error.start, error.end
        return data[: error.start].decode(), broken, data[error.end :]
