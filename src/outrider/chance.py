"""All randomness: keyed categorical draws, by a counter-based generator or by enumeration.

A key is five unsigned integers (stream key, choice, round, purpose, slot). The stream key, 64 bits,
is a hash of the request's seed and its prompt, so that one seed on many prompts gives independent
noise. The other four, 32 bits each, are the counter: they say what is drawn, never what came out,
so all of a round's uniforms are made in one call before anything is drawn.

`Philox4x32` is the generator of Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3"
(SC 2011, section 3.3), with 10 rounds and the constants published there. `Enumerator` takes the
place of chance in a proof: it walks every outcome of every draw, with its exact probability.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from array_api_compat import array_namespace, is_numpy_array, is_torch_array
from numpy.typing import NDArray

from .errors import DegenerateDistributionError, KeyReuseError
from .protocols import Chance
from .records import SequenceState

if TYPE_CHECKING:
    from torch import Tensor

DRAFT, STOP, TOKEN = range(3)
"""The purposes of a draw: a drafted token, the node a round stops at, the token that follows it."""

Uniforms = Callable[[NDArray[np.uint64]], NDArray[np.float64]]

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_WORD = 0xFFFFFFFF


def stream_key(seed: int, prompt: Sequence[int] | NDArray[np.int64]) -> int:
    """The 64-bit key of a request's randomness, from its seed and its prompt's token ids."""
    digest = hashlib.blake2b(digest_size=8)
    digest.update(int(seed).to_bytes(8, "little"))
    digest.update(np.asarray(prompt, dtype="<i8").tobytes())
    return int.from_bytes(digest.digest(), "little")


def philox4x32(counter: Any, key: Any) -> Any:
    """Philox4x32-10, one block for each trailing index.

    Args:
        counter: int64 array [4, n] of 32-bit words.
        key: int64 array [2, n] of 32-bit words, of the same array library.

    Returns:
        int64 array [4, n] of 32-bit words; NumPy and torch give the same bits.
    """
    xp = array_namespace(counter, key)
    reverse = _reversed_view if is_numpy_array(counter) else xp.flip
    multipliers = xp.asarray(_MULTIPLIERS, dtype=xp.int64)[:, None]
    weyl = xp.asarray(_WEYL, dtype=xp.int64)[None, :, None]
    steps = xp.arange(_ROUNDS, dtype=xp.int64)[:, None, None]
    keys = (key[None, :, :] + steps * weyl) & _WORD
    even, odd = counter[0::2, :], counter[1::2, :]
    for step in range(_ROUNDS):
        # The product of two 32-bit words wraps to the right 64 bits; masking undoes the sign.
        product = even * multipliers
        high = (product >> 32) & _WORD
        even, odd = reverse(high, axis=0) ^ odd ^ keys[step], reverse(product & _WORD, axis=0)
    return xp.reshape(xp.stack([even, odd], axis=1), counter.shape)


def _reversed_view(array: Any, axis: int) -> Any:
    """NumPy's flip of the first axis, without its overhead for small arrays."""
    assert axis == 0
    return array[::-1]


def inverse_cdf(laws: Any, uniforms: Any) -> Any:
    """Categorical draws by inversion, only ever on positive mass.

    Args:
        laws: [B, M], non-negative, each row with a positive finite sum (need not be one).
        uniforms: float64 [B] in [0, 1 - 2**-53], of the same array library.

    Returns:
        int64 [B]. Cumulative sums are float64. A row of NaN gives an index inside the row.
    """
    xp = array_namespace(laws)
    on_host = is_numpy_array(laws) or (is_torch_array(laws) and laws.device.type == "cpu")
    if on_host and laws.shape[1] >= _WIDE:
        return xp.asarray(_in_two_levels(laws, np.asarray(uniforms), xp))
    if on_host:  # both libraries' own method: for small laws the standard's is most of the time
        cumulative = laws.cumsum(-1, dtype=xp.float64)
    else:
        cumulative = xp.cumulative_sum(laws, axis=-1, dtype=xp.float64)
    # fl(u * total) < total for every u <= 1 - 2**-53, so the count stays below M, and the index
    # counted to is one where the cumulative sum rises. A row of NaN counts to no more than M.
    if on_host:
        rows = zip(np.asarray(cumulative), np.asarray(uniforms), strict=True)
        found = [row.searchsorted(u * row[-1], side="right") for row, u in rows]
        return xp.asarray(np.minimum(found, laws.shape[1] - 1))
    threshold = uniforms[:, None] * cumulative[:, -1:]
    return xp.sum(xp.astype(cumulative <= threshold, xp.int64), axis=-1)


