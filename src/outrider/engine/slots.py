"""The room that models have for sequences, and who holds it."""

from __future__ import annotations

from collections.abc import Collection


class Slots:
    """Slots for sequences, shared by the schedulers of an engine.

    Every change is one operation on one list, set or dictionary, so that there is no lock which an
    interrupt could leave held.

    Args:
        count: how many there are; None for any number.

    Attributes:
        dropped: ids of sequences that models may still hold something for: their scheduler was
            dropped, or interrupted as it released them.
    """

    def __init__(self, count: int | None) -> None:
        self._free = None if count is None else list(range(count))
        # By sequence id: the holder's name, and the slot.
        self._held: dict[int, tuple[str, int]] = {}
        self.dropped: set[int] = set()

    @property
    def free(self) -> int | None:
        """The number of free slots; None for any number."""
        return None if self._free is None else len(self._free)

    @property
    def holders(self) -> list[str]:
        """The names of the schedulers that hold slots."""
        return sorted({name for name, _ in self._held.copy().values()})

    def take(self, sequence_id: int, holder: str) -> bool:
        """Take a slot for a sequence; return whether there was one, or it has one."""
        try:
            if sequence_id not in self._held:
                self._held[sequence_id] = holder, -1 if self._free is None else self._free.pop()
        except IndexError:
            return False
        return True

    def give_back(self, sequence_id: int) -> None:
        """Give back the slot of a sequence, if it has one."""
        if self._free is None:
            self._held.pop(sequence_id, None)
        elif sequence_id in self._held:
            self._free.append(self._held.pop(sequence_id)[1])

    def drop(self, sequence_ids: Collection[int]) -> None:
        """Give back the slots of sequences that models may still hold something for."""
        self.dropped.update(sequence_ids)
        for sequence_id in tuple(sequence_ids):
            self.give_back(sequence_id)
