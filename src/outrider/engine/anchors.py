"""Where the end of a text may be decoded from, so that its beginning need not be decoded again.

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
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..types.protocols import Tokenizer

_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")


@dataclass(frozen=True, slots=True)
class Anchors:
    """The tokens of a tokenizer at which a window may begin.

    Attributes:
        tokenizer: a transformers tokenizer of one of the kinds above.
        runs: whether it has byte tokens that are read together.
    """

    tokenizer: Any
    runs: bool

    @staticmethod
    def of(tokenizer: Tokenizer) -> Anchors | None:
        """Of a tokenizer; None if it is of neither kind."""
        from transformers import PreTrainedTokenizerFast

        known: Any = PreTrainedTokenizerFast
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
            return Anchors(tokenizer, runs=False)
        parts = settings.get("decoders", [])
        kinds = [part["type"] for part in parts]
        joined = kinds.index("Fuse") if "Fuse" in kinds else len(kinds)
        apart = all(kind in ("Replace", "ByteFallback", "Strip") for kind in kinds[:joined])
        whole = all(part["type"] == "Strip" and not part["stop"] for part in parts[joined + 1 :])
        if settings["type"] != "Sequence" or not apart or not whole:
            return None
        return Anchors(tokenizer, "ByteFallback" in kinds)

    def open(self, token: int) -> bool:
        """Whether tokens after this one may change its text, or that of a run that it is in.

        Tokens without a text, such as special ones, do not end a run.
        """
        if not self.runs:
            return False
        piece = self.tokenizer.convert_ids_to_tokens(token) or ""
        return bool(_BYTE.fullmatch(piece)) or not self.tokenizer.decode(
            [token], skip_special_tokens=True
        )

    def silent(self) -> frozenset[int]:
        """The special tokens, which are left out before a text is put together."""
        added = self.tokenizer.added_tokens_decoder
        return frozenset(token for token, piece in added.items() if piece.special)

    def before(self, ids: NDArray[np.int64], place: int) -> int:
        """The last place in `ids`, at or before `place`, that a window may begin at."""
        while place > 0 and self.open(int(ids[place])):
            place -= 1
        return place