_WIDE, _BLOCK = 1 << 14, 128
"""From which width on a law is searched in two levels, and how wide the blocks of the first are."""


def _in_two_levels(laws: Any, uniforms: NDArray[np.float64], xp: Any) -> NDArray[np.int64]:
    """The same draws: first a block, then a place in it, so that few running sums are made."""
    whole = laws.shape[1] // _BLOCK * _BLOCK
    blocks = xp.reshape(laws[:, :whole], (laws.shape[0], -1, _BLOCK))
    sums = np.asarray(xp.sum(blocks, axis=-1, dtype=xp.float64))
    if whole < laws.shape[1]:
        rest = np.asarray(laws[:, whole:]).sum(-1, keepdims=True, dtype=np.float64)
        sums = np.concatenate([sums, rest], axis=-1)
    found = np.empty(len(sums), dtype=np.int64)
    for row, (law, of_blocks, u) in enumerate(zip(np.asarray(laws), sums, uniforms, strict=True)):
        running = of_blocks.cumsum()
        threshold = u * running[-1]
        block = min(running.searchsorted(threshold, side="right"), len(running) - 1)
        inside = law[block * _BLOCK : (block + 1) * _BLOCK].cumsum(dtype=np.float64)
        # The levels round apart: what is left of the threshold is held to what the block holds.
        left = max(threshold - (running[block] - of_blocks[block]), 0.0)
        left = min(left, inside[-1] * (1 - 2.0**-53))
        place = min(inside.searchsorted(left, side="right"), len(inside) - 1)
        found[row] = block * _BLOCK + place
    return found


class Philox4x32:
    """The chance of production: counter-based, stateless, the same on every device and batch."""

    def uniforms(self, keys: NDArray[np.uint64]) -> NDArray[np.float64]:
        """Uniforms in [0, 1) for keys [..., 5]: 53 bits each, on the host."""
        stream = keys[..., 0]
        key = np.stack([stream & np.uint64(_WORD), stream >> np.uint64(32)]).astype(np.int64)
        counter = np.moveaxis(keys[..., 1:], -1, 0).astype(np.int64)
        words = philox4x32(counter.reshape(4, -1), key.reshape(2, -1))
        mantissa = (words[0] >> 5) * (1 << 26) + (words[1] >> 6)
        uniforms: NDArray[np.float64] = (mantissa * 2.0**-53).reshape(stream.shape)
        return uniforms

    def draw(self, laws: Tensor, keys: NDArray[np.uint64]) -> Tensor:
        """One index int64 [B] for each law [B, M], under keys [B, 5]."""
        xp = array_namespace(laws)
        uniforms = xp.asarray(self.uniforms(keys))
        indices: Tensor = inverse_cdf(laws, uniforms.to(laws.device))
        return indices


class RoundDraws:
    """The draws of one round: where it stops, the token that follows, and the drafted tokens.

    Args:
        chance: where outcomes come from.
        keys: [B, 2 + N, 5], as `round_keys` makes them for one round.
        uniforms: float64 [B, 2 + N] of those keys, on the device; None asks `chance` draw by draw.
    """

    def __init__(
        self, chance: Chance, keys: NDArray[np.uint64] | None, uniforms: Tensor | None
    ) -> None:
        self._chance = chance
        self._keys = keys
        self._uniforms = uniforms

    def stop(self, laws: Tensor) -> Tensor:
        """Draw the node that each row stops at from laws [B, N + 1]."""
        return self._draw(laws, 0, None)

    def token(self, laws: Tensor) -> Tensor:
        """Draw the token that follows the accepted ones from laws [B, V]."""
        return self._draw(laws, 1, None)

    def draft(self, laws: Tensor, position: int, rows: NDArray[np.int64] | None) -> Tensor:
        """Draw the `position`-th drafted token from laws [B, V], or [R, V] for `rows` [R] only."""
        return self._draw(laws, 2 + position, rows)

    def _draw(self, laws: Tensor, slot: int, rows: NDArray[np.int64] | None) -> Tensor:
        if self._uniforms is not None:
            uniforms = self._uniforms[:, slot]
            indices: Tensor = inverse_cdf(laws, uniforms if rows is None else uniforms[rows])
            return indices
        assert self._keys is not None, "a round of greedy rows draws nothing"
        keys = self._keys[:, slot]
        return self._chance.draw(laws, keys if rows is None else keys[rows])


