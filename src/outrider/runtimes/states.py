"""What a model over blocks keeps of a sequence besides them: nothing, or recurrent states."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Generic, TypeVar

from .blocks import BlockPool, Tokens

Kept = TypeVar("Kept")


class States:
    """Nothing: what blocks hold is all that a model needs. The base of those that keep more.

    Attributes:
        checkpoints: of recurrent states, which cannot be cut back to any earlier token; None for a
            model without.
    """

    checkpoints: Checkpoints[Any] | None = None

    @property
    def recurrent(self) -> bool:
        """Whether there are recurrent states."""
        return self.checkpoints is not None

    def forget(self) -> None:
        """Forget all sequences."""

    def findable(self, known: Tokens, pool: BlockPool) -> Tokens:
        """Return the first of some tokens, up to the last checkpoint that blocks reach if any."""
        if self.checkpoints is None:
            return known
        return known[: self.checkpoints.find(known[: pool.find(known)[1]])]

    def admit(self, name: int, known: Tokens) -> int:
        """Take a new sequence, of which blocks hold these tokens; return how many it has."""
        del name
        return len(known)

    def cut(self, name: int, shared: int) -> int:
        """Cut a sequence back to so many of its tokens, or fewer; return how many."""
        del name
        return shared

    def fork(self, name: int, other: int) -> None:
        """Let a new sequence go on from what is kept of another one; only `release` follows."""

    def fold(self, names: Sequence[int], starts: Sequence[int]) -> None:
        """Note that what was computed of sequences is relied on, up to these positions."""

    def save(self, name: int, tokens: Tokens) -> None:
        """Let others find the state of a sequence, whose tokens begin with these."""

    def release(self, names: Iterable[int]) -> None:
        """Forget sequences; unknown ones are passed over."""


class Checkpoints(Generic[Kept]):
    """States at the ends of prompts and texts, the one that was of use last last.

    Args:
        most: how many are kept.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._all: dict[bytes, Kept] = {}

    def find(self, known: Tokens) -> int:
        """Return after how many of some tokens the last one is; 0 if there is none."""
        line = known.tobytes()
        return max(map(len, filter(line.startswith, self._all)), default=0) // known.itemsize

    def use(self, known: Tokens) -> tuple[int, Kept | None]:
        """Find as `find` does, and let it go last; return what was kept there as well."""
        count = self.find(known)
        if not count:
            return 0, None
        key = known[:count].tobytes()
        self._all[key] = kept = self._all.pop(key)
        return count, kept

    def add(self, tokens: Tokens, kept: Kept) -> list[Kept]:
        """Add one; return what was kept of those that go."""
        key = tokens.tobytes()
        gone = [self._all.pop(key)] if key in self._all else []
        self._all[key] = kept
        while len(self._all) > self._most:
            gone.append(self._all.pop(next(iter(self._all))))
        return gone
