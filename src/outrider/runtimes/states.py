"""What a model over blocks keeps of a sequence besides them: nothing, or recurrent states."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .blocks import BlockPool, Tokens


class States:
    """Nothing: what blocks hold is all that a model needs. The base of those that keep more.

    Attributes:
        recurrent: whether there are states, which cannot be cut back to any earlier token.
    """

    recurrent = False

    def forget(self) -> None:
        """Forget all sequences."""

    def findable(self, known: Tokens, pool: BlockPool) -> Tokens:
        """Return the first of some tokens, found in blocks, that a sequence can go on from."""
        del pool
        return known

    def admit(self, name: int, known: Tokens) -> int:
        """Take a new sequence, of which blocks hold these tokens; return how many it has."""
        del name
        return len(known)

    def cut(self, name: int, shared: int) -> int:
        """Cut a sequence back to so many of its tokens, or fewer; return how many."""
        del name
        return shared

    def fold(self, names: Sequence[int], starts: Sequence[int]) -> None:
        """Note that what was computed of sequences is relied on, up to these positions."""

    def save(self, name: int, tokens: Tokens) -> None:
        """Let others find the state of a sequence, whose tokens begin with these."""

    def release(self, names: Iterable[int]) -> None:
        """Forget sequences; unknown ones are passed over."""
