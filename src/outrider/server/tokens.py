"""What an answer says of a token: its text, and its own bytes."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from ..drafters.vocabulary.spelling import byte_reader
from ..engine.detokenize import REPLACEMENT
from ..errors import InvalidConfigError, VocabMismatchError
from ..types.protocols import special_tokens


class TokenTexts:
    """Knows what the tokens of a model's tokenizer spell."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._specials = special_tokens(tokenizer)
        self._read: Any = None
        with suppress(InvalidConfigError, VocabMismatchError):
            self._read = byte_reader(tokenizer)

    def data(self, token_id: int, *, first: bool) -> bytes | None:
        """Return the bytes that a token brings to the text; None where they are not known.

        Special tokens bring none.

        Args:
            token_id: the token.
            first: whether it begins the text: some tokenizers leave out a space there.
        """
        if token_id in self._specials:
            return b""
        text: str = self._tokenizer.decode([token_id])
        word = None
        if self._read is not None and not (first and REPLACEMENT not in text):
            word = self._read(self._tokenizer.convert_ids_to_tokens(token_id) or "", token_id)
        if word is None and REPLACEMENT not in text:
            return text.encode()
        return word

    def text(self, token_id: int, *, first: bool) -> str:
        """Return what a token reads as: a special one its name."""
        if token_id in self._specials:
            return self._specials[token_id]
        data = self.data(token_id, first=first)
        return REPLACEMENT if data is None else data.decode(errors="replace")

    def keys(self, token_ids: list[int], *, first: bool) -> dict[int, str]:
        """Return a name for each of several tokens, no two the same.

        It is the token's text, or "bytes:" and its bytes where they are none, as OpenAI has it; or
        "token_id:" and its id, as vLLM has it, where an earlier token has that name.
        """
        found: dict[str, int] = {}
        for token_id in token_ids:
            name = self.text(token_id, first=first)
            if REPLACEMENT in name:
                data = self.data(token_id, first=first) or b""
                name = "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
            if found.setdefault(name, token_id) != token_id:
                found[f"token_id:{token_id}"] = token_id
        return {token_id: name for name, token_id in found.items()}
