"""The slot cache on the host: which sequence holds which slot, and what its columns were made of.

Rejected tokens are never removed: the next prefix does not name them, so the columns they left are
written over. The keys and values themselves are in `slot_cache`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ...errors import ModelError
from ...types import trees
from ...types.records import Prefix
from ...types.trees import Parents
from .pending import DeviceTokens


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
        self._arrive()
        count = min(self.length, len(prefix))
        differs = self.tokens[:count] != prefix[:count]
        first = int(differs.argmax()) if count else 0
        if count and differs[first]:
            return first
        return count if self.branches is None else count + len(self._path(prefix))

    @property
    def extent(self) -> int:
        """How many columns hold something that a prefix may name."""
        self._arrive()
        return self.length + (0 if self.branches is None else len(self.branches))

    def _arrive(self) -> None:
        """Read what was still on the device."""
        if self.pending is None:
            return
        line = self.length
        tokens, parents = self.pending.read()
        self.record(line, tokens)
        if parents is not None:
            self.length, self.branches = line, parents

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

        For models that copy rows which are no run whole before each forward; a swap copies two,
        once. None is named where that takes many, nor for a part of live slots that lie in a run:
        they come together again.

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
