"""The room that a decoder's models have, and who holds it."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakSet, finalize

if TYPE_CHECKING:
    from .scheduler import Scheduler


class Slots:
    """Slots for sequences, shared by the schedulers of a decoder.

    Every change is one operation on one list, set or dictionary, so that there is no lock which an
    interrupt could leave held. What a scheduler holds as it is dropped without being closed is free
    again, and the models are to free what they hold.

    Args:
        count: how many there are; None for any number.

    Attributes:
        dropped: ids of sequences that models may still hold something for: their scheduler was
            dropped, or interrupted as it released them.
    """

    def __init__(self, count: int | None) -> None:
        self._free = None if count is None else list(range(count))
        self._schedulers: WeakSet[Scheduler] = WeakSet()
        self.dropped: set[int] = set()

    @property
    def free(self) -> int | None:
        """The number of free slots; None for any number."""
        return None if self._free is None else len(self._free)

    @property
    def holders(self) -> list[str]:
        """The names of the schedulers that hold slots."""
        return [scheduler.name for scheduler in list(self._schedulers) if scheduler.running]

    def register(self, scheduler: Scheduler, held: dict[int, int]) -> None:
        """Free what a scheduler holds, the slots by sequence id, once it is dropped."""
        self._schedulers.add(scheduler)
        finalize(scheduler, self._drop, held).atexit = False

    def take(self, held: dict[int, int], sequence_id: int) -> bool:
        """Take a slot for a sequence; return whether there was one, or it has one."""
        try:
            if sequence_id not in held:
                held[sequence_id] = -1 if self._free is None else self._free.pop()
        except IndexError:
            return False
        return True

    def give_back(self, held: dict[int, int], sequence_id: int) -> None:
        """Give back the slot of a sequence, if it has one."""
        if self._free is None:
            held.pop(sequence_id, None)
        elif sequence_id in held:
            self._free.append(held.pop(sequence_id))

    def _drop(self, held: dict[int, int]) -> None:
        self.dropped.update(held)
        for sequence_id in list(held):
            self.give_back(held, sequence_id)
