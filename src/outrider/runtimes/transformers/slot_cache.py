"""The slot cache on the device: keys and values of many sequences, each with a length of its own.

They are handed to a model as its cache. Which sequence holds which slot is known to `slots`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import Cache

from ...types.transfer import sent
from .scatter import HostScatter, Scatter, scatter_for
from .slots import Placement


@dataclass(frozen=True, slots=True)
class LayerShape:
    """The shape of one layer's cache: heads, and the width of a key and of a value."""

    heads: int
    key_width: int
    value_width: int


_Views = tuple[Sequence[Tensor], Sequence[Tensor]]
"""The keys and the values of each layer, or parts of them."""


@dataclass(frozen=True, slots=True)
class _Group:
    """Layers of one shape, stacked: keys and values [layers, slots, heads, capacity, width]."""

    layers: tuple[int, ...]
    keys: Tensor
    values: Tensor


@dataclass(frozen=True, slots=True)
class Span:
    """What a layer of a forward reads.

    Attributes:
        keys, values: [S, heads, span, width].
        rows: which of the S each of the batch's B rows reads, int64 [B]; None if they are the same.
    """

    keys: Tensor
    values: Tensor
    rows: Tensor | None = None

    def gathered(self) -> tuple[Tensor, Tensor]:
        """Keys and values of the batch's rows alone, [B, heads, span, width]: copied if need be."""
        if self.rows is None:
            return self.keys, self.values
        return self.keys.index_select(0, self.rows), self.values.index_select(0, self.rows)


