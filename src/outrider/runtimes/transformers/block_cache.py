"""Blocks of keys and values as the cache of a transformers model, and what its forwards see.

Flat batches become rows here: what the sequences have missed ends in one column, their drafts begin
in the next. Earlier keys and values are gathered from their blocks, in every layer: this is the way
for any architecture, not the fast one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import Cache

from ...types.transfer import sent
from ..blocks import SIZE, BlockCopy
from ..flat import FlatBatch, rows_of, slots

Windows = Sequence[tuple[str | None, int | None]]
"""Of each kind of mask that a model wants, the sliding window; see `Architecture.windows`."""


@dataclass(frozen=True, slots=True)
class Grid:
    """A flat batch as rows of q columns.

    Attributes:
        rows, columns: where each token stands, int64 [T].
        tokens, positions: int64 [B, q].
        tables: numbers of blocks, int64 [B, n].
        targets: the place among all tokens of all blocks that each token is written to, int64 [T].
        real: whether a column has a token, bool [B, q, 1].
        seen: which earlier and new places each column sees, bool [B, q, n * size].
        unseen: those that none with a token does, bool [B, n * size, 1, 1].
        places: the positions of these, int64 [B, 1, n * size].
    """

    rows: Tensor
    columns: Tensor
    tokens: Tensor
    positions: Tensor
    tables: Tensor
    targets: Tensor
    real: Tensor
    seen: Tensor
    unseen: Tensor
    places: Tensor

    @staticmethod
    def of(batch: FlatBatch) -> Grid:
        """Lay a flat batch out."""
        device = batch.tokens.device
        counts, places = batch.missing + batch.drafted, batch.places
        boundary = int(batch.missing.max())
        row, _ = rows_of(counts)
        column = places - batch.past[row] + (boundary - batch.missing)[row]
        width, tables = int(column.max()) + 1, batch.table
        targets, blocks = slots(tables, row, places), tables.shape[1]
        rows, columns = sent(row, device), sent(column, device)
        grid = batch.tokens.new_zeros(2, len(counts), width)
        grid[0, rows, columns], grid[1, rows, columns] = batch.tokens, batch.positions
        # A column's own place is the number of tokens before it, in trees as well.
        first = batch.past + batch.missing - boundary
        start = sent(first, device)[:, None, None]
        own = (start + torch.arange(width, device=device)[:, None]).clamp(min=0)
        drafts = width - boundary
        reach = torch.arange(blocks * SIZE + drafts, device=device)
        seen, at = reach <= own, reach.expand(len(counts), 1, -1)
        if batch.ancestors is not None:
            nodes = start + boundary + torch.arange(drafts, device=device)
            seen[:, boundary:] = reach < start + boundary
            trees = batch.ancestors[:, :drafts, :drafts]
            seen[:, boundary:].scatter_(2, nodes.expand(-1, drafts, -1), trees)
            at = at.clone().scatter_(2, nodes, grid[1, :, None, boundary:])
        seen, at = seen[..., : blocks * SIZE], at[..., : blocks * SIZE]
        whole = sent(tables, device), sent(targets, device)
        real = torch.zeros_like(seen[..., :1])
        real[rows, columns] = True
        unseen = ~(seen & real).any(1)[..., None, None]
        return Grid(rows, columns, grid[0], grid[1], *whole, real, seen, unseen, at)

    def masks(self, windows: Windows, dtype: torch.dtype) -> Tensor | dict[str | None, Tensor]:
        """Make the additive masks [B, 1, q, n * size], by kind where a model wants several."""
        zero = torch.zeros((), dtype=dtype, device=self.seen.device)
        made: dict[str | None, Tensor] = {}
        for kind, window in windows:
            seen = self.seen
            if window is not None:
                seen = seen & (self.places > self.positions[..., None] - window)
            made[kind] = torch.where(seen, zero, -torch.inf)[:, None]
        return made.get(None, made)


def block_bytes(layers: Sequence[Sequence[Tensor]]) -> int:
    """Return the bytes of one block in all layers; see `BlockCache`."""
    return SIZE * sum(part.nbytes for layer in layers for part in layer)


class BlockCache(Cache):
    """Keys and values of all blocks and layers, as the cache that a transformers model writes to.

    Before each forward `set_batch` says what its rows are. The model's `update` calls then write to
    the blocks and read them.

    Args:
        layers: of each layer keys and values of one token, [1, heads, 1, width], if it has any.
        blocks: how many there are.

    Attributes:
        stored: of each layer, keys and values [blocks, size, heads, width].
    """

    def __init__(self, layers: Sequence[Sequence[Tensor]], blocks: int) -> None:
        super().__init__(layers=[])
        self._grid: Grid | None = None
        self.stored = [[_zeros(part, blocks) for part in layer] for layer in layers]

    def set_batch(self, grid: Grid, batch: FlatBatch) -> None:
        """Say what the next forward computes."""
        del batch
        self._grid = grid

    @torch.inference_mode()
    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """Copy the first tokens of blocks."""
        for copy in copies:
            for stored in (each for layer in self.stored for each in layer):
                stored[copy.target, : copy.tokens] = stored[copy.source, : copy.tokens]

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        layer_idx: int,
        *args: object,
        **kwargs: object,
    ) -> tuple[Tensor, Tensor]:
        """Write a layer's keys and values [B, heads, q, width], and return those of the rows."""
        keys, values = self.stored[layer_idx]
        return self._written(keys, key_states), self._written(values, value_states)

    def _written(self, stored: Tensor, states: Tensor) -> Tensor:
        grid = self._grid
        assert grid is not None, "a forward is set up before it writes"
        new = states.transpose(1, 2)[grid.rows, grid.columns]
        stored.flatten(0, 1)[grid.targets] = new.to(stored.dtype)
        # What others left there may be NaN, and zero times NaN is NaN.
        gathered = stored[grid.tables].flatten(1, 2).masked_fill_(grid.unseen, 0)
        return gathered.transpose(1, 2).to(states.dtype)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Zero: positions are always given explicitly."""
        return 0

    def __len__(self) -> int:
        return len(self.stored)


def _zeros(like: Tensor, blocks: int) -> Tensor:
    """Zeros [blocks, size, heads, width]; on the host memory is taken as it is written to."""
    shape = blocks, SIZE, like.shape[1], like.shape[3]
    if like.device.type != "cpu":
        return torch.zeros(shape, dtype=like.dtype, device=like.device)
    count = int(np.prod(shape)) * like.element_size()
    return torch.from_numpy(np.zeros(count, dtype=np.uint8)).view(like.dtype).view(shape)
