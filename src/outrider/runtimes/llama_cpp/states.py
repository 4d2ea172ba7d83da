"""The slots of hybrid models, whose recurrent states cannot be cut back after rejected drafts.

A slot has three of llama.cpp's sequences. Its own takes tokens that are certain, all but a prefix's
last one. The second begins each forward as a copy of it, and takes that token and the first path of
drafts. What the next prefix names goes on from the second if that path was kept whole, and from the
first otherwise: then the drafts that were kept are computed once more. The third keeps the state at
the end of a prompt, so that texts that begin with all of it may go on from there. A copy shares a
state, which llama.cpp copies when one of the sequences that share it is computed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ...types.records import Prefix
from ..blocks import Tokens, common
from .forest import Part, Row
from .library import Context, Ids
from .slots import Slot, SlotTable

_NONE: Tokens = np.empty(0, dtype=np.int64)


@dataclass(slots=True, eq=False)
class StateSlot(Slot):
    """The sequences of one slot; each has a state after these tokens and no others.

    Attributes:
        ahead: of the second sequence.
        saved: of the third.
        saves: whether the third is to be the end of this sequence's prompt.
    """

    ahead: Tokens = field(default_factory=lambda: _NONE)
    saved: Tokens = field(default_factory=lambda: _NONE)
    saves: bool = False


class StateTable(SlotTable):
    """Which sequence holds which slot of a hybrid model."""

    sequences_each = 3
    empty_slot = StateSlot
    slots: list[StateSlot]  # type: ignore[assignment]  # `empty_slot` alone fills it

    def enter(self, context: Context, row: Row) -> int:
        """Find or make room for a row's prefix; see `SlotTable.enter`.

        Returns:
            How many tokens there is a state after. Beyond those that are certain, it is the second
            sequence's.
        """
        prefix = row.prefix
        index = self.owner.get(prefix.sequence_id)
        if index is not None:
            ahead = self.slots[index].ahead
            if len(ahead) > row.settled and common(ahead, prefix.tokens[:-1]) == len(ahead):
                return len(ahead)
        start, source = self._longest(prefix.tokens[: row.settled])
        if index is None:
            idle = self._idle(prefix.sequence_id)
            index = min(idle, key=lambda each: self.slots[each].last_used)
        self._placements += 1
        slot = self.slots[index]
        slot.tokens, slot.last_used = prefix.tokens[:start], self._placements
        if slot.sequence_id is None:
            slot.sequence_id, slot.saves = prefix.sequence_id, True
        if not start or source != index:
            context.cut(index, 0)
        if start and source != index:
            context.copy(source, index, -1)
        return start

    def branch(self, context: Context, part: Part, spare: range) -> tuple[Ids, NDArray[np.bool_]]:
        """Make the sequences of a part's paths; see `SlotTable.branch`."""
        row, start = part.row, part.start
        index = self.owner[row.prefix.sequence_id]
        own, ahead, _ = self.sequences(index)
        places = np.arange(start, len(row.prefix))
        missing = np.ones((len(places), part.paths), bool)
        below = np.concatenate([missing, part.below])
        if start > row.settled:
            return np.array([ahead], np.int32), below
        self.slots[index].ahead = _NONE
        context.cut(ahead, 0)
        for other in (ahead, *spare):
            context.copy(own, other, -1)
        certain = np.concatenate([places < row.settled, np.zeros(len(part.nodes), bool)])
        ids = np.array([own, ahead, *spare], np.int32)
        return ids, np.concatenate([certain[:, None], below], 1)

    def settle(self, context: Context, part: Part) -> None:
        """Note after which tokens a slot has states; see `SlotTable.settle`."""
        row = part.row
        index = self.owner[row.prefix.sequence_id]
        slot, known = self.slots[index], row.prefix.tokens[: row.settled]
        slot.ahead = part.first
        if part.start > row.settled:
            return
        slot.tokens = known
        if slot.saves:
            own, _, third = self.sequences(index)
            context.cut(third, 0)
            context.copy(own, third, -1)
            slot.saved, slot.saves = known, False

    def computed(self, prefix: Prefix) -> int:
        """Return how many tokens of a prefix there is a state after."""
        return self._longest(prefix.tokens[:-1])[0]

    def contradiction(self, capacity: int, context: Context | None = None) -> str | None:
        """Say what cannot be true; see `SlotTable.contradiction`."""
        for sequence, tokens in enumerate(self._states()):
            held = context.length(sequence) if context else len(tokens)
            if len(tokens) not in (0, held):
                return f"sequence {sequence} is said to hold {len(tokens)} tokens and holds {held}"
        return super().contradiction(capacity)

    def _states(self) -> list[Tokens]:
        """List after which tokens each of llama.cpp's sequences has a state."""
        own, ahead, saved = zip(*((s.tokens, s.ahead, s.saved) for s in self.slots), strict=True)
        return [*own, *ahead, *saved]

    def _longest(self, known: Tokens) -> tuple[int, int]:
        """Return after how many of some tokens there is a state, and whose; the first of those."""
        lengths = [len(held) if common(held, known) == len(held) else 0 for held in self._states()]
        longest = max(lengths)
        return longest, lengths.index(longest)
