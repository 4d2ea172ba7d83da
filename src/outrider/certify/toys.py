"""A vocabulary of letters, and logits processors, for models small enough to enumerate."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from ..protocols import Tokenizer

TEXTS = ("a", "", "b", "c")
"""What each token reads as. The one without text is special: it ends what has a form."""

_LEAST = -20.0
"""Forbidden tokens count as this likely where processors look at other tokens' logits."""

END = TEXTS.index("")


def tokenizer(vocab_size: int) -> Tokenizer:
    """The first tokens of the vocabulary, `vocab_size` of them."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = [text or "<end>" for text in TEXTS[:vocab_size]]
    found = tokenizers.Tokenizer(models.BPE({name: token for token, name in enumerate(names)}, []))
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    found.decoder = decoders.ByteLevel()
    found.add_special_tokens([names[END]])
    words: Tokenizer = PreTrainedTokenizerFast(tokenizer_object=found)
    return words


def turned(history: Tensor, logits: Tensor) -> Tensor:
    """A processor that remembers nothing, and looks at all of the history."""
    return logits - 0.7 * torch.roll(logits.clamp(min=_LEAST), int(history.sum()))


class Remembering:
    """A processor that remembers the logits it was shown, and that it was called in turn."""

    def __init__(self) -> None:
        self._memory: Tensor | None = None
        self._length = 0

    def __call__(self, history: Tensor, logits: Tensor) -> Tensor:
        """Take what is left in memory of earlier logits from these.

        Raises:
            ValueError: it was not called once for every position, in order.
        """
        if self._memory is None:
            self._memory, self._length = torch.zeros_like(logits), len(history) - 1
        if len(history) != self._length + 1:
            raise ValueError(f"called after {len(history)} tokens, and before after {self._length}")
        self._length = len(history)
        self._memory = 0.6 * self._memory + logits.clamp(min=_LEAST)
        return logits - 0.5 * self._memory + 0.1 * int(history[-1]) * torch.sign(logits + 1)
