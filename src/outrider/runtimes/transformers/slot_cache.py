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
from .slots import Placement


@dataclass(frozen=True, slots=True)
class LayerShape:
    """The shape of one layer's cache: heads, and the width of a key and of a value."""

    heads: int
    key_width: int
    value_width: int


@dataclass(frozen=True, slots=True)
class _Aim:
    """Which rows and columns of the cache a forward writes, and how much of them it reads.

    Attributes:
        span: how many columns are read.
        run: the slots as a slice, if they lie side by side in order.
        rows: the slots as an index, int64 [B].
        start: the first column that every row writes; None if they differ.
        columns: int64 [B, q], those that are written.
    """

    span: int
    run: slice | None
    rows: Tensor
    start: int | None
    columns: Tensor


class SlotCache(Cache):
    """Keys and values of all slots and layers, as the cache that a transformers model writes to.

    Before each forward `aim` says which slots the rows of the batch are and which columns they
    compute. The model's `update` calls then write there and read the span. Rows that lie side by
    side are read in place, others are copied together.

    Args:
        shapes: of each layer.
        slots: how many there are.
        dtype: of keys and values.
        device: where they live.

    Attributes:
        stored: of each layer, keys [slots, heads, capacity, key width] and values [slots, heads,
            capacity, value width].
    """

    def __init__(
        self, shapes: Sequence[LayerShape], slots: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(layers=[])
        self._device = device
        self._aim: _Aim | None = None
        self.stored: tuple[tuple[Tensor, Tensor], ...] = tuple(
            (
                torch.zeros(slots, shape.heads, 0, shape.key_width, dtype=dtype, device=device),
                torch.zeros(slots, shape.heads, 0, shape.value_width, dtype=dtype, device=device),
            )
            for shape in shapes
        )

    @property
    def capacity(self) -> int:
        """Columns of each slot."""
        return int(self.stored[0][0].shape[2])

    def reserve(self, columns: int) -> None:
        """Make room for `columns` columns: the capacity doubles, rounded up to 64."""
        if columns <= self.capacity:
            return
        capacity = -(-max(columns, 2 * self.capacity) // 64) * 64

        def grown(old: Tensor) -> Tensor:
            slots, heads, used, width = old.shape
            new = old.new_zeros(slots, heads, capacity, width)
            new[:, :, :used] = old
            return new

        self.stored = tuple((grown(keys), grown(values)) for keys, values in self.stored)

    def collect(self, placement: Placement) -> None:
        """Copy the columns that a placement counts as shared to where they belong."""
        line, donor, slot = placement.line, placement.donor, placement.slot
        columns = sent(torch.tensor(placement.strays, dtype=torch.int64), self._device)
        for layer in self.stored:
            for stored in layer:
                if donor != slot:
                    stored[slot, :, :line] = stored[donor, :, :line]
                if placement.strays:
                    moved = stored[donor].index_select(1, columns)
                    stored[slot, :, line : placement.shared] = moved

    @torch.inference_mode()
    def clear(self, slots: Sequence[int]) -> None:
        """Zero some slots: a NaN in a column would spread even where the column is masked."""
        for slot in slots:
            for keys, values in self.stored:
                keys[slot] = 0
                values[slot] = 0

    def aim(self, slots: Sequence[int], starts: Sequence[int], columns: Tensor, span: int) -> None:
        """Say what the next forward computes and sees.

        Args:
            slots: of each row of the batch.
            starts: the first column that each row computes.
            columns: all that are computed, int64 [B, q], on the device.
            span: how many columns are read, the computed ones included.
        """
        low, high = slots[0], slots[0] + len(slots)
        self._aim = _Aim(
            span,
            slice(low, high) if list(slots) == list(range(low, high)) else None,
            sent(torch.tensor(slots), self._device),
            starts[0] if min(starts) == max(starts) else None,
            columns,
        )

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        layer_idx: int,
        *args: object,
        **kwargs: object,
    ) -> tuple[Tensor, Tensor]:
        """Write a layer's keys and values [B, heads, q, width], and return those of the span."""
        assert self._aim is not None, "a forward is aimed before it writes"
        keys, values = self.stored[layer_idx]
        return self._write(keys, key_states), self._write(values, value_states)

    def _write(self, stored: Tensor, states: Tensor) -> Tensor:
        aim = self._aim
        assert aim is not None
        if aim.run is not None and aim.start is not None:
            stored[aim.run, :, aim.start : aim.start + states.shape[2]] = states
        else:
            new = states.transpose(1, 2).to(stored.dtype)
            stored[aim.rows[:, None], :, aim.columns] = new
        if aim.run is not None:
            return stored[aim.run, :, : aim.span]
        return stored[:, :, : aim.span].index_select(0, aim.rows)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Zero: positions are always given explicitly."""
        return 0

    def __len__(self) -> int:
        return len(self.stored)
