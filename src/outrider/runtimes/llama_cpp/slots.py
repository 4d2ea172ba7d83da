"""Which sequence has which of llama.cpp's sequences, here slots, and what their cells hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from ...errors import ModelError
from ...types.records import Prefix
from ..blocks import Tokens, common

_NONE: Tokens = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """One of llama.cpp's sequences.

    Attributes:
        tokens: its first cells were computed from these, in a chain.
        sequence_id: whose it is; None if it is idle, and may be taken over.
        last_used: a count of placements, to tell which slot was used longest ago.
    """

    tokens: Tokens = field(default_factory=lambda: _NONE)
    sequence_id: int | None = None
    last_used: int = 0

    @property
    def length(self) -> int:
        """How many cells hold something that a prefix may name."""
        return len(self.tokens)

    def shared(self, prefix: Tokens) -> int:
        """Find how many leading tokens of `prefix` the cells hold."""
        return common(self.tokens, prefix)


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a sequence lives, how much of its prefix is computed, and what to copy first.

    Attributes:
        slot: its row of the cache.
        shared: how many leading tokens of its prefix need not be computed.
        donor: the slot that they stand in, the same one or another.
    """

    slot: int
    shared: int
    donor: int


class SlotTable:
    """Which sequence holds which slot. A live slot is never taken from its sequence.

    Args:
        count: how many slots there are.

    Attributes:
        slots: the whole state. Every change is one assignment of a new tuple, so that an interrupt
            leaves the table as it was or as it is to be.
    """

    def __init__(self, count: int) -> None:
        self.slots: tuple[Slot, ...] = (Slot(),) * count
        # Where sequences were when they were last looked for, which `slots` may have outdated.
        self._found: dict[int, int] = {}
        self._placements = 0

    @property
    def owner(self) -> dict[int, int]:
        """The slot of each live sequence."""
        return {s.sequence_id: i for i, s in enumerate(self.slots) if s.sequence_id is not None}

    def index_of(self, sequence_id: int) -> int | None:
        """Return the slot of a sequence; None if it has none."""
        index = self._found.get(sequence_id)
        if index is None or self.slots[index].sequence_id != sequence_id:
            self._found = self.owner
            index = self._found.get(sequence_id)
        return index

    def place(self, prefix: Prefix) -> Placement:
        """Find the slot of a sequence, an idle one if it is new, and cut it to what is shared.

        All but the last token of the prefix may count as shared: its logits are always computed.
        The slot holds these cells from here on, or none if another slot is the donor, until `hold`
        says that they were copied.

        Raises:
            ModelError: the sequence is new and every slot is live.
        """
        known = prefix.tokens[:-1]
        index = self.index_of(prefix.sequence_id)
        donor = index
        if index is None or donor is None:
            index, donor = self._room(prefix.sequence_id, known)
        shared = self.slots[donor].shared(known)
        self._placements += 1
        kept = known[: shared if donor == index else 0]
        self._set(index, Slot(kept, sequence_id=prefix.sequence_id, last_used=self._placements))
        return Placement(index, shared, donor)

    def computed(self, prefix: Prefix) -> int:
        """Return how many tokens of a prefix stand in the slot that holds most of them."""
        return max(slot.shared(prefix.tokens[:-1]) for slot in self.slots)

    def hold(self, index: int, tokens: Tokens) -> None:
        """Note what a slot's cells hold: tokens in a chain."""
        self._set(index, replace(self.slots[index], tokens=tokens))

    def release(self, sequence_ids: Iterable[int], *, discard: bool = False) -> list[int]:
        """Make the slots of these sequences idle, and name them.

        Their cells may be shared, unless discarded.
        """
        owner = self.owner
        indices = [owner[name] for name in set(sequence_ids) & owner.keys()]
        slots = list(self.slots)
        for index in indices:
            slots[index] = Slot() if discard else replace(slots[index], sequence_id=None)
        self.slots = tuple(slots)
        return indices

    def empty(self, indices: Iterable[int]) -> None:
        """Note that these slots hold nothing, and that no sequence has them."""
        slots = list(self.slots)
        for index in indices:
            slots[index] = Slot()
        self.slots = tuple(slots)

    def forget(self) -> None:
        """Note that no column holds anything, and that no sequence has a slot."""
        self.slots = (Slot(),) * len(self.slots)

    def contradiction(self, capacity: int) -> str | None:
        """Say what cannot be true of the table with so many cells in a slot, if anything."""
        names = [slot.sequence_id for slot in self.slots if slot.sequence_id is not None]
        for name, count in Counter(names).items():
            if count > 1:
                return f"sequence {name} has {count} slots"
        longest = max(len(slot.tokens) for slot in self.slots)
        return f"a slot of {capacity} cells holds {longest}" if longest > capacity else None

    def _set(self, index: int, slot: Slot) -> None:
        self.slots = (*self.slots[:index], slot, *self.slots[index + 1 :])

    def _room(self, sequence_id: int, known: Tokens) -> tuple[int, int]:
        """Return the slot for a new sequence, and the one that holds most of its prefix."""
        idle = [i for i, slot in enumerate(self.slots) if slot.sequence_id is None]
        if not idle:
            raise ModelError(
                f"sequence {sequence_id} is new and all {len(self.slots)} slots are live; "
                "release a finished sequence first, or raise max_sequences"
            )
        lengths = [slot.shared(known) for slot in self.slots]
        longest = max(lengths)
        # An idle slot is taken over for what it shares, unless that would lose more than it keeps:
        # a long text that shares its first word is copied from, and stays for its own kind.
        for i in idle:
            if lengths[i] == longest and 2 * longest >= self.slots[i].length:
                return i, i
        empty = [i for i in idle if not self.slots[i].length]
        index = empty[0] if empty else min(idle, key=lambda i: self.slots[i].last_used)
        return index, lengths.index(longest) if longest else index