@dataclass(frozen=True, slots=True)
class Noise:
    """Uniforms of a batch's coming rounds, made in one host call and copied once.

    They may be made ahead because keys say what is drawn and never what came out.

    Attributes:
        uniforms: float64 [rounds, B, 2 + N], on the device.
        used: how many of the rounds have been taken.
    """

    uniforms: Tensor
    used: int

    def covers(self, width: int) -> bool:
        """Whether the next round, of at most `width` drafts, is among them."""
        rounds, _, columns = self.uniforms.shape
        return self.used < rounds and width + 2 <= int(columns)


def round_keys(states: Sequence[SequenceState], width: int, rounds: int = 1) -> NDArray[np.uint64]:
    """The keys [rounds, B, 2 + width, 5] of the states' next rounds: stop, token, drafts."""
    keys = np.zeros((rounds, len(states), 2 + width, 5), dtype=np.uint64)
    for row, state in enumerate(states):
        keys[:, row, :, 0] = state.stream_key
        keys[:, row, :, 1] = state.choice
        keys[:, row, :, 2] = np.arange(state.round, state.round + rounds)[:, None]
    keys[:, :, 0, 3] = STOP
    keys[:, :, 1, 3] = TOKEN
    keys[:, :, 2:, 4] = np.arange(width)
    return keys


class Enumerator:
    """Chance that walks every outcome of every draw, each with its exact probability.

    One pass follows one path per branch. A branch is named by the stream key of its draws, 0 to
    len(paths) - 1; its path prescribes the outcomes of its first draws. Each later draw takes the
    first possible outcome and notes the others in `siblings`, as paths for a later pass. Draws with
    one possible outcome are no part of a path: whether they are made depends on the batch.

    Args:
        paths: the prescribed outcomes of each branch.

    Attributes:
        probability: of each branch's path so far.
        siblings: paths that this pass met and did not follow, with the branch each left.
    """

    def __init__(self, paths: Sequence[tuple[int, ...]]) -> None:
        self._followed = [list[int]() for _ in paths]
        self._paths = paths
        self._used: set[tuple[int, ...]] = set()
        self.probability = [1.0] * len(paths)
        self.siblings: list[tuple[int, tuple[int, ...]]] = []

    def draw(self, laws: Tensor, keys: NDArray[np.uint64]) -> Tensor:
        """One index int64 [B] for each law [B, M], under keys [B, 5].

        Raises:
            KeyReuseError: a key was used before in this pass.
            DegenerateDistributionError: a law has NaN or negative mass, or does not sum to one
                within 1e-6.
        """
        xp = array_namespace(laws)
        indices = [
            self._follow(law, tuple(key))
            for law, key in zip(laws.tolist(), keys.tolist(), strict=True)
        ]
        chosen: Tensor = xp.asarray(indices, dtype=xp.int64, device=laws.device)
        return chosen

    def _follow(self, law: list[float], key: tuple[int, ...]) -> int:
        if key in self._used:
            raise KeyReuseError(
                f"random key {key} (stream, choice, round, purpose, slot) was used for two draws; "
                "every draw of a sequence needs a key of its own"
            )
        self._used.add(key)
        total = sum(law)
        if not abs(total - 1) <= 1e-6 or min(law) < 0:
            raise DegenerateDistributionError(
                f"a law to draw from has total mass {total!r} and least entry {min(law)!r}; "
                "expected probabilities that sum to one"
            )
        possible = [index for index, mass in enumerate(law) if mass > 0]
        if len(possible) == 1:
            return possible[0]
        branch = key[0]
        followed = self._followed[branch]
        if len(followed) < len(self._paths[branch]):
            index = self._paths[branch][len(followed)]
        else:
            index, *others = possible
            self.siblings += [(branch, (*followed, other)) for other in others]
        followed.append(index)
        self.probability[branch] *= law[index] / total
        return index
