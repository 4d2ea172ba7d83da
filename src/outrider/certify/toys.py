"""Vocabularies of letters, and logits processors, for models small enough to enumerate."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..drafters.vocabulary.drafter import VocabularyDrafter
from ..runtimes.tabular import TabularModel
from ..types.protocols import Tokenizer

TEXTS = ("a", "", "b", "c")
"""What each token reads as. The one without text is special: it ends what has a form."""

_LEAST = -20.0
"""Forbidden tokens count as this likely where processors look at other tokens' logits."""

END = TEXTS.index("")


@cache
def tokenizer(texts: tuple[str, ...]) -> Tokenizer:
    """Make a tokenizer whose tokens read as these: letters, pairs of two of them, and nothing."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = [text or "<end>" for text in texts]
    merges = [(text[0], text[1]) for text in texts if len(text) > 1]
    vocabulary = {name: token for token, name in enumerate(names)}
    found = tokenizers.Tokenizer(models.BPE(vocabulary, merges))
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    found.decoder = decoders.ByteLevel()
    found.add_special_tokens([names[texts.index("")]])
    words: Tokenizer = PreTrainedTokenizerFast(tokenizer_object=found)
    return words


def of_another_vocabulary(
    draft: TabularModel, texts: tuple[str, ...], *, by_text: bool = False
) -> VocabularyDrafter:
    """Draft what a model would, as far as tokens of another vocabulary can.

    The model is of the first tokens of `TEXTS`, and other tokens read as letters of theirs. One of
    them is as likely as the model's that reads as its first letter, and one of two letters half as
    likely. Tokens meet by their text, or those that both vocabularies have.
    """

    def distribution(prefix: tuple[int, ...]) -> NDArray[np.float64]:
        letters = (letter for token in prefix for letter in texts[token] or ("",))
        known = draft.probabilities(tuple(map(TEXTS.index, letters)))
        weights = np.array([known[TEXTS.index(text[:1])] / max(1, len(text)) for text in texts])
        whole: NDArray[np.float64] = weights / weights.sum()
        return whole

    return VocabularyDrafter(
        TabularModel(distribution, len(texts)),
        tokenizer(texts),
        tokenizer(TEXTS[: draft.vocab_size]),
        match="text" if by_text else "tokens",
    )


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
