"""A model that writes what it is given."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from outrider.runtimes.tabular import TabularModel


def scripted(script: Sequence[int], vocab_size: int, prompt: int = 1) -> TabularModel:
    """A model of one-hot distributions.

    Args:
        script: the tokens that follow a prompt; token 0 follows them.
        vocab_size: V.
        prompt: tokens of the prompt.
    """

    def distribution(prefix: tuple[int, ...]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        place = len(prefix) - prompt
        row = np.zeros(vocab_size)
        row[script[place] if place < len(script) else 0] = 1.0
        return row

    return TabularModel(distribution, vocab_size)
