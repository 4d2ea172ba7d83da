"""Noise for every token of a vocabulary: the generator of `chance`, compiled.

Coupled mode asks for it at each position, where a vocabulary is 150,000 tokens: with array
operations that would take longer than the forward of many a model.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..drafters.suffix.jit import COMPILES, compiled

__all__ = ["COMPILES", "unit_intervals"]

_MULTIPLY = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_WORD, _HALF, _BITS = np.uint64(0xFFFFFFFF), np.uint64(32), np.uint64(26)
_HIGH, _LOW = np.uint64(5), np.uint64(6)
_ROUNDS = 10


@compiled
def _fill(keys: NDArray[np.uint64], out: NDArray[np.float64]) -> None:
    """Numbers inside (0, 1] for keys [B, 5] and slots 0, 1, ...: two for each block, in place."""
    rows, size = out.shape
    for row in range(rows):
        stream = keys[row, 0]
        for block in range((size + 1) // 2):
            first, second = stream & _WORD, stream >> _HALF
            a, b, c, d = keys[row, 1], keys[row, 2], keys[row, 3], np.uint64(block)
            for _ in range(_ROUNDS):
                left, right = a * _MULTIPLY[0], c * _MULTIPLY[1]
                a, b = (right >> _HALF) ^ b ^ first, right & _WORD
                c, d = (left >> _HALF) ^ d ^ second, left & _WORD
                first, second = (first + _WEYL[0]) & _WORD, (second + _WEYL[1]) & _WORD
            out[row, 2 * block] = (((a >> _HIGH) << _BITS) + (b >> _LOW) + 0.5) * 2.0**-53
            if 2 * block + 1 < size:
                out[row, 2 * block + 1] = (((c >> _HIGH) << _BITS) + (d >> _LOW) + 0.5) * 2.0**-53


def unit_intervals(keys: NDArray[np.uint64], size: int) -> NDArray[np.float64]:
    """A number inside (0, 1] for each of `size` tokens under keys [B, 5], float64 [B, size].

    Of 53 bits, and half a bit more: token 2i has the first two words of block i, token 2i + 1 the
    others.
    """
    out = np.empty((len(keys), size))
    _fill(keys, out)
    return out
