"""The tokens of a sequence, as values that share their memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray


class _Buffer:
    """Integers [capacity] of which the first `fill` are owned by at least one prefix."""

    __slots__ = ("data", "fill")

    def __init__(self, data: NDArray[np.int64], fill: int) -> None:
        self.data = data
        self.fill = fill


class Prefix:
    """The tokens of one sequence so far.

    Prefixes are values: `extended` returns a new one and leaves this one as it is. A prefix and its
    extensions share one buffer as long as they form a single line; the second extension of the
    same prefix copies.

    Args:
        sequence_id: names the sequence to models that keep a cache of it.
        tokens: token ids.
    """

    __slots__ = ("_buffer", "length", "sequence_id")

    def __init__(self, sequence_id: int, tokens: Iterable[int]) -> None:
        data = np.fromiter(tokens, dtype=np.int64)
        self.sequence_id = sequence_id
        self.length = len(data)
        self._buffer = _Buffer(data, len(data))

    @property
    def tokens(self) -> NDArray[np.int64]:
        """The token ids, int64 [length]. A view: do not write to it."""
        return self._buffer.data[: self.length]

    def extended(self, tokens: Sequence[int]) -> Prefix:
        """This prefix followed by other tokens."""
        length = self.length + len(tokens)
        buffer = self._buffer
        if buffer.fill != self.length or length > len(buffer.data):
            data = np.empty(max(2 * length, 64), dtype=np.int64)
            data[: self.length] = self.tokens
            buffer = _Buffer(data, self.length)
        buffer.data[self.length : length] = tokens
        buffer.fill = length
        longer = Prefix.__new__(Prefix)
        longer.sequence_id, longer.length, longer._buffer = self.sequence_id, length, buffer
        return longer

    def begins(self, other: Prefix) -> bool:
        """Whether another one's tokens begin with these; not compared if it extends this one."""
        if self.length > other.length:
            return False
        return self._buffer is other._buffer or np.array_equal(
            self.tokens, other.tokens[: self.length]
        )

    def __len__(self) -> int:
        return self.length

    def __repr__(self) -> str:
        return f"Prefix(sequence_id={self.sequence_id}, tokens={self.tokens.tolist()})"
