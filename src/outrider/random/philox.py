"""Philox4x32-10 as a source of randomness: counter-based, stateless, the same on every device.

The generator is that of Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011,
section 3.3), with 10 rounds and the constants published there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from array_api_compat import array_namespace, device
from numpy.typing import NDArray

from .categorical import noise_size, race_index

if TYPE_CHECKING:
    from torch import Tensor

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_WORD = 0xFFFFFFFF


def philox4x32(counter: Any, key: Any) -> Any:
    """Philox4x32-10, one block for each trailing index.

    Args:
        counter: int64 array [4, ...] of 32-bit words.
        key: int64 array [2, ...] of 32-bit words, of the same array library; trailing axes
            broadcast against the counter's.

    Returns:
        int64 array [4, ...] of 32-bit words; NumPy and torch give the same bits.
    """
    xp = array_namespace(counter, key)
    first, second, third, fourth = (counter[word, ...] for word in range(4))
    left, right = key[0, ...], key[1, ...]
    for _ in range(_ROUNDS):
        # The product of two 32-bit words wraps to the right 64 bits; masking undoes the sign.
        one, other = first * _MULTIPLIERS[0], third * _MULTIPLIERS[1]
        first, second = ((other >> 32) & _WORD) ^ second ^ left, other & _WORD
        third, fourth = ((one >> 32) & _WORD) ^ fourth ^ right, one & _WORD
        left, right = (left + _WEYL[0]) & _WORD, (right + _WEYL[1]) & _WORD
    return xp.stack([first, second, third, fourth])


class Philox4x32:
    """The chance of production: counter-based, stateless, the same on every device and batch."""

    def uniforms(self, keys: NDArray[np.uint64]) -> NDArray[np.float64]:
        """Uniforms in [0, 1) for keys [..., 5]: 53 bits each, on the host."""
        words = philox4x32(*_counter_and_key(keys))
        return np.multiply(_mantissa(words[0], words[1]), 2.0**-53, dtype=np.float64)

    def draw(self, distributions: Tensor, keys: NDArray[np.uint64]) -> Tensor:
        """One index int64 [B] for each distribution [B, M], under keys [B, 5]."""
        xp = array_namespace(distributions)
        noise = self.race(keys, noise_size(distributions.shape[1]))
        where = device(distributions)
        drawn: Tensor = race_index(distributions, xp.asarray(noise, device=where))
        return drawn

    def race(self, keys: NDArray[np.uint64], size: int) -> NDArray[np.float64]:
        """Exponential noise [..., size] under keys [..., 5].

        The index with the least noise over probability is a draw from the distribution, and
        distributions that resemble each other often have the same one (the Gumbel-max trick in its
        exponential form).
        """
        blocks = np.arange((size + 1) // 2)  # of two numbers each
        words = philox4x32(*_counter_and_key(keys[..., None, :], blocks))
        mantissa = np.stack([_mantissa(*words[:2]), _mantissa(*words[2:])], -1)
        return _exponential(mantissa.reshape(*keys.shape[:-1], 2 * len(blocks))[..., :size])

    def race_at(self, keys: NDArray[np.uint64], tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """What `race` gives under keys [n, 5] to one index [n] each."""
        words = philox4x32(*_counter_and_key(keys, tokens >> 1))
        return _exponential(_mantissa(*np.where(tokens & 1, words[2:], words[:2])))


def _counter_and_key(
    keys: NDArray[np.uint64], blocks: NDArray[np.int64] | int = 0
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Keys [..., 5] as the generator's counter [4, ...] and key [2, ...], for some of its blocks.

    The word that has the purpose, which is below 256, counts the blocks as well.
    """
    choice, number, purpose, slot = np.moveaxis(keys[..., 1:].astype(np.int64), -1, 0)
    counter = np.stack(np.broadcast_arrays(choice, number, purpose + (blocks << 8), slot))
    stream = keys[..., 0]
    key = np.stack([stream & np.uint64(_WORD), stream >> np.uint64(32)])
    return counter, key.astype(np.int64)


def _mantissa(high: NDArray[np.int64], low: NDArray[np.int64]) -> NDArray[np.int64]:
    """53 bits of two 32-bit words."""
    return (high >> 5) * (1 << 26) + (low >> 6)


def _exponential(mantissa: NDArray[np.int64]) -> NDArray[np.float64]:
    """Exponential noise, positive and finite, of 53 bits."""
    uniforms = np.multiply(mantissa + 0.5, 2.0**-53, dtype=np.float64)
    return np.asarray(-np.log(uniforms)).clip(min=2.0**-54)
