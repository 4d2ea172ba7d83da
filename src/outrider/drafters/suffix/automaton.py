"""A suffix automaton that grows by a token at a time, and counts what followed each context.

Automaton: Blumer et al. 1985, "The smallest automaton recognizing the subwords of a text": at most
2n states and 3n transitions for n tokens, built in amortised O(1) a token. Occurrences are counted
for strings of at most `order + 1` tokens: each token adds one to every state on its path of suffix
links, which is at most `order + 1` long, and in text mostly below ten. So counts are exact at any
time, which a walk at query time or a count made now and then could not give in less.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..candidate import Candidate
from . import kernels as kernels

_SMALLEST = 64
"""For how many tokens room is made at first."""


class SuffixAutomaton:
    """All strings that occur in a text, and how often each is followed by what.

    Args:
        order: the longest context, in tokens.
        max_tokens: how many tokens may be read, at least 1. Room is made as they come: 96 to 128
            bytes for each, and while it grows at most twice that.
    """

    def __init__(self, order: int, max_tokens: int) -> None:
        self.order = order
        self._max_tokens = max_tokens
        self._capacity = min(_SMALLEST, max_tokens)
        self._nodes, self._table = self._room()
        self._meta = np.zeros(8, dtype=np.int64)
        self._meta[kernels.SIZE] = kernels.ROOT + 1
        self._meta[kernels.LAST] = self._meta[kernels.CONTEXT] = kernels.ROOT
        self._nodes[0, kernels.LENGTH] = -1

    def __len__(self) -> int:
        """How many tokens were read, ends of texts included."""
        return int(self._meta[kernels.POSITION])

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self._nodes.nbytes + self._table.nbytes

    @property
    def states(self) -> int:
        """How many states there are, at most two a token."""
        return int(self._meta[kernels.SIZE]) - 1

    @property
    def operations(self) -> tuple[int, int]:
        """How often the loops went round that build the automaton, and those that count."""
        return int(self._meta[kernels.STEPS]), int(self._meta[kernels.VISITS])

    @property
    def arrays(self) -> kernels.Arrays:
        """What the functions of `suffix_kernels` take: they stay the same until room is made."""
        return self._nodes, self._table, self._meta

    def reserve(self, tokens: int) -> None:
        """Make room for this many tokens, those that were read included."""
        assert tokens <= self._max_tokens, "the text is longer than its automaton may become"
        if tokens <= self._capacity:
            return
        self._capacity = min(max(tokens, 2 * self._capacity), self._max_tokens)
        nodes, table = self._room()
        nodes[: len(self._nodes)] = self._nodes
        kernels.rehash(nodes, self._table, table)
        self._nodes, self._table = nodes, table

    def extend(self, tokens: NDArray[np.int64]) -> None:
        """Read tokens int64 [n]; one below 0 ends a text."""
        self.reserve(len(self) + len(tokens))
        kernels.extend(*self.arrays, tokens, self.order)

    def own_match(self) -> tuple[int, int]:
        """The longest suffix of the text that has been followed: its state and its length."""
        return kernels.own_match(self._nodes, self._meta, self.order)

    def match(
        self, tokens: NDArray[np.int64], before: tuple[int, int] = (kernels.ROOT, 0)
    ) -> tuple[int, int]:
        """The longest suffix of `tokens`, int64 [n], that occurs here: its state and its length.

        Args:
            tokens: the tokens, of which the last `order` matter.
            before: the match that they follow; none if they are all there is.
        """
        last = np.ascontiguousarray(tokens[-self.order :])
        return kernels.follow(self._nodes, self._table, *before, last, self.order)

    def draft(
        self,
        match: tuple[int, int],
        limits: tuple[int, int, float, float, float, int],
        branches: bool,
    ) -> Candidate:
        """What may follow a match: the best of its suffixes' drafts.

        Args:
            match: its state and its length.
            limits: see `suffix_kernels.draft`.
            branches: whether a tree is wanted.
        """
        size = limits[0]
        out = np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int64), np.empty(size)
        count, matched, _, expected = kernels.draft(
            self.arrays, *match, self.order, limits, branches, out
        )
        return Candidate(out[0][:count], out[1][:count], out[2][:count], matched, expected)

    def _room(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        slots = 1 << (2 * self._capacity - 1).bit_length()
        nodes = np.zeros((2 * self._capacity + 2, 8), dtype=np.int32)
        return nodes, np.zeros((slots, 4), dtype=np.int32)


def prepare() -> None:
    """Have the loops compiled, or fetched compiled, before they are needed.

    Some ten seconds the first time on a machine, a fifth of a second in each later process.
    """
    automaton = SuffixAutomaton(1, 2 * _SMALLEST)
    automaton.extend(np.zeros(2 * _SMALLEST, dtype=np.int64))
    match = automaton.match(np.zeros(1, dtype=np.int64))
    for branches in (False, True):
        automaton.draft(match, (1, 1, 1.0, 0.0, 1.0, 1), branches)
    automaton.own_match()
