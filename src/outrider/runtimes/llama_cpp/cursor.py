"""A model in a GGUF file in the middle of drafting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ...types.records import Prefix
from ..base import Cursor
from ..lengths import overfed
from .forest import Row

if TYPE_CHECKING:
    from .model import LlamaCppModel


class GgufCursor(Cursor):
    """A LlamaCppModel in the middle of drafting.

    Each call asks about the prefixes with all that was fed, and the model computes what is new of
    it, one token a row. A level of a tree would have it compute the whole tree again.

    Args:
        model: that drafts.
        prefixes: of the rows.
    """

    def __init__(self, model: LlamaCppModel, prefixes: Sequence[Prefix]) -> None:
        self._model = model
        self._prefixes = list(prefixes)
        self._certain = [len(prefix) for prefix in prefixes]
        self._logits = self._computed(prefixes)

    @property
    def logits(self) -> Tensor:
        """Logits [B, V] after the prefixes and the tokens that `step` was fed so far."""
        return self._logits

    def step(self, tokens: Tensor) -> Tensor:
        """Feed one token to each row; see `Cursor`.

        Rows without room stay as they are.

        Raises:
            ContextLengthError: no row has room for another token.
        """
        most = self._model.max_length or 0
        if min(map(len, self._prefixes)) >= most:
            raise overfed(1 + most - min(self._certain), most)
        longer = [
            prefix.extended([token]) if len(prefix) < most else prefix
            for prefix, token in zip(self._prefixes, tokens.tolist(), strict=True)
        ]
        self._logits = self._computed(longer)
        self._prefixes = longer
        return self._logits

    def _computed(self, prefixes: Sequence[Prefix]) -> Tensor:
        """Logits [B, V] after prefixes."""
        none = np.empty(0, np.int64)
        rows = [
            Row(prefix, none, none, certain)
            for prefix, certain in zip(prefixes, self._certain, strict=True)
        ]
        logits, _ = self._model.compute(rows, 1)
        return torch.from_numpy(logits)[:, 0]
