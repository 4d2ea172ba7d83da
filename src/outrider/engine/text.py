"""Token ids to text, as they come."""

from __future__ import annotations

from collections.abc import Sequence

from ..types.protocols import Tokenizer
from .anchors import Anchors
from .stopping import held_back

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

_CHARACTER = 4
"""Bytes that a character of UTF-8 has at most, and so tokens that it may be spread over."""


class StreamDecoder:
    """Decodes a growing sequence, never emitting half a character, nor the start of a stop string.

    A token may hold part of a character, and the text of a token can depend on the one before it.
    So a window is decoded, from the last token known to end a character on: its text is emitted
    once it is longer than before, does not end in the middle of a character, and is not that of a
    run of bytes which the next token may make unreadable (see `outrider.anchors`).

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
        self._anchors = Anchors.of(tokenizer)
        self._silent = frozenset[int]() if self._anchors is None else self._anchors.silent()
        self._stops = stops
        self._held = ""
        self._emitted = 0
        self._window: list[int] = []
        self._shown = ""

    def push(self, token_id: int) -> str:
        """The text that a further token completes and no stop string can begin in, "" if none."""
        self._held += self._completed(token_id)
        ready = len(self._held) - held_back(self._held, self._stops)
        fresh, self._held = self._held[:ready], self._held[ready:]
        self._emitted += ready
        return fresh

    def finish(self, text: str) -> str:
        """What is left at the end, where the whole text is known to be `text`."""
        return text[self._emitted :]

    def _completed(self, token_id: int) -> str:
        """The text that a further token completes, "" if none."""
        if token_id in self._silent:
            return ""
        self._window.append(token_id)
        if self._anchors is not None and self._anchors.open(token_id):
            return ""
        if len(self._window) > _CHARACTER:
            end = self._decode(_CHARACTER)
            if not end or end.endswith(_REPLACEMENT):
                return ""
        text = self._decode()
        if text.endswith(_REPLACEMENT) or len(text) <= len(self._shown):
            return ""
        fresh = text[len(self._shown) :]
        self._window = self._window[-1:]
        self._shown = self._decode()
        return fresh

    def _decode(self, last: int = 0) -> str:
        """The text of the window, or of its last tokens."""
        return self._tokenizer.decode(self._window[-last:], skip_special_tokens=True)
