"""Which sequence holds which slot of a cache, and what its columns hold, on the host.

Rejected tokens are never removed: the next prefix does not name them, so the columns that they left
are written over. The keys and values themselves are the runtimes' own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import ModelError
from ..types.records import Prefix

Tokens = NDArray[np.int64]

_NONE: Tokens = np.empty(0, dtype=np.int64)


class PendingTokens:
    """Tokens that a forward computed after the prefixes of a batch, not yet on the host.

    They stay on the device until the host has to compare them, a round later, when they have been
    computed anyway.
    """

    def __init__(self) -> None:
        self.calls: tuple[Tensor, ...] = ()
        self._read: tuple[int, Tokens] = (0, np.empty((0, 0), np.int64))

    def add(self, tokens: Tensor) -> PendingTokens:
        """Note that a forward has computed tokens [B, M] that follow one another."""
        self.calls = (*self.calls, tokens)
        return self

    def row(self, index: int) -> Tokens:
        """Return one row's tokens [n] on the host."""
        if not self.calls:
            return _NONE
        if self._read[0] != len(self.calls):
            self._read = len(self.calls), torch.cat(self.calls, 1).cpu().numpy()
        row: Tokens = self._read[1][index]
        return row


@dataclass(frozen=True, slots=True, eq=False)
class Slot:
    """One row of the cache.

    Attributes:
        tokens: columns 0 .. len(tokens) - 1 were computed from these, in a chain.
        pending: what the columns after those were computed from.
        row: the row of `pending` that is this slot's.
        sequence_id: whose it is; None if it is idle, and may be taken over.
        last_used: a count of placements, to tell which slot was used longest ago.
    """

    tokens: Tokens = field(default_factory=lambda: _NONE)
    pending: PendingTokens = field(default_factory=PendingTokens)
    row: int = 0
    sequence_id: int | None = None
    last_used: int = 0

    @property
    def length(self) -> int:
        """How many columns hold something that a prefix may name."""
        return len(self.tokens) + len(self.pending.row(self.row))

    @property
    def all_tokens(self) -> Tokens:
        """The tokens of the columns that hold something, on the host."""
        return np.append(self.tokens, self.pending.row(self.row))

    def shared(self, prefix: Tokens) -> int:
        """Find how many leading tokens of `prefix` the columns hold."""
        count = _common(self.tokens, prefix)
        if count < len(self.tokens):
            return count
        return count + _common(self.pending.row(self.row), prefix[count:])


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a sequence lives, how much of its prefix is computed, and what to copy first.

    Attributes:
        slot: its row of the cache.
        shared: how many leading tokens of its prefix need not be computed.
        donor: the slot that they stand in, the same one or another.
        evicted: the slot that takes what the sequence's slot held so far, after the donor's columns
            were read; None if that may be lost.
        evicted_tokens: the tokens whose columns go there.
    """

    slot: int
    shared: int
    donor: int
    evicted: int | None = None
    evicted_tokens: Tokens = field(default_factory=lambda: _NONE, compare=False)


class SlotTable:
    """Which sequence holds which slot. A live slot is never taken from its sequence.

    Args:
        count: how many slots there are.
        adjacent: whether live slots are to lie side by side, since a forward reads those in place.
            What stands in an idle slot between them is then evicted to another one.

    Attributes:
        slots: the whole state. Every change is one assignment of a new tuple, so that an interrupt
            leaves the table as it was or as it is to be.
    """

    def __init__(self, count: int, *, adjacent: bool = False) -> None:
        self.slots: tuple[Slot, ...] = (Slot(),) * count
        self._adjacent = adjacent
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
        The slot holds these columns from here on, or none if another slot is the donor, until
        `hold` says that they were copied. A slot that takes what was evicted holds nothing until
        then either.

        Raises:
            ModelError: the sequence is new and every slot is live.
        """
        known = prefix.tokens[:-1]
        index = self.index_of(prefix.sequence_id)
        evicted, evicted_tokens = None, _NONE
        if index is None:
            taken, donor = self._room(prefix.sequence_id, known)
            index = self._beside(taken) if self._adjacent else taken
            if index != taken and self.slots[index].length:
                evicted, evicted_tokens = taken, self.slots[index].all_tokens
        else:
            donor = index
        shared = self.slots[donor].shared(known)
        self._placements += 1
        kept = known[: shared if donor == index else 0]
        if evicted is not None:
            self._set(evicted, Slot(last_used=self.slots[index].last_used))
        self._set(index, Slot(kept, sequence_id=prefix.sequence_id, last_used=self._placements))
        return Placement(index, shared, donor, evicted, evicted_tokens)

    def computed(self, prefix: Prefix) -> int:
        """Return how many tokens of a prefix stand in the slot that holds most of them."""
        return max(slot.shared(prefix.tokens[:-1]) for slot in self.slots)

    def hold(
        self, index: int, tokens: Tokens, pending: PendingTokens | None = None, row: int = 0
    ) -> None:
        """Note what a slot's columns hold: tokens in a chain, then a row of pending tokens."""
        known = pending or PendingTokens()
        self._set(index, replace(self.slots[index], tokens=tokens, pending=known, row=row))

    def release(self, sequence_ids: Iterable[int], *, discard: bool = False) -> list[int]:
        """Make the slots of these sequences idle, and name them.

        Their columns may be shared, unless discarded.
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
        """Say what cannot be true of the table with so many columns in a slot, if anything."""
        names = [slot.sequence_id for slot in self.slots if slot.sequence_id is not None]
        for name, count in Counter(names).items():
            if count > 1:
                return f"sequence {name} has {count} slots"
        longest = max(len(slot.tokens) for slot in self.slots)
        return f"a slot of {capacity} columns holds {longest}" if longest > capacity else None

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
        # Empty ones in their order: the rows of a batch lie side by side, and are read in place.
        empty = [i for i in idle if not self.slots[i].length]
        index = empty[0] if empty else min(idle, key=lambda i: self.slots[i].last_used)
        return index, lengths.index(longest) if longest else index

    def _beside(self, chosen: int) -> int:
        """Return an idle slot between or beside the live ones, the chosen one if it is."""
        live = [i for i, slot in enumerate(self.slots) if slot.sequence_id is not None]
        if not live:
            return chosen
        low, high = min(live), max(live)
        between = [i for i in range(low, high) if i not in live]
        beside = between or [i for i in (high + 1, low - 1) if 0 <= i < len(self.slots)]
        return chosen if chosen in beside else beside[0]


def _common(one: Tokens, other: Tokens) -> int:
    """Return how many leading tokens are the same."""
    count = min(len(one), len(other))
    differs = one[:count] != other[:count]
    first = int(differs.argmax()) if count else 0
    return first if count and differs[first] else count
