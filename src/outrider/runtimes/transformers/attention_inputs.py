"""What a forward over the slot cache sees: masks, positions, and how many columns are read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...types.transfer import sent
from .support import Architecture


@dataclass(frozen=True, slots=True)
class AttentionInputs:
    """What a forward sees.

    Attributes:
        masks: additive, [B, 1, q, span]; by kind of layer where the model takes several.
        positions: int64 [B, q], of the columns computed.
        columns: int64 [B, q], which are computed.
        span: how many columns are read.
    """

    masks: Tensor | dict[str | None, Tensor]
    positions: Tensor
    columns: Tensor
    span: int


class AttentionInputMaker:
    """Makes the inputs of a model's forwards.

    Args:
        architecture: the masks that the model wants, its dtype and its device.
        max_length: no position reaches it.
    """

    def __init__(self, architecture: Architecture, max_length: int) -> None:
        self._windows = architecture.windows
        self._device = architecture.device
        self.max_length = max_length
        self._zero = torch.zeros((), dtype=architecture.dtype, device=self._device)
        self._minus_infinity = torch.full_like(self._zero, -torch.inf)

    def chain(self, starts: list[int], length: int) -> AttentionInputs:
        """Make those of `length` columns from each row's start, each of which sees all before."""
        columns = self._reach(max(starts) + length)
        positions = sent(torch.tensor(starts), self._device)[:, None] + columns[:length]
        return self._inputs(columns <= positions[..., None], columns, positions, positions)

    def tree(self, starts: list[int], ancestors: Tensor, queries: int) -> AttentionInputs:
        """Make those of the last `queries` of T columns, a tree from each row's start.

        A column sees all before the start, and of the T those that it follows, and itself. Its
        position is the start plus the number of those that it follows; a window is measured from
        there, not from the column.

        Args:
            starts: the first of each row's T columns.
            ancestors: whether column j is column i or one that it follows, [B, T, T] by (i, j).
            queries: how many columns are computed.
        """
        width = ancestors.shape[1]
        columns = self._reach(max(starts) + width)
        first = sent(torch.tensor(starts), self._device)[:, None]
        own = first + columns[:width]
        standing = first + ancestors.sum(2) - 1
        places = columns.repeat(len(starts), 1).scatter_(1, own, standing)
        seen = (columns < first)[:, None].repeat(1, queries, 1)
        seen.scatter_(2, own[:, None].expand(-1, queries, -1), ancestors[:, -queries:])
        positions = standing[:, -queries:]
        return self._inputs(seen, places[:, None], positions, own[:, -queries:])

    def _reach(self, end: int) -> Tensor:
        """The columns that are read so that `end` of them are, a multiple of 64."""
        return torch.arange(-(-end // 64) * 64, device=self._device)

    def _inputs(
        self, seen: Tensor, places: Tensor, positions: Tensor, columns: Tensor
    ) -> AttentionInputs:
        """Make a inputs of columns [B, q], with additive masks as the model wants them.

        A query at a position [B, q] sees what is `seen`, bool [B, q, span], if no window hides it.
        `places` are the columns' positions, [span] or [B, 1, span].
        """
        masks: dict[str | None, Tensor] = {}
        for kind, window in self._windows:
            allowed = seen if window is None else seen & (places > positions[..., None] - window)
            masks[kind] = torch.where(allowed, self._zero, self._minus_infinity)[:, None]
        # Only columns beyond a row's drafts can lie outside the context.
        within = positions.clamp(max=self.max_length - 1)
        return AttentionInputs(masks.get(None, masks), within, columns, seen.shape[-1])


def grown(ancestors: Tensor | None, parents: Tensor) -> Tensor:
    """The ancestor mask bool [B, T, T] of a tree to which nodes with parents [B, M] were added."""
    batch, width = parents.shape
    itself = torch.eye(width, dtype=torch.bool, device=parents.device).expand(batch, -1, -1)
    if ancestors is None:
        return itself
    root = ancestors.new_zeros(batch, 1, ancestors.shape[2])
    before = torch.cat([root, ancestors], 1)
    inherited = before.gather(1, parents[..., None].expand(-1, -1, ancestors.shape[2]))
    above = torch.cat([ancestors, ancestors.new_zeros(batch, ancestors.shape[1], width)], 2)
    return torch.cat([above, torch.cat([inherited, itself], 2)], 1)


def prefix_tree_mask(ancestors: NDArray[np.bool_], length: int) -> Tensor:
    """The ancestor mask of trees with masks [B, N, N], each own on a chain of `length` tokens."""
    batch, width, _ = ancestors.shape
    own = np.tile(np.tri(length + width, dtype=bool), (batch, 1, 1))
    own[:, length:, length:] = ancestors
    return torch.from_numpy(own)
