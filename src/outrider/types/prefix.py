"""The tokens of a sequence, as values that share their memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import NDArray


class _Buffer:
    """Tokens [capacity] of which the first `fill` are owned by at least one prefix."""

    __slots__ = ("data", "fill")

    def __init__(self, data: NDArray[np.int64], fill: int) -> None:
        self.data = data
        self.fill = fill


class Prefix:
    """The tokens of one sequence so far: an append-only integer buffer with a length.

    Prefixes are values: `extended` returns a new prefix and leaves this one as it is. A prefix and
    its extensions share one buffer as long as they form a single line; the second extension of the
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

    def extended(self, tokens: list[int]) -> Prefix:
        """This prefix followed by `tokens`."""
        length = self.length + len(tokens)
        buffer = self._buffer
        if buffer.fill != self.length or length > len(buffer.data):
            data = np.empty(max(2 * length, 64), dtype=np.int64)
            data[: self.length] = self.tokens
            buffer = _Buffer(data, self.length)
        buffer.data[self.length : length] = tokens
        buffer.fill = length
        longer = Prefix.__new__(Prefix)
        longer.sequence_id = self.sequence_id
        longer.length = length
        longer._buffer = buffer
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


class Series(Sequence[int]):
    """Integers of one kind, one for each round: an append-only list with a length.

    A value, as `Prefix` is: `extended` returns a new one and leaves this one as it is.

    Args:
        values: the first of them.
    """

    __slots__ = ("_length", "_values")

    def __init__(self, values: Iterable[int] = ()) -> None:
        self._values = list(values)
        self._length = len(self._values)

    def extended(self, value: int) -> Series:
        """These integers followed by another."""
        shared = len(self._values) == self._length
        longer = Series()
        longer._values = self._values if shared else self._values[: self._length]
        longer._values.append(value)
        longer._length = self._length + 1
        return longer

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[int, ...]: ...

    def __getitem__(self, index: int | slice) -> int | tuple[int, ...]:
        place = range(self._length)[index]
        if isinstance(place, range):
            return tuple(map(self._values.__getitem__, place))
        return self._values[place]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


@dataclass(frozen=True, slots=True)
class Output:
    """What follows a prompt: the tokens of a prefix from a place on.

    Attributes:
        prefix: the prompt, and what was emitted.
        start: the prompt's length.
    """

    prefix: Prefix
    start: int = 0

    def __len__(self) -> int:
        return self.prefix.length - self.start

    def since(self, earlier: Output | None) -> list[int] | None:
        """The tokens after those of an earlier output; None if this one does not go on from it.

        No more is looked at than what came after it.

        Args:
            earlier: the other; None for an empty one.
        """
        if earlier is not None and (
            self.start != earlier.start or not earlier.prefix.begins(self.prefix)
        ):
            return None
        known = self.start if earlier is None else earlier.prefix.length
        tokens: list[int] = self.prefix.tokens[known:].tolist()
        return tokens
