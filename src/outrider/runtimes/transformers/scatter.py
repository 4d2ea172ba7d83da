"""Writing to the slot cache where each row of a batch ends at a column of its own.

A device takes the places as an index. On a CPU finding them takes torch longer than the copy, for
every layer of every forward; a compiled loop finds them from where the rows begin.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...drafters.suffix.jit import COMPILES, compiled
from ...errors import ModelError

_BITS = {1: torch.uint8, 2: torch.int16}
"""What numbers too narrow for NumPy are copied as, by their bytes."""


class Scatter(Protocol):
    """Writes the keys and values of a batch, layer by layer, where it is aimed."""

    def aim(self, rows: Tensor, starts: Sequence[int], columns: Tensor) -> None:
        """Say where: the slots [B] and the columns [B, q] in a row from `starts`, one for each."""
        ...

    def __call__(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Write a layer's keys and values [B, heads, q, width]."""
        ...


def scatter_for(keys: Sequence[Tensor], values: Sequence[Tensor]) -> Scatter:
    """What writes to these keys and values [slots, heads, capacity, width] of each layer."""
    kind = HostScatter if COMPILES and keys[0].device.type == "cpu" else IndexScatter
    return kind(keys, values)


class IndexScatter:
    """By an index of the rows of heads.

    Args:
        keys, values: of each layer, [slots, heads, capacity, width].
    """

    def __init__(self, keys: Sequence[Tensor], values: Sequence[Tensor]) -> None:
        self._stored = [
            (one.view(-1, one.shape[3]), other.view(-1, other.shape[3]))
            for one, other in zip(keys, values, strict=True)
        ]
        self._capacity = keys[0].shape[2]
        counts = {stored.shape[1] for stored in keys}
        self._heads = {n: torch.arange(n, device=keys[0].device)[:, None] for n in counts}
        self._places: dict[int, Tensor] = {}

    def aim(self, rows: Tensor, starts: Sequence[int], columns: Tensor) -> None:
        """Say where; see `Scatter`."""
        slots, below = rows[:, None, None], columns[:, None]
        self._places = {
            heads: ((slots * heads + each) * self._capacity + below).flatten()
            for heads, each in self._heads.items()
        }

    def __call__(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Write a layer's keys and values [B, heads, q, width]."""
        places = self._places[keys.shape[1]]
        for stored, states in zip(self._stored[layer], (keys, values), strict=True):
            stored.index_copy_(0, places, states.to(stored.dtype).reshape(-1, states.shape[3]))


class HostScatter:
    """By a compiled loop, on the CPU; by an index where a forward is being traced.

    Args:
        keys, values: of each layer, [slots, heads, capacity, width].

    Attributes:
        dtype: of keys and values.
        capacity: columns of a slot.
        sizes: of each layer, its heads, and the widths of a key and a value.
        slots: of each row that was aimed at, its slot, [B].
        starts: and the first of its columns, [B].
        aimed: how many rows, and how many columns each has.

    Raises:
        ModelError: columns lie outside the slots, or a model gives other states than those of the
            rows and the length that were aimed at: the loop looks at no bounds.
    """

    def __init__(self, keys: Sequence[Tensor], values: Sequence[Tensor]) -> None:
        self.dtype = keys[0].dtype
        self._bits = _BITS.get(self.dtype.itemsize)
        self.capacity = keys[0].shape[2]
        self.sizes = [
            (one.shape[1], one.shape[3], other.shape[3])
            for one, other in zip(keys, values, strict=True)
        ]
        self._index = IndexScatter(keys, values)
        self._keys = [self._rows(stored) for stored in keys]
        self._values = [self._rows(stored) for stored in values]
        self.aim(torch.empty(0, dtype=torch.int64), (), torch.empty(0, 1, dtype=torch.int64))
        # Of no row: compiled code is made, or fetched, before a round needs it.
        self(0, keys[0][:0, :, :1], values[0][:0, :, :1])

    def aim(self, rows: Tensor, starts: Sequence[int], columns: Tensor) -> None:
        """Say where; see `Scatter`."""
        length = columns.shape[1]
        if min(starts, default=0) < 0 or max(starts, default=0) + length > self.capacity:
            raise ModelError(
                f"columns {list(starts)} and the {length - 1} after each are to be written; "
                f"expected them in 0..{self.capacity - 1}"
            )
        self._given = rows, starts, columns
        self.aimed = len(starts), length
        self.slots, self.starts = rows.numpy(), np.array(starts, dtype=np.int64)

    def __call__(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Write a layer's keys and values [B, heads, q, width]."""
        if torch.compiler.is_compiling():
            self._index.aim(*self._given)
            self._index(layer, keys, values)
            return
        heads, key_width, value_width = self.sizes[layer]
        rows, length = self.aimed
        expected = (rows, heads, length, key_width), (rows, heads, length, value_width)
        if keys.shape != expected[0] or values.shape != expected[1]:
            raise ModelError(
                f"layer {layer} gave keys of shape {tuple(keys.shape)} and values of shape "
                f"{tuple(values.shape)}; expected {expected[0]} and {expected[1]}: the model was "
                "changed since it was wrapped; wrap it in a new TransformersModel"
            )
        _write(
            self._keys[layer],
            self._values[layer],
            self._rows(keys),
            self._rows(values),
            self.slots,
            self.starts,
            heads,
            self.capacity,
            length,
        )

    def stored(self, layer: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """A layer's keys and values as rows [slots * heads * capacity, width], to be written to."""
        return self._keys[layer], self._values[layer]

    def _rows(self, states: Tensor) -> NDArray[Any]:
        """Numbers [..., width] as rows [n, width] for NumPy; the same memory if they lie so."""
        if states.dtype != self.dtype:
            states = states.to(self.dtype)
        if self._bits is not None:
            states = states.view(self._bits)
        return states.contiguous().numpy().reshape(-1, states.shape[-1])


@compiled
def _write(
    keys: NDArray[Any],
    values: NDArray[Any],
    new_keys: NDArray[Any],
    new_values: NDArray[Any],
    slots: NDArray[np.int64],
    starts: NDArray[np.int64],
    heads: int,
    capacity: int,
    length: int,
) -> None:
    """Copy rows [B * heads * length, width] to that many columns of their slots from `starts`."""
    row = 0
    for i in range(len(slots)):
        for head in range(heads):
            place = (slots[i] * heads + head) * capacity + starts[i]
            for _ in range(length):
                for j in range(keys.shape[1]):
                    keys[place, j] = new_keys[row, j]
                for j in range(values.shape[1]):
                    values[place, j] = new_values[row, j]
                row += 1
                place += 1
