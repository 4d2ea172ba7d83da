"""A model in a GGUF file in the middle of drafting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ...errors import ModelError
from ...types.records import Prefix
from ..base import Cursor
from ..lengths import overfed
from .forest import Row, Tokens

if TYPE_CHECKING:
    from .model import LlamaCppModel


class GgufCursor(Cursor):
    """A LlamaCppModel in the middle of drafting.

    Each call asks about the prefixes with all that was fed, and the model computes what is new of
    it: one token a row for `step`, the whole tree again for `expand`.

    Args:
        model: that drafts.
        prefixes: of the rows.
    """

    def __init__(self, model: LlamaCppModel, prefixes: Sequence[Prefix]) -> None:
        self._model = model
        self._prefixes = list(prefixes)
        self._steps = 0
        self._tree: tuple[Tokens, Tokens] | None = None
        self._logits = self._computed([_bare(prefix) for prefix in prefixes], 1)[:, 0]

    @property
    def logits(self) -> Tensor:
        """Logits [B, V] after the prefixes and the tokens that `step` was fed so far."""
        return self._logits

    def step(self, tokens: Tensor) -> Tensor:
        """Feed one token to each row; see `Cursor`.

        Rows without room stay as they are.

        Raises:
            ContextLengthError: no row has room for another token.
            ModelError: `expand` was called before.
        """
        most = self._model.max_length or 0
        if min(map(len, self._prefixes)) >= most:
            raise overfed(self._steps + 1, most)
        self._check(fed_alike=self._tree is None)
        longer = [
            prefix.extended([token]) if len(prefix) < most else prefix
            for prefix, token in zip(self._prefixes, tokens.tolist(), strict=True)
        ]
        self._logits = self._computed([_bare(prefix) for prefix in longer], 1)[:, 0]
        self._prefixes, self._steps = longer, self._steps + 1
        return self._logits

    def expand(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """Feed nodes of a tree; see `Cursor`.

        Raises:
            ModelError: `step` was called before.
        """
        fed, follows = tokens.cpu().numpy(), parents.cpu().numpy()
        known = 1
        if self._tree is not None:
            known = 1 + self._tree[0].shape[1]
            fed, follows = (
                np.concatenate(pair, 1) for pair in zip(self._tree, (fed, follows), strict=True)
            )
        self._check(fed_alike=self._steps == 0)
        rows = [
            Row(prefix, fed[row], follows[row], known) for row, prefix in enumerate(self._prefixes)
        ]
        found = self._computed(rows, 1 + fed.shape[1])[:, known:]
        self._tree = fed, follows
        return found

    def _computed(self, rows: Sequence[Row], width: int) -> Tensor:
        with self._model.lock:
            logits, _ = self._model.compute(rows, width)
        return torch.from_numpy(logits)

    def _check(self, *, fed_alike: bool) -> None:
        """Raise ModelError if this cursor is fed both ways."""
        if not fed_alike:
            raise ModelError("a cursor is fed by step or by expand, not by both; open another one")


def _bare(prefix: Prefix) -> Row:
    """Ask for the logits after a prefix."""
    none = np.empty(0, np.int64)
    return Row(prefix, none, none)
