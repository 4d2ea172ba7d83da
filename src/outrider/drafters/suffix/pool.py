"""Texts of past requests in bounded memory: the oldest are forgotten."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .automaton import SuffixAutomaton

_END_OF_TEXT = -1


class SuffixPool:
    """Two automata: texts go into the younger, and when it is full the older one is dropped.

    An automaton cannot forget a text, but it can be forgotten whole: at a constant cost a token the
    latest texts are remembered, about half of `max_tokens` at least.

    Args:
        order: the longest context, in tokens.
        max_tokens: how many tokens are kept at most, at least 4.
    """

    def __init__(self, order: int, max_tokens: int) -> None:
        self._order = order
        self._half = max_tokens // 2
        self._young = self._empty()
        self._old: SuffixAutomaton | None = None

    def __len__(self) -> int:
        """How many tokens are kept, one for the end of each text included."""
        return sum(len(automaton) for automaton in self.automata)

    @property
    def automata(self) -> list[SuffixAutomaton]:
        """The younger one first."""
        return [self._young] if self._old is None else [self._young, self._old]

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(automaton.nbytes for automaton in self.automata)

    def insert(self, tokens: NDArray[np.int64]) -> None:
        """Remember a text, int64 [n]; of one that is too long its last part."""
        kept = tokens[max(0, len(tokens) - (self._half - 1)) :]
        if not len(kept):
            return
        if len(self._young) + len(kept) + 1 > self._half:
            self._old, self._young = self._young, self._empty()
        self._young.extend(np.append(kept, _END_OF_TEXT))

    def _empty(self) -> SuffixAutomaton:
        return SuffixAutomaton(self._order, self._half)
