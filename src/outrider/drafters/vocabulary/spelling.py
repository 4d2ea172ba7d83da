"""What tokens spell, in bytes: the ground on which two vocabularies meet.

Byte-level tokenizers write a byte as a character of an alphabet of their own ("Ġ" is a space),
others write a space as "▁" and a lone byte as "<0x0A>". Brought to bytes all of them compare, and
only equal bytes count as the same token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...errors import InvalidConfigError, VocabMismatchError
from ...types.protocols import SpellingTokenizer, special_tokens

_LONE_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class Spelling:
    """What the tokens of a tokenizer spell.

    Attributes:
        words: the bytes of each ordinary token.
        specials: the name of each special token, which spells nothing.
        ids: the token that spells some bytes; of several, the one that its tokenizer would use.
        bos: the token that starts a text, None if there is none.
        eos: the token that ends one, None if there is none.
    """

    words: dict[int, bytes]
    specials: dict[int, str]
    ids: dict[bytes, int]
    bos: int | None
    eos: int | None

    @staticmethod
    def of(tokenizer: Any) -> Spelling:
        """Read what a fast tokenizer of transformers spells, or one that says so itself.

        Raises:
            InvalidConfigError: it is not backed by the tokenizers library.
            VocabMismatchError: its decoder gives no bytes: it is neither byte-level nor of the kind
                that writes a space as "▁".
        """
        read, specials = byte_reader(tokenizer), special_tokens(tokenizer)
        words: dict[int, bytes] = {}
        lone: list[int] = []
        for token, index in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1]):
            word = None if index in specials else read(token, index)
            if word:
                words[index] = word
                if _LONE_BYTE.fullmatch(token):
                    lone.append(index)
        ids: dict[bytes, int] = {}
        # A lone byte that is a character, too, is written as the character.
        for index in [*(i for i in words if i not in set(lone)), *lone]:
            ids.setdefault(words[index], index)
        return Spelling(words, specials, ids, tokenizer.bos_token_id, tokenizer.eos_token_id)


def counterparts(target: Spelling, draft: Spelling) -> dict[int, int]:
    """Return the draft's token for each target token that both vocabularies have.

    Ordinary tokens meet by their bytes, one to one, special tokens by their names, and the end of
    a text by what it means.
    """
    common = {index: draft.ids[word] for word, index in target.ids.items() if word in draft.ids}
    named = {name: index for index, name in draft.specials.items()}
    common |= {index: named[name] for index, name in target.specials.items() if name in named}
    if target.eos is not None and draft.eos is not None:
        common = {index: own for index, own in common.items() if own != draft.eos}
        common[target.eos] = draft.eos
    return common


def byte_reader(tokenizer: Any) -> Callable[[str, int], bytes | None]:
    """Return what turns an ordinary token, as it is written, and its id into bytes.

    Raises:
        InvalidConfigError, VocabMismatchError: see `Spelling.of`.
    """
    if isinstance(tokenizer, SpellingTokenizer):
        words = tokenizer.words()
        return lambda _, index: words.get(index)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise InvalidConfigError(
            "tokenizer", type(tokenizer).__name__, "a fast tokenizer of transformers"
        )
    spell = _reader(tokenizer, backend)
    added = tokenizer.added_tokens_decoder

    return lambda token, index: token.encode() if index in added else spell(token)


def _reader(tokenizer: Any, backend: Any) -> Callable[[str], bytes | None]:
    """Return what turns a token, as it is written, into bytes; None for one that has none."""
    parts = _parts(json.loads(backend.decoder.__getstate__())) if backend.decoder else {}
    if "ByteLevel" in parts:
        from transformers.convert_slow_tokenizer import bytes_to_unicode

        alphabet = {letter: byte for byte, letter in bytes_to_unicode().items()}

        def byte_level(token: str) -> bytes | None:
            values = [alphabet.get(letter) for letter in token]
            return None if None in values else bytes(value for value in values if value is not None)

        return byte_level
    space = parts.get("Metaspace", {}).get("replacement")
    space = space or parts.get("Replace", {}).get("pattern", {}).get("String")
    if not space:
        raise VocabMismatchError(
            f"the tokenizer {type(tokenizer).__name__} decodes by {sorted(parts) or 'nothing'}, "
            "which does not say what bytes a token spells; expected a byte-level decoder, or one "
            "that writes a space as '▁'; use a draft with the target's tokenizer"
        )

    def marked(token: str) -> bytes:
        lone = _LONE_BYTE.fullmatch(token) if "ByteFallback" in parts else None
        return bytes([int(lone[1], 16)]) if lone else token.replace(space, " ").encode()

    return marked


def _parts(decoder: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the parts of a decoder by their type, the first of each."""
    if decoder["type"] != "Sequence":
        return {decoder["type"]: decoder}
    parts = [_parts(part) for part in reversed(decoder["decoders"])]
    return {kind: part for found in parts for kind, part in found.items()}
