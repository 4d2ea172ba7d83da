"""Drafting for those rows of a batch only for which something is planned."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..types.protocols import AutoregressiveModel, Cursor
from ..types.records import Prefix
from ..types.transfer import sent


def opened(
    model: AutoregressiveModel, prefixes: Sequence[Prefix], depth: NDArray[np.int64]
) -> Cursor:
    """A cursor at the end of the prefixes, for rows of some depth.

    Rows of depth 0 are neither read nor fed to the model: their logits are 0, and mean nothing.

    Args:
        model: what drafts.
        prefixes: of all rows.
        depth: how many tokens in a row each drafts, int64 [B]; one of them at least.
    """
    rows = np.flatnonzero(depth)
    cursor = model.open([prefixes[row] for row in rows.tolist()], int(depth.max()))
    return cursor if len(rows) == len(prefixes) else _SomeRows(cursor, rows, len(prefixes))


class _SomeRows:
    """A cursor of some rows, as one of all."""

    def __init__(self, cursor: Cursor, rows: NDArray[np.int64], count: int) -> None:
        self._cursor = cursor
        self._count = count
        self._rows = sent(torch.from_numpy(rows), cursor.logits.device)

    @property
    def logits(self) -> Tensor:
        """Logits [B, V]; see `Cursor`."""
        return self._among_all(self._cursor.logits)

    def step(self, tokens: Tensor) -> Tensor:
        """Feed tokens int64 [B]; see `Cursor`."""
        return self._among_all(self._cursor.step(tokens[self._rows]))

    def expand(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """Feed nodes [B, M]; see `Cursor`."""
        found = self._cursor.expand(tokens[self._rows], parents[self._rows])
        return self._among_all(found)

    def _among_all(self, logits: Tensor) -> Tensor:
        whole = logits.new_zeros(self._count, *logits.shape[1:])
        return whole.index_copy_(0, self._rows, logits)
