"""Make text of token ids as they come, without decoding a text's beginning again and again.

A window of tokens decodes to the end of the whole text if its first token's text does not depend on
the tokens before it. That is known of two kinds of decoders, and assumed of no other:

- Byte-level ones join the tokens' bytes. UTF-8 is self-synchronising: past the replacement
  characters that a window may begin with, its text is that of the whole.
- Those that join the tokens' texts, with a space stripped at the beginning, and with runs of byte
  tokens (`<0xC3>`) that are read together: a run that is no UTF-8 as a whole becomes replacement
  characters as a whole. A window begins at a token that is no byte, and a run's text is not known
  before it has ended.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..types.protocols import SpellingTokenizer, Tokenizer, special_tokens

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
"""What bytes that are no text, such as half a character, decode to."""

_CHARACTER = 4
"""Bytes that a character of UTF-8 has at most, and so tokens that it may be spread over."""

_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")


@dataclass(frozen=True, slots=True)
class SafeOffsets:
    """Knows the tokens of a tokenizer at which a window may begin.

    Attributes:
        tokenizer: of one of the kinds above: of transformers, or one that joins bytes.
        runs: whether it has byte tokens that are read together.
    """

    tokenizer: Any
    runs: bool

    @staticmethod
    def of(tokenizer: Tokenizer) -> SafeOffsets | None:
        """Return those of a tokenizer; None if it is of neither kind."""
        if isinstance(tokenizer, SpellingTokenizer):
            return SafeOffsets(tokenizer, runs=False)
        if "transformers" not in sys.modules:
            return None
        known: Any = sys.modules["transformers"].PreTrainedTokenizerFast
        own: Any = type(tokenizer)
        if not isinstance(tokenizer, known) or own.decode is not known.decode:
            return None
        if own._decode is not known._decode or tokenizer.clean_up_tokenization_spaces:
            return None
        decoder = tokenizer.backend_tokenizer.decoder
        if decoder is None:
            return None
        settings = json.loads(decoder.__getstate__())
        if settings["type"] in ("ByteLevel", "Metaspace"):
            return SafeOffsets(tokenizer, runs=False)
        parts = settings.get("decoders", [])
        kinds = [part["type"] for part in parts]
        joined = kinds.index("Fuse") if "Fuse" in kinds else len(kinds)
        apart = all(kind in ("Replace", "ByteFallback", "Strip") for kind in kinds[:joined])
        whole = all(part["type"] == "Strip" and not part["stop"] for part in parts[joined + 1 :])
        if settings["type"] != "Sequence" or not apart or not whole:
            return None
        return SafeOffsets(tokenizer, "ByteFallback" in kinds)

    def open(self, token: int) -> bool:
        """Return whether tokens after this one may change its text, or that of a run that it is in.

        Tokens without a text, such as special ones, do not end a run.
        """
        if not self.runs:
            return False
        piece = self.tokenizer.convert_ids_to_tokens(token) or ""
        return bool(_BYTE.fullmatch(piece)) or not self.tokenizer.decode(
            [token], skip_special_tokens=True
        )

    def before(self, ids: NDArray[np.int64], place: int) -> int:
        """Return the last place in `ids`, at or before `place`, that a window may begin at."""
        while place > 0 and self.open(int(ids[place])):
            place -= 1
        return place


class StreamDecoder:
    """Decodes a growing sequence, never emitting half a character, nor the start of a stop string.

    A token may hold part of a character, and the text of a token can depend on the one before it.
    So a window is decoded, from the last token known to end a character on: its text is emitted
    once it is longer than before, does not end in the middle of a character, and is not that of a
    run of bytes which the next token may make unreadable (see `SafeOffsets`).

    The window grows while nothing is emitted. So its last four tokens are decoded first, and all of
    it only where they end with a whole character; special tokens do not enter it. What is decoded
    for a token does then not grow, be there thousands of bytes that are no text.

    Args:
        tokenizer: decodes the tokens. Its text of a sequence must begin with that of the sequence's
            beginning, halves of characters and runs of bytes aside; one that removes spaces before
            punctuation (`clean_up_tokenization_spaces`) may stream some that its final text lacks.
        stops: strings that are not to be shown.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._offsets = SafeOffsets.of(tokenizer)
        # Special tokens are left out before a text is put together.
        self._silent = {} if self._offsets is None else special_tokens(tokenizer)
        self._stops = stops
        self._held = ""
        self._emitted = 0
        self._window: list[int] = []
        self._shown = ""

    def push(self, token_id: int) -> str:
        """Return the text that a further token completes, short of what may begin a stop string."""
        self._held += self._completed(token_id)
        ready = len(self._held) - held_back(self._held, self._stops)
        fresh, self._held = self._held[:ready], self._held[ready:]
        self._emitted += ready
        return fresh

    def finish(self, text: str) -> str:
        """Return what is left at the end, where the whole text is known to be `text`."""
        return text[self._emitted :]

    def _completed(self, token_id: int) -> str:
        """Return the text that a further token completes, "" if none."""
        if token_id in self._silent:
            return ""
        self._window.append(token_id)
        if self._offsets is not None and self._offsets.open(token_id):
            return ""
        if len(self._window) > _CHARACTER:
            end = self._decode(_CHARACTER)
            if not end or end.endswith(REPLACEMENT):
                return ""
        text = self._decode()
        if text.endswith(REPLACEMENT) or len(text) <= len(self._shown):
            return ""
        fresh = text[len(self._shown) :]
        self._window = self._window[-1:]
        self._shown = self._decode()
        return fresh

    def _decode(self, last: int = 0) -> str:
        """Return the text of the window, or of its last tokens."""
        return self._tokenizer.decode(self._window[-last:], skip_special_tokens=True)


def held_back(text: str, stops: Sequence[str]) -> int:
    """Return how many characters at the end of a text may be the beginning of a stop string."""
    most = max((len(stop) for stop in stops), default=1) - 1
    for length in range(min(most, len(text)), 0, -1):
        if any(stop.startswith(text[-length:]) for stop in stops):
            return length
    return 0
