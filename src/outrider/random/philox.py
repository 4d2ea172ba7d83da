"""Philox4x32-10 as a source of randomness: counter-based, stateless, the same on every device.

The generator is that of Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011,
section 3.3), with 10 rounds and the constants published there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from .categorical import inverse_cdf

if TYPE_CHECKING:
    from torch import Tensor

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_WORD = 0xFFFFFFFF


def philox4x32(counter: Any, key: Any) -> Any:
    """Philox4x32-10, one block for each trailing index.

    Args:
        counter: int64 array [4, n] of 32-bit words.
        key: int64 array [2, n] of 32-bit words, of the same array library.

    Returns:
        int64 array [4, n] of 32-bit words; NumPy and torch give the same bits.
    """
    xp = array_namespace(counter, key)
    first, second, third, fourth = (counter[word, :] for word in range(4))
    left, right = key[0, :], key[1, :]
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
        words = philox4x32(*_counter_and_key(keys.reshape(-1, 5)))
        mantissa = _mantissa(words[0], words[1]).reshape(keys.shape[:-1])
        uniforms: NDArray[np.float64] = np.multiply(mantissa, 2.0**-53, dtype=np.float64)
        return uniforms

    def draw(self, distributions: Tensor, keys: NDArray[np.uint64]) -> Tensor:
        """One index int64 [B] for each distribution [B, M], under keys [B, 5]."""
        xp = array_namespace(distributions)
        uniforms = xp.asarray(self.uniforms(keys))
        indices: Tensor = inverse_cdf(distributions, uniforms.to(distributions.device))
        return indices

    def race(self, keys: NDArray[np.uint64], size: int) -> NDArray[np.float64]:
        """Exponential noise [B, size] under keys [B, 5], whose slots number the tokens.

        The token with the least noise over probability is a draw from the distribution, and
        distributions that resemble each other often have the same one (the Gumbel-max trick in its
        exponential form).
        """
        blocks = (size + 1) // 2  # of two tokens each, as `race_at` has them
        asked = np.repeat(keys, blocks, axis=0)
        asked[:, 4] = np.tile(np.arange(blocks), len(keys))
        words = philox4x32(*_counter_and_key(asked))
        mantissa = _mantissa(words[0::2], words[1::2]).T.reshape(len(keys), 2 * blocks)[:, :size]
        return _exponential(np.multiply(mantissa + 0.5, 2.0**-53, dtype=np.float64))

    def race_at(self, keys: NDArray[np.uint64], tokens: NDArray[np.int64]) -> NDArray[np.float64]:
        """What `race` gives under keys [n, 5] to one token [n] each."""
        asked = keys.copy()
        asked[:, 4] = tokens >> 1
        words = philox4x32(*_counter_and_key(asked))
        high, low = np.where(tokens & 1, words[2:], words[:2])
        return _exponential(np.multiply(_mantissa(high, low) + 0.5, 2.0**-53, dtype=np.float64))


def _counter_and_key(keys: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Keys [n, 5] as the generator's counter [4, n] and key [2, n]."""
    stream = keys[:, 0]
    key = np.stack([stream & np.uint64(_WORD), stream >> np.uint64(32)]).astype(np.int64)
    return np.ascontiguousarray(keys[:, 1:].T).astype(np.int64), key


def _mantissa(high: NDArray[np.int64], low: NDArray[np.int64]) -> NDArray[np.int64]:
    """53 bits of two 32-bit words."""
    return (high >> 5) * (1 << 26) + (low >> 6)


def _exponential(uniforms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Exponential noise, positive and finite, of numbers inside (0, 1]."""
    return np.asarray(-np.log(uniforms)).clip(min=2.0**-54)