class SlotCache(Cache):
    """Keys and values of all slots and layers, as the cache a transformers model writes to.

    Before each forward `aim` says which rows the batch is and which columns it computes; the
    model's `update` calls then write there and read the span. Layers of one shape are stacked, so
    that the views of all of them come from one call; a read that repeats the last one's rows and
    span, as most do, keeps its views.

    Args:
        shapes: of each layer.
        slots: number of rows.
        dtype: of keys and values.
        device: where they live.
    """

    def __init__(
        self, shapes: Sequence[LayerShape], slots: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(layers=[])
        self.capacity = 0
        self._count = len(shapes)
        self._device = device
        self._groups = [
            _Group(
                tuple(i for i, other in enumerate(shapes) if other == shape),
                torch.zeros(0, slots, shape.heads, 0, shape.key_width, dtype=dtype, device=device),
                torch.zeros(
                    0, slots, shape.heads, 0, shape.value_width, dtype=dtype, device=device
                ),
            )
            for shape in dict.fromkeys(shapes)
        ]
        nothing = (torch.empty(0),) * self._count
        self._all: _Views = (nothing, nothing)
        self._write: _Views | None = None
        self._columns = (0, 0, 0, 0)
        self._read: _Views = (nothing, nothing)
        self._read_window: tuple[int, int, int] | None = None
        self._scatter: Scatter | None = None
        self._apart = False
        self._gather: tuple[Tensor, int] | None = None
        self._index: tuple[tuple[int, ...], Tensor] | None = None

    @property
    def slots(self) -> int:
        """Number of rows."""
        return int(self._groups[0].keys.shape[1])

    def whole(self, slot: int) -> _Views:
        """Each layer's keys and values [1, heads, capacity, width] of one row."""
        return self._views(self._groups, slot, slot + 1, 0, self.capacity)

    def reserve(self, columns: int) -> None:
        """Make room for `columns` columns: the capacity doubles, rounded to 64."""
        if columns <= self.capacity:
            return
        capacity = -(-max(columns, 2 * self.capacity) // 64) * 64

        def grown(old: Tensor, layers: int) -> Tensor:
            _, slots, heads, used, width = old.shape
            new = old.new_zeros(layers, slots, heads, capacity, width)
            if used:
                new[..., :used, :] = old
            return new

        groups = [
            _Group(g.layers, grown(g.keys, len(g.layers)), grown(g.values, len(g.layers)))
            for g in self._groups
        ]
        whole = self._views(groups, 0, self.slots, 0, capacity)
        scatter = scatter_for(*whole)
        # All of it or nothing: what is written must be what is read.
        self._groups, self._all, self._scatter, self.capacity = groups, whole, scatter, capacity
        self._read_window = None

    def copy(self, donor: int, slot: int, columns: int) -> None:
        """Copy the first `columns` columns of one slot to another, in every layer."""
        for group in self._groups:
            for stored in (group.keys, group.values):
                stored[:, slot, :, :columns] = stored[:, donor, :, :columns]

    def swap(self, slot: int, other: int, columns: int, others: int) -> None:
        """Exchange the first columns of two slots, so many of each, in every layer.

        What else was in them is zeroed: a NaN left there would spread through a mask to whoever
        reads that far.
        """
        for group in self._groups:
            for stored in (group.keys, group.values):
                kept = stored[:, other, :, :others].clone()
                stored[:, other, :, :columns] = stored[:, slot, :, :columns]
                stored[:, slot, :, :others] = kept
                stored[:, slot, :, others:] = 0
                stored[:, other, :, columns:] = 0

    def collect(self, placement: Placement) -> None:
        """Bring the columns that a placement counts as shared to where they belong."""
        if placement.donor is not None:
            self.copy(placement.donor, placement.slot, placement.shared - len(placement.strays))
        if placement.strays:
            source = placement.slot if placement.donor is None else placement.donor
            columns = sent(torch.tensor(placement.strays), self._device)
            first = placement.shared - len(placement.strays)
            for group in self._groups:
                for stored in (group.keys, group.values):
                    moved = stored[:, source].index_select(2, columns)
                    stored[:, placement.slot, :, first : placement.shared] = moved

    @torch.inference_mode()
    def clear(self, slot: int) -> None:
        """Zero a slot: a NaN in a column would spread even where the column is masked."""
        for group in self._groups:
            group.keys[:, slot] = 0
            group.values[:, slot] = 0

    def aim(
        self,
        slots: Sequence[int],
        starts: Sequence[int],
        length: int,
        span: int,
        columns: Tensor,
    ) -> None:
        """Say what the next forward computes and sees.

        Args:
            slots: the row of each sequence of the batch, in its order.
            starts: the first column each computes.
            length: how many columns each computes.
            span: how many columns are read, the computed ones included.
            columns: those computed, int64 [B, length], on the device.
        """
        low, high, start = slots[0], slots[0] + len(slots), starts[0]
        run = slots == list(range(low, high))
        self._gather = None
        self._apart = not run or any(other != start for other in starts)
        if self._apart or isinstance(self._scatter, HostScatter):
            assert self._scatter is not None, "room is made before a forward is aimed"
            self._scatter.aim(self._row_index(slots), starts, columns)
        self._write, self._columns = None, (low, high, start, start + length)
        if not run:
            self._gather = self._row_index(slots), span
        elif self._read_window != (low, high, span):
            self._read = self._views(self._groups, low, high, 0, span)
            self._read_window = low, high, span

    def _row_index(self, slots: Sequence[int]) -> Tensor:
        """The rows as an index on the device, that of the last batch if they are the same."""
        if self._index is None or self._index[0] != tuple(slots):
            self._index = tuple(slots), sent(torch.tensor(slots), self._device)
        return self._index[1]

    def _views(self, groups: Sequence[_Group], low: int, high: int, start: int, end: int) -> _Views:
        """Each layer's keys and values in rows low..high and columns start..end."""
        if len(groups) == 1:
            (group,) = groups
            keys = group.keys[:, low:high, :, start:end].unbind(0)
            return keys, group.values[:, low:high, :, start:end].unbind(0)
        views: dict[int, tuple[Tensor, Tensor]] = {}
        for group in groups:
            some_keys = group.keys[:, low:high, :, start:end].unbind(0)
            some_values = group.values[:, low:high, :, start:end].unbind(0)
            views |= zip(group.layers, zip(some_keys, some_values, strict=True), strict=True)
        ordered = [views[layer] for layer in range(self._count)]
        return [keys for keys, _ in ordered], [values for _, values in ordered]

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        layer_idx: int,
        *args: object,
        **kwargs: object,
    ) -> tuple[Tensor, Tensor]:
        """Write a layer's keys and values [B, heads, length, width], and return the span's."""
        self.write(key_states, value_states, layer_idx)
        return self.span(layer_idx).gathered()

    def write(self, key_states: Tensor, value_states: Tensor, layer_idx: int) -> None:
        """Write a layer's keys and values [B, heads, length, width] where the cache is aimed."""
        if self._apart:
            assert self._scatter is not None, "a forward is aimed before it writes"
            self._scatter(layer_idx, key_states, value_states)
        else:
            if self._write is None:
                self._write = self._views(self._groups, *self._columns)
            self._write[0][layer_idx].copy_(key_states)
            self._write[1][layer_idx].copy_(value_states)

    @property
    def host(self) -> HostScatter | None:
        """What writes where the next forward computes by loops, aimed; None on other devices."""
        return self._scatter if isinstance(self._scatter, HostScatter) else None

    def span(self, layer: int) -> Span:
        """What the forward reads of a layer."""
        if self._gather is None:
            return Span(self._read[0][layer], self._read[1][layer])
        slots, span = self._gather
        keys, values = (each[layer][:, :, :span] for each in self._all)
        return Span(keys, values, slots)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Zero: positions are always given explicitly."""
        return 0

    def __len__(self) -> int:
        return self._count
