"""Texts of past requests in bounded memory: the oldest are forgotten first."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from .automaton import SuffixAutomaton

_SEGMENTS = 4
"""How many automata share the pool's room, if texts are small."""


class SuffixPool:
    """A queue of automata, each of some texts in a row.

    An automaton cannot forget a text, but it can be dropped whole: the oldest ones are, as many as
    make room. So a token is read once, at least three quarters of the room are used once it has
    been filled with small texts, and a match is looked for in each of a few automata.

    Args:
        order: the longest context, in tokens.
        max_tokens: how many tokens are kept at most, at least 1.
    """

    def __init__(self, order: int, max_tokens: int) -> None:
        self._order = order
        self._max_tokens = max_tokens
        self._segments: deque[SuffixAutomaton] = deque()
        self._sizes: deque[int] = deque()

    def __len__(self) -> int:
        return sum(self._sizes)

    def __iter__(self) -> Iterator[SuffixAutomaton]:
        """Yield the automata, the youngest first."""
        return reversed(self._segments)

    def insert(self, tokens: NDArray[np.int64]) -> None:
        """Remember a text, int64 [n]; of one that is larger than the pool, its last part."""
        kept = tokens[max(0, len(tokens) - self._max_tokens) :].tolist()
        if not kept:
            return
        while len(self) + len(kept) > self._max_tokens:
            self._segments.popleft()
            self._sizes.popleft()
        share = self._max_tokens // _SEGMENTS
        if not self._sizes or self._sizes[-1] + len(kept) > share:
            self._segments.append(SuffixAutomaton(self._order))
            self._sizes.append(0)
        self._segments[-1].extend(kept)
        self._segments[-1].end_text()
        self._sizes[-1] += len(kept)
