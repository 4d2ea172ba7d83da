"""The tokenizer and the chat template that a GGUF file carries."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InvalidConfigError, ModelError, TokenOutOfRangeError, missing
from .library import Weights

with missing("llama-cpp"):
    import llama_cpp
    from jinja2 import TemplateError
    from llama_cpp.llama_chat_format import Jinja2ChatFormatter

_SPECIAL = llama_cpp.LLAMA_TOKEN_ATTR_CONTROL | llama_cpp.LLAMA_TOKEN_ATTR_UNKNOWN


class LlamaCppTokenizer:
    """Text to token ids and back by llama.cpp, with the methods of transformers' tokenizers.

    Args:
        path: of a GGUF file; its weights are not loaded.

    Attributes:
        bos_token_id, eos_token_id: the tokens that begin and end a text, None if there are none.
        bos_token, eos_token: what they are called.
        chat_template: the file's Jinja template of conversations, None if there is none.

    Raises:
        ModelError: the file cannot be loaded, or has no tokenizer.
        MissingExtraError: llama-cpp-python is not installed.
    """

    def __init__(self, path: str | Path) -> None:
        self._weights = Weights(path, vocabulary_only=True)
        self._vocabulary: Any = self._weights.vocabulary
        if llama_cpp.llama_vocab_type(self._vocabulary) == llama_cpp.LLAMA_VOCAB_TYPE_NONE:
            raise ModelError(
                f"the file {self._weights.path!r} has no tokenizer; expected one that has "
                "(LlamaCppModel decodes token ids without one)"
            )
        self.bos_token_id = self._id(llama_cpp.llama_vocab_bos(self._vocabulary))
        self.eos_token_id = self._id(llama_cpp.llama_vocab_eos(self._vocabulary))
        self.bos_token = self.convert_ids_to_tokens(self.bos_token_id)
        self.eos_token = self.convert_ids_to_tokens(self.eos_token_id)
        template = llama_cpp.llama_model_chat_template(self._weights.handle, None)
        self.chat_template: str | None = None if template is None else template.decode()

    def __len__(self) -> int:
        return self._weights.vocab_size

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text, in which special tokens may be written out.

        Args:
            text: any that UTF-8 can write.
            add_special_tokens: whether to add the tokens that the model wants around a text.
        """
        data = text.encode()

        def write(size: int) -> tuple[int, NDArray[np.int32]]:
            ids = np.empty(size, np.int32)
            pointer = ids.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))
            given = (self._vocabulary, data, len(data), pointer, size, add_special_tokens, True)
            return llama_cpp.llama_tokenize(*given), ids

        found: list[int] = _grown(write, len(data) + 8).tolist()
        return found

    def decode(self, token_ids: Sequence[int] | int, *, skip_special_tokens: bool = False) -> str:
        """Return the text of token ids, with replacement characters for bytes that are none.

        Raises:
            TokenOutOfRangeError: an id is outside the vocabulary.
        """
        ids = np.atleast_1d(np.asarray(token_ids, np.int64))
        if len(ids) and not 0 <= ids.min() <= ids.max() < len(self):
            raise TokenOutOfRangeError(
                f"token ids {ids.min()}..{ids.max()}; expected ids in 0..{len(self) - 1}"
            )
        if skip_special_tokens:
            ids = ids[~self._special[ids]]
        given = ids.astype(np.int32)
        pointer = given.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))

        def write(size: int) -> tuple[int, bytes]:
            buffer = ctypes.create_string_buffer(size)
            texts = (self._vocabulary, pointer, len(given), buffer, size)
            return llama_cpp.llama_detokenize(*texts, False, not skip_special_tokens), buffer.raw

        data: bytes = _grown(write, 16 * len(given) + 16)
        return data.decode(errors="replace")

    def convert_ids_to_tokens(self, token_id: int | None) -> str | None:
        """Return a token as the file writes it, None for None."""
        if token_id is None:
            return None
        text: bytes = llama_cpp.llama_vocab_get_text(self._vocabulary, token_id)
        return text.decode(errors="replace")

    def get_vocab(self) -> dict[str, int]:
        """Return the id of each token as the file writes it."""
        return {self.convert_ids_to_tokens(index) or "": index for index in range(len(self))}

    def words(self) -> Mapping[int, bytes]:
        """Return the bytes that each ordinary token spells."""
        pieces = ((int(i), self._piece(int(i))) for i in np.flatnonzero(~self._special))
        return {index: piece for index, piece in pieces if piece}

    def specials(self) -> Mapping[int, str]:
        """Return the name of each special token, which spells nothing."""
        found = map(int, np.flatnonzero(self._special))
        return {index: self.convert_ids_to_tokens(index) or "" for index in found}

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = False,
        tokenize: bool = True,
        **variables: Any,
    ) -> str | list[int]:
        """Write a conversation by the file's chat template, as text or token ids.

        Args:
            messages: each with "role" and "content".
            add_generation_prompt: whether to end where the assistant is to speak.
            tokenize: whether to return token ids.
            variables: others that the template reads, such as `tools`.

        Raises:
            ModelError: the file has no chat template.
            InvalidConfigError: the template refuses the messages.
        """
        if self.chat_template is None:
            raise ModelError(
                f"the file {self._weights.path!r} has no chat template; write the prompt as text"
            )
        write = Jinja2ChatFormatter(
            self.chat_template, self.eos_token or "", self.bos_token or "", add_generation_prompt
        )
        try:
            text = write(messages=messages, **variables).prompt
        except (TemplateError, ValueError) as error:
            given = f"the file's chat template refuses the messages: {error}"
            expected = "messages with the roles that it knows"
            raise InvalidConfigError("messages", messages, expected, given=given) from error
        return self.encode(text, add_special_tokens=False) if tokenize else text

    @cached_property
    def _special(self) -> NDArray[np.bool_]:
        """Whether each token is special, bool [V]."""
        kinds = (
            llama_cpp.llama_vocab_get_attr(self._vocabulary, index) for index in range(len(self))
        )
        special: NDArray[np.bool_] = np.fromiter(kinds, np.int64, len(self)) & _SPECIAL != 0
        return special

    def _piece(self, token_id: int) -> bytes:
        def write(size: int) -> tuple[int, bytes]:
            buffer = ctypes.create_string_buffer(size)
            given = (self._vocabulary, token_id, buffer, size, 0, True)
            return llama_cpp.llama_token_to_piece(*given), buffer.raw

        piece: bytes = _grown(write, 64)
        return piece

    def _id(self, token_id: int) -> int | None:
        return token_id if 0 <= token_id < len(self) else None


def _grown(write: Callable[[int], tuple[int, Any]], size: int) -> Any:
    """Return what llama.cpp writes; where it does not fit, it says how much room it takes."""
    found, written = write(size)
    if found < 0:
        found, written = write(-found)
    return written[:found]
