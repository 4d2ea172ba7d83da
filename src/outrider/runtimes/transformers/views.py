"""What a forward over the slot cache sees: masks, positions, and how many columns are read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...types.transfer import sent
from .support import Architecture

_STAIRS = 16
"""The most columns of one row whose mask is cut from one made before."""


@dataclass(frozen=True, slots=True)
class View:
    """What a forward sees.

    Attributes:
        masks: additive, [B, 1, q, span], query rows repeated for each query group if q > 1; by kind
            where the model takes several.
        positions: int64 [B, q], of the columns computed.
        columns: int64 [B, q], which are computed.
        span: how many columns are read.
    """

    masks: Tensor | dict[str, Tensor]
    positions: Tensor
    columns: Tensor
    span: int

    def rows(self, low: int, high: int) -> View:
        """The same for some of its rows."""
        if isinstance(self.masks, Tensor):
            masks: Tensor | dict[str, Tensor] = self.masks[low:high]
        else:
            masks = {kind: mask[low:high] for kind, mask in self.masks.items()}
        return View(masks, self.positions[low:high], self.columns[low:high], self.span)


class Views:
    """Makes the views of a model's forwards, one at a time.

    Args:
        architecture: the masks it wants, its dtype and its device.
        max_length: no position reaches it.
    """

    def __init__(self, architecture: Architecture, max_length: int) -> None:
        self._windows = architecture.windows
        self._groups = architecture.groups
        self._device = architecture.device
        self._max_length = max_length
        self._columns = torch.arange(0, device=self._device)
        self._zero = torch.zeros((), dtype=architecture.dtype, device=self._device)
        self._minus_infinity = torch.full_like(self._zero, -torch.inf)
        self._stairs: dict[str | None, Tensor] = {}

    def chain(self, starts: list[int], length: int) -> View:
        """Of `length` columns from each row's start, each of which sees all before it."""
        end = max(starts) + length
        columns = self._reach(end)
        if len(starts) == 1:
            positions = columns[starts[0] : end][None]
            # The kernels of other devices may want a mask whose rows are aligned.
            if length <= _STAIRS and self._device.type == "cpu":
                masks = self._cut(starts[0], length, len(columns))
                return View(masks, self._clamped(positions, end), positions, len(columns))
        else:
            first = sent(torch.tensor(starts), self._device)[:, None]
            positions = first + columns[:length]
        masks = self._masks(columns <= positions[..., None], columns, positions)
        return View(masks, self._clamped(positions, end), positions, len(columns))

    def steps(self, ends: list[int], count: int) -> list[View]:
        """Of each of `count` forwards of one column, the first column at each row's end."""
        rows = len(ends)
        if rows == 1:
            return [self.chain([ends[0] + step], 1) for step in range(count)]
        positions = [end + step for step in range(count) for end in ends]
        joint = self.chain(positions, 1)
        return [joint.rows(step * rows, (step + 1) * rows) for step in range(count)]

    def tree(self, starts: list[int], ancestors: Tensor, queries: int) -> View:
        """Of the last `queries` of T columns that hang as a tree from each row's start.

        A column sees all before the start, and of the T those that it follows, and itself. It
        stands at the start plus the number of those that it follows; a window is measured from
        there, not from the column.

        Args:
            starts: the first of each row's T columns.
            ancestors: whether column j is column i or one that it follows, [B, T, T] by (i, j).
            queries: how many columns are computed.
        """
        width = ancestors.shape[1]
        end = max(starts) + width
        columns = self._reach(end)
        first = sent(torch.tensor(starts), self._device)[:, None]
        hung = first + columns[:width]
        standing = first + ancestors.sum(2) - 1
        places = columns.repeat(len(starts), 1).scatter_(1, hung, standing)
        seen = (columns < first)[:, None].repeat(1, queries, 1)
        seen.scatter_(2, hung[:, None].expand(-1, queries, -1), ancestors[:, -queries:])
        positions = standing[:, -queries:]
        masks = self._masks(seen, places[:, None], positions)
        computed = hung[:, -queries:]
        return View(masks, self._clamped(positions, end), computed, len(columns))

    def _reach(self, end: int) -> Tensor:
        """The columns that are read so that `end` of them are, a multiple of 64."""
        span = -(-end // 64) * 64
        if span > len(self._columns):
            self._columns = torch.arange(max(span, 2 * len(self._columns)), device=self._device)
            self._stairs = {}
        return self._columns[:span]

    def _cut(self, start: int, length: int, span: int) -> Tensor | dict[str, Tensor]:
        """The masks of a chain in one row, cut from those of stairs whose first step is far out."""
        reach = len(self._columns)
        if not self._stairs:
            columns = torch.arange(2 * reach)
            steps = reach + columns[:_STAIRS, None]
            self._stairs = self._additive((columns <= steps)[None], columns, steps.T)
        low = reach - start
        return self._folded(
            {kind: stairs[:, :, :length, low : low + span] for kind, stairs in self._stairs.items()}
        )

    def _clamped(self, positions: Tensor, end: int) -> Tensor:
        """Positions inside the context: only columns beyond a row's drafts can lie outside it."""
        return positions if end <= self._max_length else positions.clamp(max=self._max_length - 1)

    def _masks(self, seen: Tensor, places: Tensor, positions: Tensor) -> Tensor | dict[str, Tensor]:
        """Additive masks, as a forward wants them.

        Args:
            seen: whether a query sees a column if no window hides it, bool [B, q, span].
            places: the positions of the columns, [span] or [B, 1, span].
            positions: of the queries, [B, q].
        """
        return self._folded(self._additive(seen, places, positions))

    def _additive(
        self, seen: Tensor, places: Tensor, positions: Tensor
    ) -> dict[str | None, Tensor]:
        """Additive masks [B, 1, q, span] of each kind."""
        masks = {}
        for kind, window in self._windows:
            allowed = seen if window is None else seen & (places > positions[..., None] - window)
            masks[kind] = torch.where(allowed, self._zero, self._minus_infinity)[:, None]
        return masks

    def _folded(self, masks: dict[str | None, Tensor]) -> Tensor | dict[str, Tensor]:
        """Masks with their query rows repeated for each query group, named only if several."""
        if self._groups > 1:
            masks = {
                kind: mask if mask.shape[2] == 1 else torch.cat([mask] * self._groups, 2)
                for kind, mask in masks.items()
            }
        if None in masks:
            return masks[None]
        return {str(kind): mask for kind, mask in masks.items()}


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


def hung_on_chains(ancestors: NDArray[np.bool_], length: int) -> Tensor:
    """The ancestor mask of trees with masks [B, N, N], each hung on a chain of `length` tokens."""
    batch, width, _ = ancestors.shape
    hung = np.tile(np.tri(length + width, dtype=bool), (batch, 1, 1))
    hung[:, length:, length:] = ancestors
    return torch.from_numpy(hung)
