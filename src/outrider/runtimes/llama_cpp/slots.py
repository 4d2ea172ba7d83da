"""Which sequence has which of llama.cpp's sequences, here slots, and what their cells hold.

Slot i is llama.cpp's sequence i. Its cells hold at least what the table says; what they hold beyond
is cut before anything is computed after it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ...errors import ModelError
from ...types.records import Prefix
from ..blocks import Tokens, common
from .forest import Part, Row
from .library import Context, Ids

_NONE: Tokens = np.empty(0, dtype=np.int64)


@dataclass(slots=True, eq=False)
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

    def shared(self, prefix: Tokens) -> int:
        """Find how many leading tokens of `prefix` the cells hold."""
        return common(self.tokens, prefix)


class SlotTable:
    """Which sequence holds which slot. A live slot is never taken from its sequence.

    Args:
        count: how many slots there are.

    Attributes:
        slots: in their order.
    """

    sequences_each = 1
    """How many of llama.cpp's sequences a slot has."""

    empty_slot: type[Slot] = Slot

    def __init__(self, count: int) -> None:
        self.slots = [self.empty_slot() for _ in range(count)]
        self._placements = 0

    @property
    def owner(self) -> dict[int, int]:
        """The slot of each live sequence."""
        return {s.sequence_id: i for i, s in enumerate(self.slots) if s.sequence_id is not None}

    def sequences(self, index: int) -> range:
        """Return llama.cpp's sequences of a slot; the first is the slot's own."""
        return range(index, len(self.slots) * self.sequences_each, len(self.slots))

    def enter(self, context: Context, row: Row) -> int:
        """Find or make room for a row's prefix; return how many of its tokens are in cells.

        Raises:
            ModelError: see `place`.
        """
        slot, start, donor = self.place(row.prefix)
        # With sliding windows llama.cpp takes cells that are behind the window of a sequence's last
        # token for others. Tokens that are cut back to may see further.
        if context.first(donor) > max(0, start - context.window + 1):
            start = 0
        if donor == slot:
            context.cut(slot, start)
        else:
            context.cut(slot, 0)
            context.copy(donor, slot, start)
        self.hold(slot, row.prefix.tokens[:start])
        return start

    def branch(self, context: Context, part: Part, spare: range) -> tuple[Ids, NDArray[np.bool_]]:
        """Make the sequences of a part's paths.

        Args:
            context: they are in.
            part: what is computed.
            spare: sequences for its paths but the first.

        Returns:
            Sequences int32 [n], and whether each missing token of the prefix and each token of the
            part belongs to them, bool [k, n].
        """
        slot = self.owner[part.row.prefix.sequence_id]
        for other in spare:
            context.copy(slot, other, part.start)
        missing = np.ones((len(part.row.prefix) - part.start, part.paths), bool)
        return np.array([slot, *spare], np.int32), np.concatenate([missing, part.below])

    def settle(self, context: Context, part: Part) -> None:
        """Note what a slot's cells hold of a part that was computed: its first path."""
        self.hold(self.owner[part.row.prefix.sequence_id], part.first)

    def place(self, prefix: Prefix) -> tuple[int, int, int]:
        """Find the slot of a sequence, an idle one if it is new, and cut it to what is shared.

        All but the last token of the prefix may count as shared: its logits are always computed.

        Returns:
            The slot; how many leading tokens need not be computed; and the slot that they stand in,
            the same one or another.

        Raises:
            ModelError: the sequence is new and every slot is live.
        """
        known = prefix.tokens[:-1]
        index = donor = self.owner.get(prefix.sequence_id, -1)
        if index < 0:
            index, donor = self._room(prefix.sequence_id, known)
        shared = self.slots[donor].shared(known)
        self._placements += 1
        self.slots[index] = Slot(known[:shared], prefix.sequence_id, self._placements)
        return index, shared, donor

    def computed(self, prefix: Prefix) -> int:
        """Return how many tokens of a prefix stand in the slot that holds most of them."""
        return max(slot.shared(prefix.tokens[:-1]) for slot in self.slots)

    def hold(self, index: int, tokens: Tokens) -> None:
        """Note what a slot's cells hold: tokens in a chain."""
        self.slots[index].tokens = tokens

    def release(self, sequence_ids: Iterable[int]) -> list[int]:
        """Make the slots of these sequences idle, and name them; their cells may be shared."""
        owner = self.owner
        indices = [owner[name] for name in set(sequence_ids) & owner.keys()]
        for index in indices:
            self.slots[index].sequence_id = None
        return indices

    def forget(self) -> None:
        """Note that no column holds anything, and that no sequence has a slot."""
        self.slots = [self.empty_slot() for _ in self.slots]

    def contradiction(self, capacity: int, context: Context | None = None) -> str | None:
        """Say what cannot be true of the table with so many cells in a context, if anything."""
        names = [slot.sequence_id for slot in self.slots if slot.sequence_id is not None]
        for name, count in Counter(names).items():
            if count > 1:
                return f"sequence {name} has {count} slots"
        longest = max(len(slot.tokens) for slot in self.slots)
        if longest > capacity:
            return f"a slot of {capacity} cells holds {longest}"
        for index, slot in enumerate(self.slots):
            held = len(slot.tokens) if context is None else context.length(index)
            if held < len(slot.tokens):
                return f"slot {index} is said to hold {len(slot.tokens)} tokens and holds {held}"
        return None

    def _idle(self, sequence_id: int) -> list[int]:
        """Return the idle slots for a new sequence."""
        idle = [i for i, slot in enumerate(self.slots) if slot.sequence_id is None]
        if not idle:
            raise ModelError(
                f"sequence {sequence_id} is new and all {len(self.slots)} slots are live; "
                "release a finished sequence first, or raise max_sequences"
            )
        return idle

    def _room(self, sequence_id: int, known: Tokens) -> tuple[int, int]:
        """Return the slot for a new sequence, and the one that holds most of its prefix."""
        idle = self._idle(sequence_id)
        lengths = [slot.shared(known) for slot in self.slots]
        longest = max(lengths)
        # An idle slot is taken over for what it shares, unless that would lose more than it keeps:
        # a long text that shares its first word is copied from, and stays for its own kind.
        for i in idle:
            if lengths[i] == longest and 2 * longest >= len(self.slots[i].tokens):
                return i, i
        empty = [i for i in idle if not len(self.slots[i].tokens)]
        index = empty[0] if empty else min(idle, key=lambda i: self.slots[i].last_used)
        return index, lengths.index(longest) if longest else index
