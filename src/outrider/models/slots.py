"""The slot cache: keys and values of many sequences, each row with a length of its own.

`SlotTable` is the host's half: which sequence holds which slot, and which tokens a slot's columns
were computed from. `SlotCache` is the device's half: the keys and values themselves, handed to a
model as its cache. Rejected tokens are never removed: the next prefix does not name them, so the
columns they left are written over.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import Cache

from .. import trees
from ..errors import ModelError
from ..records import Prefix
from ..trees import Parents
from .pending import DeviceTokens
from .transfer import sent


@dataclass(slots=True)
class Slot:
    """One row of the cache: columns 0..length-1 were computed from `tokens[:length]`, a line.

    The columns after those were computed from `pending`, tokens that were still on the device then:
    their values are asked for when the next prefix is compared. If they are a tree, they are kept
    as one, `branches` [N], in the columns after the line, until a prefix names one of its paths.
    """

    tokens: NDArray[np.int64] = field(default_factory=lambda: np.empty(64, dtype=np.int64))
    length: int = 0
    sequence_id: int | None = None
    last_used: int = 0
    pending: DeviceTokens | None = None
    branches: Parents | None = None

    def shared(self, prefix: NDArray[np.int64]) -> int:
        """How many leading tokens of `prefix` this slot's columns hold, be it along its tree."""
        if self.pending is not None:
            line = self.length
            tokens, parents = self.pending.read()
            self.record(line, tokens)
            if parents is not None:
                self.length, self.branches = line, parents
        count = min(self.length, len(prefix))
        differs = self.tokens[:count] != prefix[:count]
        first = int(differs.argmax()) if count else 0
        if count and differs[first]:
            return first
        return count if self.branches is None else count + len(self._path(prefix))

    def strays(self, prefix: NDArray[np.int64]) -> tuple[int, ...]:
        """The columns of the last tokens of `prefix`, all shared, that are out of their place.

        None are where the path that the prefix takes lies in a line.
        """
        path = self._path(prefix)
        placed = 0
        while placed < len(path) and path[placed] == self.length + placed:
            placed += 1
        return tuple(path[placed:])

    def _path(self, prefix: NDArray[np.int64]) -> list[int]:
        """The columns of the tree that hold what `prefix` has after the line, as far as they go."""
        if self.branches is None:
            return []
        wanted = prefix[self.length :].tolist()
        parents = self.branches.tolist()
        tokens = self.tokens[self.length : self.length + len(parents)].tolist()
        reached = {0: 0}
        furthest = 0
        for node, (token, parent) in enumerate(zip(tokens, parents, strict=True), 1):
            above = reached.get(parent, len(wanted))
            if above < len(wanted) and token == wanted[above]:
                reached[node] = above + 1
                if reached[node] > reached[furthest]:
                    furthest = node
        return [self.length + node - 1 for node in trees.path(parents, furthest)]

    def record(self, start: int, tokens: NDArray[np.int64]) -> None:
        """Columns from `start` now hold `tokens`; what was known beyond them is forgotten."""
        end = start + len(tokens)
        if end > len(self.tokens):
            grown = np.empty(max(end, 2 * len(self.tokens)), dtype=np.int64)
            grown[:start] = self.tokens[:start]
            self.tokens = grown
        self.tokens[start:end] = tokens
        self.length = end
        self.pending = self.branches = None

    def keep(self, prefix: NDArray[np.int64]) -> None:
        """The columns now hold `prefix`, all shared, in a line, and nothing more."""
        if self.branches is not None:
            self.record(min(self.length, len(prefix)), prefix[self.length :])
        self.length = len(prefix)


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a sequence lives: its slot, how much of its prefix is there, and what to copy first.

    Attributes:
        slot: its row of the cache.
        shared: how many leading tokens of its prefix need not be computed.
        donor: the slot that they are to be copied from; None if they are here already.
        strays: where the last of them stand in the donor, or here, if not in their place: they are
            to be moved to the columns before `shared`.
    """

    slot: int
    shared: int
    donor: int | None = None
    strays: tuple[int, ...] = ()


class SlotTable:
    """Which sequence holds which slot. A live slot is never taken from its sequence.

    Invariants, checked by `check_integrity`: `owner` maps each live sequence to the one slot that
    carries its id, and every other slot is idle.
    """

    def __init__(self, count: int) -> None:
        self.slots = [Slot() for _ in range(count)]
        self.owner: dict[int, int] = {}
        self._clock = 0

    def place(self, prefix: Prefix) -> Placement:
        """The slot of a sequence, an idle one if it is new, with its columns cut to what is shared.

        All but the last token of the prefix may count as shared: its logits are always computed.

        Raises:
            ModelError: the sequence is new and every slot is live.
        """
        self._clock += 1
        known = prefix.tokens[:-1]
        index = self.owner.get(prefix.sequence_id)
        if index is not None:
            slot = self.slots[index]
            known = known[: slot.shared(known)]
            strays = slot.strays(known)
            slot.keep(known)
            slot.last_used = self._clock
            return Placement(index, slot.length, None, strays)
        idle = [i for i, slot in enumerate(self.slots) if slot.sequence_id is None]
        if not idle:
            raise ModelError(
                f"sequence {prefix.sequence_id} is new and all {len(self.slots)} slots are live; "
                "release a finished sequence first, or raise max_sequences"
            )
        shared = [slot.shared(known) for slot in self.slots]
        longest = max(shared)
        donor: int | None = None
        # Empty ones in their order, so that the rows of a batch lie side by side and need no copy.
        empty = [i for i in idle if not self.slots[i].length]
        oldest = empty[0] if empty else min(idle, key=lambda i: self.slots[i].last_used)
        # An idle slot is taken over for what it shares, unless that would lose more than it keeps:
        # a long text that shares its first word is copied from, and stays for its own kind.
        kept = [i for i in idle if shared[i] == longest and 2 * longest >= self.slots[i].length]
        index = kept[0] if kept else oldest
        slot = self.slots[index]
        known = known[:longest]
        if longest == 0 or shared[index] == longest:
            strays = slot.strays(known)
            slot.keep(known)
        else:
            donor = shared.index(longest)
            strays = self.slots[donor].strays(known)
            slot.record(0, known)
        slot.sequence_id, slot.last_used = prefix.sequence_id, self._clock
        self.owner[prefix.sequence_id] = index
        return Placement(index, longest, donor, strays)

    def side_by_side(self, rows: Sequence[int]) -> list[tuple[int, int]]:
        """Which slots of a batch to swap with idle ones so that they lie in a run.

        Rows that are no run are copied whole before each forward, and a swap copies two rows, once.
        None is named where that takes many, nor for a part of live slots that lie in a run: they
        come together again.

        Args:
            rows: the slots of the batch, live.

        Returns:
            Pairs of a live slot and an idle one.
        """
        count, ours = len(rows), set(rows)
        live = set(self.owner.values())
        if _is_run(ours) or (ours < live and _is_run(live)):
            return []
        fewest: tuple[list[int], list[int]] | None = None
        for low in range(len(self.slots) - count + 1):
            window = range(low, low + count)
            others = [slot for slot in window if slot not in ours]
            if live.isdisjoint(others) and (fewest is None or len(others) < len(fewest[1])):
                fewest = [slot for slot in rows if slot not in window], others
        if fewest is None or 2 * len(fewest[1]) >= count:
            return []
        return list(zip(*fewest, strict=True))

    def swap(self, slot: int, other: int) -> None:
        """Exchange what is known of a live slot and an idle one."""
        self.slots[slot], self.slots[other] = self.slots[other], self.slots[slot]
        moved = self.slots[other].sequence_id
        assert moved is not None, "one of the two is live"
        self.owner[moved] = other

    def settle(self, sequence_id: int, tokens: NDArray[np.int64], after: DeviceTokens) -> None:
        """A sequence's columns now hold its prefix, then tokens that are still on the device."""
        slot = self.slots[self.owner[sequence_id]]
        slot.record(slot.length, tokens[slot.length :])
        slot.pending = after

    def release(self, sequence_ids: Iterable[int]) -> list[int]:
        """Make the slots of these sequences idle, and name them.

        Their columns stay, for prefixes to share.
        """
        indices = [self.owner.pop(i) for i in sequence_ids if i in self.owner]
        for index in indices:
            self.slots[index].sequence_id = None
        return indices

    def check_integrity(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        live = {s.sequence_id: i for i, s in enumerate(self.slots) if s.sequence_id is not None}
        assert live == self.owner, f"slots say {live}, owners say {self.owner}"


def _is_run(slots: set[int]) -> bool:
    return max(slots) - min(slots) == len(slots) - 1


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


class SlotCache(Cache):  # type: ignore[misc]  # transformers is untyped
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
        self._write: _Views = (nothing, nothing)
        self._read: _Views = (nothing, nothing)
        self._read_window: tuple[int, int, int] | None = None
        self._scatter: dict[int, Tensor] | None = None
        self._gather: tuple[Tensor, int] | None = None
        self._index: tuple[tuple[int, ...], Tensor] | None = None
        self._heads = {s.heads: torch.arange(s.heads, device=device)[:, None] for s in shapes}

    @property
    def slots(self) -> int:
        """Number of rows."""
        return int(self._groups[0].keys.shape[1])

    def whole(self, slot: int) -> _Views:
        """Each layer's keys and values [1, heads, capacity, width] of one row."""
        return self._views(slot, slot + 1, 0, self.capacity)

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

        self._groups = [
            _Group(g.layers, grown(g.keys, len(g.layers)), grown(g.values, len(g.layers)))
            for g in self._groups
        ]
        self.capacity = capacity
        self._read_window = None
        self._all = self._views(0, self.slots, 0, capacity)

    def copy(self, donor: int, slot: int, columns: int) -> None:
        """Copy the first `columns` columns of one slot to another, in every layer."""
        for group in self._groups:
            for stored in (group.keys, group.values):
                stored[:, slot, :, :columns] = stored[:, donor, :, :columns]

    def swap(self, slot: int, other: int) -> None:
        """Exchange the columns of two slots, in every layer."""
        for group in self._groups:
            for stored in (group.keys, group.values):
                kept = stored[:, other].clone()
                stored[:, other] = stored[:, slot]
                stored[:, slot] = kept

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
        self._scatter = self._gather = None
        if run and (len(starts) == 1 or all(other == start for other in starts)):
            self._write = self._views(low, high, start, start + length)
        else:
            rows, below = self._row_index(slots)[:, None, None], columns[:, None]
            self._scatter = {
                heads: ((rows * heads + each) * self.capacity + below).flatten()
                for heads, each in self._heads.items()
            }
        if not run:
            self._gather = self._row_index(slots), span
        elif self._read_window != (low, high, span):
            self._read = self._views(low, high, 0, span)
            self._read_window = low, high, span

    def _row_index(self, slots: Sequence[int]) -> Tensor:
        """The rows as an index on the device, that of the last batch if they are the same."""
        if self._index is None or self._index[0] != tuple(slots):
            self._index = tuple(slots), sent(torch.tensor(slots), self._device)
        return self._index[1]

    def _views(self, low: int, high: int, start: int, end: int) -> _Views:
        """Each layer's keys and values in rows low..high and columns start..end."""
        keys, values = list(self._all[0]), list(self._all[1])
        for group in self._groups:
            some_keys = group.keys[:, low:high, :, start:end].unbind(0)
            some_values = group.values[:, low:high, :, start:end].unbind(0)
            if len(self._groups) == 1:
                return some_keys, some_values
            for layer, *views in zip(group.layers, some_keys, some_values, strict=True):
                keys[layer], values[layer] = views
        return keys, values

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        layer_idx: int,
        *args: object,  # noqa: ARG002
        **kwargs: object,  # noqa: ARG002
    ) -> tuple[Tensor, Tensor]:
        """Write a layer's keys and values [B, heads, length, width], and return the span's."""
        if self._scatter is None:
            self._write[0][layer_idx].copy_(key_states)
            self._write[1][layer_idx].copy_(value_states)
        else:
            places = self._scatter[key_states.shape[1]]
            for stored, states in zip(self._all, (key_states, value_states), strict=True):
                flat = stored[layer_idx].view(-1, states.shape[3])
                flat.index_copy_(0, places, states.reshape(-1, states.shape[3]))
        if self._gather is None:
            return self._read[0][layer_idx], self._read[1][layer_idx]
        slots, span = self._gather
        keys, values = (each[layer_idx][:, :, :span].index_select(0, slots) for each in self._all)
        return keys, values

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002
        """Zero: positions are always given explicitly."""
        return 0

    def __len__(self) -> int:
        return self._count
