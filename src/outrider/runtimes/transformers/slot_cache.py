"""The slot cache on the device: keys and values of many sequences, each with a length of its own.

They are handed to a model as its cache. Which sequence holds which slot is known to `slots`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import Cache

from ...types.transfer import sent
from ..slots import Placement
from .attention_inputs import AttentionInputs

_STEP = 256
"""Columns that are added at once."""


@dataclass(frozen=True, slots=True)
class _BatchAim:
    """Which rows and columns of the cache a forward writes, and how much of them it reads.

    Attributes:
        inputs: what the forward sees.
        run: the slots as a slice, if they lie side by side in order.
        rows: the slots as an index, int64 [B].
        start: the first column that every row writes; None if they differ.
    """

    inputs: AttentionInputs
    run: slice | None
    rows: Tensor
    start: int | None


class SlotCache(Cache):
    """Keys and values of all slots and layers, as the cache that a transformers model writes to.

    Before each forward `aim` says what its rows are. The model's `update` calls then write there
    and read the span. Rows that lie side by side are read in place, others are copied together.

    Args:
        layers: keys and values of one token in each layer, [1, heads, 1, width].
        slots: how many there are.

    Attributes:
        stored: of each layer, keys [slots, heads, capacity, key width] and values [slots, heads,
            capacity, value width].
    """

    def __init__(self, layers: Sequence[tuple[Tensor, Tensor]], slots: int) -> None:
        super().__init__(layers=[])
        self._device = layers[0][0].device
        self._aim: _BatchAim | None = None
        self._read: tuple[slice | None, Sequence[Tensor]] = (None, ())
        self.stored: tuple[tuple[Tensor, Tensor], ...] = tuple(
            (keys[:, :, :0].repeat(slots, 1, 1, 1), values[:, :, :0].repeat(slots, 1, 1, 1))
            for keys, values in layers
        )

    @property
    def capacity(self) -> int:
        """Columns of each slot."""
        return int(self.stored[0][0].shape[2])

    def reserve(self, columns: int) -> None:
        """Make room for `columns` columns, in steps: some runtimes read all there are."""
        if columns <= self.capacity:
            return
        more = -(-columns // _STEP) * _STEP - self.capacity
        self.stored = tuple(
            (pad(keys, (0, 0, 0, more)), pad(values, (0, 0, 0, more)))
            for keys, values in self.stored
        )
        self._read = (None, ())

    def collect(self, placement: Placement) -> None:
        """Copy what a placement shares with another slot, and what it moves to one."""
        slot, shared, donor = placement.slot, placement.shared, placement.donor
        count = len(placement.evicted_tokens)
        if donor == slot and placement.evicted is None:
            return
        for stored in (each for layer in self.stored for each in layer):
            moved = stored[slot, :, :count].clone()
            if donor != slot:
                stored[slot, :, :shared] = stored[donor, :, :shared]
            if placement.evicted is not None:
                stored[placement.evicted, :, :count] = moved

    @torch.inference_mode()
    def clear(self, slots: Sequence[int], start: int = 0) -> None:
        """Zero some slots from a column on: NaN would spread even where its column is masked."""
        for slot in slots:
            for keys, values in self.stored:
                keys[slot, :, start:] = 0
                values[slot, :, start:] = 0

    def set_batch(
        self, slots: Sequence[int], starts: Sequence[int], inputs: AttentionInputs
    ) -> None:
        """Say what the next forward computes, from each row's slot and first column, and sees."""
        low, high = slots[0], slots[0] + len(slots)
        self._aim = _BatchAim(
            inputs,
            slice(low, high) if list(slots) == list(range(low, high)) else None,
            sent(torch.tensor(slots), self._device),
            starts[0] if min(starts) == max(starts) else None,
        )

    def gather(self) -> tuple[Sequence[Tensor], Tensor]:
        """Return what is stored for the rows of the next forward, and the columns it computes.

        Keys and values of each layer in turn, [B, heads, n, width] with n at least the span,
        the same object as long as they are read where they stand; and int64 [B, q].
        """
        aim = self._aim
        assert aim is not None, "a forward is aimed before it reads"
        stored = [each for layer in self.stored for each in layer]
        needed = -(-aim.inputs.span // _STEP) * _STEP
        # After a long text most columns are empty: copying the others takes less time.
        if aim.run is None or self.capacity > 2 * needed:
            copied = [each[:, :, :needed].index_select(0, aim.rows) for each in stored]
            return copied, aim.inputs.columns
        if self._read[0] != aim.run:
            self._read = aim.run, [each[aim.run] for each in stored]
        return self._read[1], aim.inputs.columns

    def write(self, new: Sequence[Tensor]) -> None:
        """Write what the forward computed: keys and values of each layer in turn, as `update`."""
        for stored, states in zip(
            (each for layer in self.stored for each in layer), new, strict=True
        ):
            self._write(stored, states)

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        layer_idx: int,
        *args: object,
        **kwargs: object,
    ) -> tuple[Tensor, Tensor]:
        """Write a layer's keys and values [B, heads, q, width], and return those of the span."""
        keys, values = self.stored[layer_idx]
        self._write(keys, key_states)
        self._write(values, value_states)
        dtype = key_states.dtype
        return self._span(keys).to(dtype), self._span(values).to(dtype)

    def _write(self, stored: Tensor, states: Tensor) -> None:
        aim = self._aim
        assert aim is not None, "a forward is aimed before it writes"
        if aim.run is not None and aim.start is not None:
            stored[aim.run, :, aim.start : aim.start + states.shape[2]] = states
        else:
            new = states.transpose(1, 2).to(stored.dtype)
            stored[aim.rows[:, None], :, aim.inputs.columns] = new

    def _span(self, stored: Tensor) -> Tensor:
        aim = self._aim
        assert aim is not None, "a forward is aimed before it reads"
        if aim.run is not None:
            return stored[aim.run, :, : aim.inputs.span]
        return stored[:, :, : aim.inputs.span].index_select(0, aim.rows)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Zero: positions are always given explicitly."""
        return 0

    def __len__(self) -> int:
        return len(self.stored)
