"""What a model over blocks keeps of a sequence besides them: nothing, or recurrent states."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from .blocks import BlockPool, Tokens

Kept = TypeVar("Kept")


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

    def fork(self, name: int, other: int) -> None:
        """Let a new sequence go on from what is kept of another one; only `release` follows."""

    def fold(self, names: Sequence[int], starts: Sequence[int]) -> None:
        """Note that what was computed of sequences is relied on, up to these positions."""

    def save(self, name: int, tokens: Tokens) -> None:
        """Let others find the state of a sequence, whose tokens begin with these."""

    def release(self, names: Iterable[int]) -> None:
        """Forget sequences; unknown ones are passed over."""


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint(Generic[Kept]):
    """What is kept of a state after some tokens."""

    tokens: Tokens
    kept: Kept


class Checkpoints(Generic[Kept]):
    """States at the ends of prompts and texts, the one that was of use last last.

    Args:
        most: how many are kept.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._all: list[Checkpoint[Kept]] = []

    def find(self, known: Tokens) -> Checkpoint[Kept] | None:
        """Find the one after most of some tokens."""
        fitting = [
            each
            for each in self._all
            if len(each.tokens) <= len(known)
            and np.array_equal(each.tokens, known[: len(each.tokens)])
        ]
        return max(fitting, key=lambda each: len(each.tokens), default=None)

    def findable(self, known: Tokens, pool: BlockPool) -> Tokens:
        """Return the first of some tokens, up to the last checkpoint that blocks reach."""
        found = self.find(known[: pool.find(known)[1]])
        return known[: 0 if found is None else len(found.tokens)]

    def use(self, known: Tokens) -> Checkpoint[Kept] | None:
        """Find the one after most of some tokens, and let it go last."""
        found = self.find(known)
        if found is not None:
            self._all = [*(each for each in self._all if each is not found), found]
        return found

    def add(self, tokens: Tokens, kept: Kept) -> list[Kept]:
        """Add one; return what was kept of those that go."""
        same = [each for each in self._all if np.array_equal(each.tokens, tokens)]
        others = [each for each in self._all if each not in same]
        every = [*others, Checkpoint(tokens.copy(), kept)]
        self._all = every[-self._most :]
        return [each.kept for each in (*same, *every[: -self._most])]
