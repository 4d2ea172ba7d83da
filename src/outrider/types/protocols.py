"""What the engine asks of a source of randomness and of a tokenizer.

Anything with these methods may be passed; nothing has to be subclassed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor


class Chance(Protocol):
    """A source of randomness: keyed categorical draws from explicit distributions."""

    def draw(self, distributions: Tensor, keys: NDArray[np.uint64]) -> Tensor:
        """One index int64 [B] for each distribution [B, M], under keys [B, 5].

        A key is (stream key, choice, round, purpose, slot). Equal keys give equal noise.
        """


@runtime_checkable
class RacingChance(Chance, Protocol):
    """Chance whose noise a drafter can share with the target, token by token: coupled mode."""

    def race(self, keys: NDArray[np.uint64], size: int) -> NDArray[np.float64]:
        """Exponential noise [B, size] under keys [B, 5], one for each token."""

    def race_at(self, keys: NDArray[np.uint64], tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """What `race` gives under keys [n, 5] to one token [n] each."""


class Tokenizer(Protocol):
    """Text to token ids and back, as transformers' tokenizers do it."""

    def encode(self, text: str) -> list[int]:
        """The token ids of a text."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str:
        """The text of token ids."""


@runtime_checkable
class SpellingTokenizer(Tokenizer, Protocol):
    """A tokenizer that says what its tokens spell, and joins their bytes to a text.

    It has `bos_token_id` and `eos_token_id` as well, None where there is no such token.
    """

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The token ids of a text, with those that belong around it or without."""

    def words(self) -> Mapping[int, bytes]:
        """The bytes that each ordinary token spells."""

    def specials(self) -> Mapping[int, str]:
        """The name of each special token, which spells nothing."""

    def get_vocab(self) -> dict[str, int]:
        """The id of each token as it is written."""


def special_tokens(tokenizer: Any) -> dict[int, str]:
    """Return the name of each special token, which is left out of a text.

    Args:
        tokenizer: of transformers, or one that says what its tokens spell; others have none.
    """
    if isinstance(tokenizer, SpellingTokenizer):
        return dict(tokenizer.specials())
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return {token: piece.content for token, piece in added.items() if piece.special}
