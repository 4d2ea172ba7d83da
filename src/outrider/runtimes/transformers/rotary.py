"""Rotary position embedding (Su et al. 2021), and the write to the slot cache, in one pass.

For the few columns of a decoding round, calls of tensor operations take longer than what they do.
On a CPU a compiled loop reads a layer's new queries, keys and values once, turns them, and writes
the keys and values to the columns they belong to. Numbers are the same to the bit.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...drafters.suffix.jit import compiled
from .ragged import Ragged
from .scatter import HostScatter
from .slot_cache import SlotCache, Span

_MOST = 2**17
"""The most numbers of the queries for which one thread's single pass is taken."""


class Turning(Protocol):
    """Turns a layer's queries and keys by their positions, and hands keys and values to a cache."""

    def __call__(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor
    ) -> tuple[Tensor, Span]:
        """Queries [B, g * H, q, D] turned, and the keys and values to read.

        Args:
            layer: which layer of the cache.
            query: as projected, [B, q, g * H, D], or [1, n, g * H, D] of ragged rows.
            key, value: as wide, of H heads.
        """
        ...


def turning_for(cos: Tensor, sin: Tensor, cache: Any, ragged: Ragged | None) -> Turning:
    """What turns the states of one forward.

    Args:
        cos, sin: of each position, [B or 1, q, D], or [1, n, D] of ragged rows.
        cache: a cache of transformers; if it is a `SlotCache`, aimed.
        ragged: which columns are computed; None for all.
    """
    half = cos.shape[-1] // 2
    sin = torch.cat([-sin[..., :half], sin[..., half:]], -1)
    plain = TensorTurning(cos[:, None], sin[:, None], cache, ragged)
    host = cache.host if isinstance(cache, SlotCache) else None
    if host is None or not cos.dtype == sin.dtype == host.dtype == torch.float32:
        return plain
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return plain
    return HostTurning(cos, sin, cache, host, plain, ragged)


class TensorTurning:
    """By tensor operations: anywhere, in any dtype.

    Args:
        cos: [B or 1, 1, q, D].
        sin: the same, its first half negated.
        cache: a cache of transformers; if it is a `SlotCache`, aimed.
        ragged: see `turning_for`.
    """

    def __init__(self, cos: Tensor, sin: Tensor, cache: Any, ragged: Ragged | None) -> None:
        self._cos, self._sin, self._cache, self._ragged = cos, sin, cache, ragged
        self._half = cos.shape[-1] // 2

    def __call__(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor
    ) -> tuple[Tensor, Span]:
        """See `Turning`."""
        query, key = self._turned(query.transpose(1, 2)), self._turned(key.transpose(1, 2))
        value = value.transpose(1, 2)
        if self._ragged is not None:
            states = (each.transpose(1, 2) for each in (query, key, value))
            query, key, value = (self._ragged.padded(each).transpose(1, 2) for each in states)
        if not isinstance(self._cache, SlotCache):
            return query, Span(*self._cache.update(key, value, layer))
        self._cache.write(key, value, layer)
        return query, self._cache.span(layer)

    def _turned(self, states: Tensor) -> Tensor:
        return states * self._cos + states.roll(self._half, -1) * self._sin


class HostTurning:
    """By a compiled loop, straight into the slots' memory; what does not fit goes the other way.

    Args:
        cos: float32 [B or 1, q, D], or [1, n, D] of ragged rows.
        sin: the same, its first half negated.
        cache: aimed; its span is what is read.
        host: what writes to it.
        plain: for states of other shapes or dtypes than are expected, and for many.
        ragged: see `turning_for`.
    """

    def __init__(
        self,
        cos: Tensor,
        sin: Tensor,
        cache: SlotCache,
        host: HostScatter,
        plain: TensorTurning,
        ragged: Ragged | None,
    ) -> None:
        self._cache, self._host, self._plain = cache, host, plain
        self._width = cos.shape[2]
        self._cos = cos.contiguous().numpy().reshape(-1, self._width)
        self._sin = sin.contiguous().numpy().reshape(-1, self._width)
        rows, length = host.aimed
        self._padded = rows, length
        self._given = (rows, length) if ragged is None else (1, len(ragged.columns))
        self._places = np.arange(rows * length) if ragged is None else ragged.columns
        row, step = self._places // length, self._places % length
        self._slots, self._columns = host.slots[row], host.starts[row] + step
        self._whole = ragged is None

    def __call__(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor
    ) -> tuple[Tensor, Span]:
        """See `Turning`."""
        heads, width, value_width = self._host.sizes[layer]
        if (
            query.shape[:2] != self._given
            or query.shape[3] != self._width
            or width != self._width
            or key.shape != (*self._given, heads, width)
            or value.shape != (*self._given, heads, value_width)
            or not query.dtype == key.dtype == value.dtype == torch.float32
            or query.numel() > _MOST
        ):
            return self._plain(layer, query, key, value)
        shape = (*self._padded, *query.shape[2:])
        turned = query.new_empty(shape) if self._whole else query.new_zeros(shape)
        keys, values = self._host.stored(layer)
        _turn(
            _rows(query),
            _rows(key),
            _rows(value),
            self._cos,
            self._sin,
            _rows(turned),
            self._places,
            keys,
            values,
            self._slots,
            self._columns,
            self._host.capacity,
        )
        return turned.transpose(1, 2), self._cache.span(layer)


def _rows(states: Tensor) -> NDArray[np.float32]:
    """States [B, q, H, D] as [B * q, H, D] for NumPy; the same memory if they lie so."""
    found: NDArray[np.float32] = states.contiguous().numpy()
    return found.reshape(-1, *found.shape[2:])


@compiled
def _turn(
    query: NDArray[np.float32],
    key: NDArray[np.float32],
    value: NDArray[np.float32],
    cos: NDArray[np.float32],
    sin: NDArray[np.float32],
    turned: NDArray[np.float32],
    places: NDArray[np.int64],
    keys: NDArray[np.float32],
    values: NDArray[np.float32],
    slots: NDArray[np.int64],
    columns: NDArray[np.int64],
    capacity: int,
) -> None:
    """Turn queries [n, g * H, D] and keys [n, H, D], and write keys and values [n, H, D].

    Args:
        query, key, value: of the new columns.
        cos, sin: of their positions, [n or q, D], n a multiple of q.
        turned: where queries go, [B * q, g * H, D].
        places: there, [n].
        keys, values: a layer's slots, as rows [slots * H * capacity, D].
        slots, columns: of each new column, [n].
        capacity: columns of a slot.
    """
    heads, half = key.shape[1], key.shape[2] // 2
    for row in range(len(query)):
        angle, at = row % len(cos), places[row]
        for head in range(query.shape[1]):
            for i in range(half):
                low, high = query[row, head, i], query[row, head, half + i]
                turned[at, head, i] = low * cos[angle, i] + high * sin[angle, i]
                turned[at, head, half + i] = (
                    high * cos[angle, half + i] + low * sin[angle, half + i]
                )
        for head in range(heads):
            place = (slots[row] * heads + head) * capacity + columns[row]
            for i in range(half):
                low, high = key[row, head, i], key[row, head, half + i]
                keys[place, i] = low * cos[angle, i] + high * sin[angle, i]
                keys[place, half + i] = high * cos[angle, half + i] + low * sin[angle, half + i]
            for i in range(value.shape[2]):
                values[place, i] = value[row, head, i]
