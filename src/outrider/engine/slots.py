"""The room that models have for sequences, and who holds it."""

from __future__ import annotations

from collections.abc import Iterable


class Slots:
    """Slots for sequences, shared by the schedulers of an engine.

    Every change is one operation on one set or dictionary, so that there is no lock which an
    interrupt could leave held.

    Args:
        count: how many there are; None for any number.

    Attributes:
        dropped: ids of sequences that models may still hold something for: their scheduler was
            dropped, or interrupted as it released them.
    """

    def __init__(self, count: int | None) -> None:
        self._count = count
        self._holders: dict[int, str] = {}
        self.dropped: set[int] = set()

    @property
    def free(self) -> int | None:
        """The number of free slots; None for any number."""
        return None if self._count is None else self._count - len(self._holders)

    @property
    def holders(self) -> list[str]:
        """The names of the schedulers that hold slots."""
        return sorted(set(self._holders.copy().values()))

    def take(self, sequence_id: int, holder: str) -> bool:
        """Take a slot for a sequence; return whether there was one, or it has one."""
        self._holders[sequence_id] = holder
        # Of threads that take the last one at once, the first keeps it.
        if self._count is None or list(self._holders).index(sequence_id) < self._count:
            return True
        self.give_back(sequence_id)
        return False

    def give_back(self, sequence_id: int) -> None:
        """Give back the slot of a sequence, if it has one."""
        self._holders.pop(sequence_id, None)

    def drop(self, sequence_ids: Iterable[int]) -> None:
        """Give back the slots of sequences that models may still hold something for."""
        self.dropped.update(sequence_ids)
        for sequence_id in sequence_ids:
            self.give_back(sequence_id)
