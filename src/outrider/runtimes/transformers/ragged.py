"""Rows of different lengths in one forward, without what would pad them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log2

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...types.transfer import sent

_WIDER = 0.35
"""What attention takes more in a row of twice the columns, beside what it takes for one: most of it
is reading keys and values, which are read once."""

_AGAIN, _EACH = 0.85, 0.11
"""What it takes for more columns of a row by themselves, and for each: the row is read again, but
is still in a cache."""


@dataclass(frozen=True, slots=True)
class Ragged:
    """Which of the columns of B rows, W wide, a forward computes: the first ones of each row.

    Attributes:
        shape: (B, W).
        columns: int64 [n], those computed as row * W + column, row after row; on the host.
        bounds: int64 [B + 1], where in them each row begins, and their number; on the host.
        index: the same on the device.
        kept: int64 [m], which of the n logits are wanted of.
        places: int64 [m], where these go, as row * keep + place, if every row has `keep` of them.
        keep: see there.
        together: for how many columns of every row attention is computed at once.
        longer: the rows that have more, and how many in all.
    """

    shape: tuple[int, int]
    columns: NDArray[np.int64]
    bounds: NDArray[np.int64]
    index: Tensor
    kept: Tensor
    places: Tensor
    keep: int
    together: int
    longer: tuple[tuple[int, int], ...]

    @staticmethod
    def of(lengths: Sequence[int], width: int, keep: int, device: torch.device) -> Ragged:
        """The first columns of each row.

        Args:
            lengths: how many of each, at least width - keep + 1.
            width: of the longest row, W, or more.
            keep: logits are wanted of the last so many columns of a row that is W wide, and of the
                same columns of the others, as far as they have them.
            device: of the states.
        """
        step = np.arange(width)
        rows, steps = (step < np.array(lengths)[:, None]).nonzero()
        kept = (steps >= width - keep).nonzero()[0]
        places = rows[kept] * keep + steps[kept] - (width - keep)
        columns = rows * width + steps
        index, those, where = (sent(torch.from_numpy(a), device) for a in (columns, kept, places))
        together = _together(lengths)
        longer = tuple((row, own) for row, own in enumerate(lengths) if own > together)
        shape, bounds = (len(lengths), width), np.cumsum([0, *lengths])
        return Ragged(shape, columns, bounds, index, those, where, keep, together, longer)

    def packed(self, states: Tensor) -> Tensor:
        """Of states [B, W, ...] those that are computed, [1, n, ...]."""
        return states.flatten(0, 1).index_select(0, self.index)[None]

    def padded(self, states: Tensor) -> Tensor:
        """States [1, n, ...] as [B, W, ...], 0 where nothing is computed."""
        rows, width = self.shape
        padded = states.new_zeros(rows * width, *states.shape[2:])
        return padded.index_copy_(0, self.index, states[0]).view(rows, width, *states.shape[2:])

    def laid_out(self, logits: Tensor) -> Tensor:
        """Logits [1, m, V] as [B, keep, V], 0 where none are wanted."""
        rows, vocab_size = self.shape[0], logits.shape[2]
        padded = logits.new_zeros(rows * self.keep, vocab_size)
        return padded.index_copy_(0, self.places, logits[0]).view(rows, self.keep, vocab_size)


def _together(lengths: Sequence[int]) -> int:
    """For how many columns of every row attention is best computed at once."""

    def cost(width: int) -> float:
        apart = (_AGAIN + _EACH * (own - width) for own in lengths if own > width)
        return len(lengths) * (1 + _WIDER * log2(width)) + sum(apart)

    return min(sorted(set(lengths), reverse=True), key=cost)
