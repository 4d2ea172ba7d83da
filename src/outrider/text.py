"""Token ids to text, as they come."""

from __future__ import annotations

from .protocols import Tokenizer

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class StreamDecoder:
    """Decodes a growing sequence, never emitting half a character.

    A token may hold part of a character, and the text of a token can depend on the one before it.
    So a window is decoded, from the last token known to end a character on: its text is emitted
    once it is longer than before and does not end in the middle of a character.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []
        self._shown = ""

    def push(self, token_id: int) -> str:
        """The text that a further token completes, "" if none."""
        self._window.append(token_id)
        text = self._decode()
        if text.endswith(_REPLACEMENT) or len(text) <= len(self._shown):
            return ""
        fresh = text[len(self._shown) :]
        self._window = self._window[-1:]
        self._shown = self._decode()
        return fresh

    def flush(self) -> str:
        """What is left at the end, half characters shown as the tokenizer shows them."""
        return self._decode()[len(self._shown) :]

    def _decode(self) -> str:
        return self._tokenizer.decode(self._window, skip_special_tokens=True)
