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

from ..errors import DegenerateDistributionError, KeyReuseError
from ..types.protocols import Chance, RacingChance
from ..types.records import SequenceState

if TYPE_CHECKING:
    from torch import Tensor

DRAFT, STOP, TOKEN, POSITION = range(4)
"""The purposes of a draw: a drafted token, the node a round stops at, the token that follows it; in
coupled mode, the target's token at a position, whose keys count positions in the place of rounds.
"""

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


def inverse_cdf(distributions: Any, uniforms: Any) -> Any:
    """Categorical draws by inversion, only ever on positive mass.

    Args:
        distributions: [B, M], non-negative, each row with a positive finite sum (need not be one).
        uniforms: float64 [B] in [0, 1 - 2**-53], of the same array library.

    Returns:
        int64 [B], inside the row whatever its entries. Cumulative sums are float64.
    """
    xp = array_namespace(distributions)
    on_host = is_numpy_array(distributions) or (
        is_torch_array(distributions) and distributions.device.type == "cpu"
    )
    if on_host and distributions.shape[1] >= _WIDE:
        return xp.asarray(_in_two_levels(distributions, np.asarray(uniforms), xp))
    if (
        on_host
    ):  # both libraries' own method: for small distributions the standard's is most of the time
        cumulative = distributions.cumsum(-1, dtype=xp.float64)
    else:
        cumulative = xp.cumulative_sum(distributions, axis=-1, dtype=xp.float64)
    # fl(u * total) < total for u <= 1 - 2**-53: the index is one where the sum rises, if any is.
    if on_host:
        rows = zip(np.asarray(cumulative), np.asarray(uniforms), strict=True)
        counts = (row.searchsorted(u * row[-1], side="right") for row, u in rows)
        found = np.fromiter(counts, dtype=np.int64, count=len(distributions))
        return xp.asarray(np.minimum(found, distributions.shape[1] - 1))
    threshold = uniforms[:, None] * cumulative[:, -1:]
    return xp.sum(xp.astype(cumulative[:, :-1] <= threshold, xp.int64), axis=-1)


_WIDE, _BLOCK = 1 << 14, 128
"""From which width on a distribution is searched in two levels, and how wide the blocks of the first are."""


def _in_two_levels(distributions: Any, uniforms: NDArray[np.float64], xp: Any) -> NDArray[np.int64]:
    """The same draws: first a block, then a place in it, so that few running sums are made."""
    if distributions.dtype not in (xp.float32, xp.float64):
        distributions = xp.astype(distributions, xp.float32)
    whole = distributions.shape[1] // _BLOCK * _BLOCK
    blocks = xp.reshape(distributions[:, :whole], (distributions.shape[0], -1, _BLOCK))
    sums = np.asarray(xp.sum(blocks, axis=-1, dtype=xp.float64))
    if whole < distributions.shape[1]:
        rest = np.asarray(distributions[:, whole:]).sum(-1, keepdims=True, dtype=np.float64)
        sums = np.concatenate([sums, rest], axis=-1)
    found = np.empty(len(sums), dtype=np.int64)
    for row, (distribution, of_blocks, u) in enumerate(
        zip(np.asarray(distributions), sums, uniforms, strict=True)
    ):
        running = of_blocks.cumsum()
        threshold = u * running[-1]
        block = min(running.searchsorted(threshold, side="right"), len(running) - 1)
        inside = distribution[block * _BLOCK : (block + 1) * _BLOCK].cumsum(dtype=np.float64)
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

        The token with the least noise over probability is a draw from the distribution, and distributions that
        resemble each other often have the same one (the Gumbel-max trick in its exponential form).
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


class Race:
    """The noise of a round's positions, shared by drafter and target, made as it is asked for.

    Noise belongs to (stream, choice, position, token). It is made once a round for each position,
    and on a CPU only for tokens that a distribution gives mass to: after top-k or top-p those are few.

    Args:
        chance: where the noise comes from.
        keys: [B, 5], of the first position after each prefix.
    """

    def __init__(self, chance: RacingChance, keys: NDArray[np.uint64]) -> None:
        self._chance = chance
        self._keys = keys
        self._made: dict[int, Tensor] = {}

    def times(self, distributions: Tensor, offset: int) -> Tensor:
        """Noise over probability for distributions [B, V] or [B, M, V], `offset` positions on, float64.

        The index of the least is a draw from the distribution; infinite where the distribution has no mass.
        """
        xp = array_namespace(distributions)
        vocab_size = int(distributions.shape[-1])
        noise = self._made.get(offset)
        if noise is None:
            noise = xp.full((distributions.shape[0], vocab_size), xp.inf, dtype=xp.float64)
            noise = noise.to(distributions.device)
            self._made[offset] = noise
        support = distributions > 0 if distributions.ndim == 2 else (distributions > 0).any(1)
        missing = support & noise.isinf()
        keys = self._keys.copy()
        keys[:, 2] += np.uint64(offset)
        rows, tokens = missing.nonzero(as_tuple=True)
        if len(rows) * 4 > noise.numel():
            noise.copy_(xp.asarray(self._chance.race(keys, vocab_size)))
        elif len(rows):
            made = self._chance.race_at(keys[rows.cpu().numpy()], tokens.cpu().numpy())
            noise[rows, tokens] = xp.asarray(made).to(noise.device)
        times = (noise if distributions.ndim == 2 else noise[:, None]) / distributions
        return times.masked_fill(distributions <= 0, xp.inf)


class RoundDraws:
    """The draws of one round: where it stops, the token that follows, and the drafted tokens.

    Args:
        chance: where outcomes come from.
        keys: [B, 2 + N, 5], as `round_keys` makes them for one round.
        uniforms: float64 [B, 2 + N] of those keys, on the device; None asks `chance` draw by draw.
        positions: keys [B, 5] of the first position after each prefix, in coupled mode.
    """

    def __init__(
        self,
        chance: Chance,
        keys: NDArray[np.uint64] | None,
        uniforms: Tensor | None,
        positions: NDArray[np.uint64] | None = None,
    ) -> None:
        self._chance = chance
        self._keys = keys
        self._uniforms = uniforms
        self._positions = positions
        self.race: Race | None = None
        if positions is not None and isinstance(chance, RacingChance):
            self.race = Race(chance, positions)

    @property
    def coupled(self) -> bool:
        """Whether the target's tokens are drawn by position."""
        return self._positions is not None

    @property
    def ahead(self) -> bool:
        """Whether the uniforms are made already, so that a draw nobody looks at costs nothing."""
        return self._uniforms is not None

    @property
    def stop_uniforms(self) -> Tensor | None:
        """What `stop` inverts distributions by, float64 [B], if it is made already."""
        return None if self._uniforms is None else self._uniforms[:, 0]

    def stop(self, distributions: Tensor) -> Tensor:
        """Draw the node that each row stops at from distributions [B, N + 1]."""
        return self._draw(distributions, 0, None)

    def token(self, distributions: Tensor) -> Tensor:
        """Draw the token that follows the accepted ones from distributions [B, V]."""
        return self._draw(distributions, 1, None)

    def draft(self, distributions: Tensor, position: int, rows: NDArray[np.int64] | None) -> Tensor:
        """Draw the `position`-th drafted token from distributions [B, V], or [R, V] for `rows` [R] only."""
        return self._draw(distributions, 2 + position, rows)

    def drafts(
        self, distributions: Tensor, slots: NDArray[np.int64], used: NDArray[np.bool_]
    ) -> Tensor:
        """Draw drafted tokens from distributions [B, M, V] under a slot each, where `used` [B, M].

        Elsewhere they mean nothing.
        """
        batch, nodes, vocab_size = distributions.shape
        if self._uniforms is not None:
            uniforms = self._uniforms[:, 2 + int(slots[0]) : 3 + int(slots[-1])]
            if uniforms.shape[1] != nodes:
                uniforms = self._uniforms[:, (2 + slots).tolist()]
            drawn: Tensor = inverse_cdf(distributions.reshape(-1, vocab_size), uniforms.reshape(-1))
            return drawn.reshape(batch, nodes)
        assert self._keys is not None, "a round of greedy rows draws nothing"
        tokens = distributions.new_zeros((batch, nodes), dtype=self._int64(distributions))
        rows, columns = np.nonzero(used)
        if len(rows):
            keys = self._keys[rows, 2]
            keys[:, 4] = slots[columns]
            tokens[rows, columns] = self._chance.draw(distributions[rows, columns], keys)
        return tokens

    def position(self, distributions: Tensor, offset: int, active: Tensor) -> Tensor:
        """Draw the target's tokens `offset` positions after the prefix from distributions [B, V].

        Rows that are not `active` may get any token.
        """
        if self.race is not None:
            return self.race.times(distributions, offset).argmin(-1)
        assert self._positions is not None, "positions are drawn in coupled mode only"
        rows = np.flatnonzero(active.cpu().numpy())
        tokens = distributions.new_zeros(len(distributions), dtype=self._int64(distributions))
        if len(rows):
            keys = self._positions[rows]
            keys[:, 2] += np.uint64(offset)
            tokens[rows] = self._chance.draw(distributions[rows], keys)
        return tokens

    @staticmethod
    def _int64(distributions: Tensor) -> Any:
        return array_namespace(distributions).int64

    def _draw(self, distributions: Tensor, slot: int, rows: NDArray[np.int64] | None) -> Tensor:
        if self._uniforms is not None:
            uniforms = self._uniforms[:, slot]
            indices: Tensor = inverse_cdf(
                distributions, uniforms if rows is None else uniforms[rows]
            )
            return indices
        assert self._keys is not None, "a round of greedy rows draws nothing"
        keys = self._keys[:, slot]
        return self._chance.draw(distributions, keys if rows is None else keys[rows])


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


def position_keys(states: Sequence[SequenceState]) -> NDArray[np.uint64]:
    """The keys [B, 5] of the states' next positions, in coupled mode."""
    rows = [
        (s.stream_key, s.choice, s.prefix.length - s.prompt_length, POSITION, 0) for s in states
    ]
    return np.array(rows, dtype=np.uint64)


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

    def draw(self, distributions: Tensor, keys: NDArray[np.uint64]) -> Tensor:
        """One index int64 [B] for each distribution [B, M], under keys [B, 5].

        Raises:
            KeyReuseError: a key was used before in this pass.
            DegenerateDistributionError: a distribution has NaN or negative mass, or does not sum to one
                within 1e-6.
        """
        xp = array_namespace(distributions)
        indices = [
            self._follow(distribution, tuple(key))
            for distribution, key in zip(distributions.tolist(), keys.tolist(), strict=True)
        ]
        chosen: Tensor = xp.asarray(indices, dtype=xp.int64, device=distributions.device)
        return chosen

    def _follow(self, distribution: list[float], key: tuple[int, ...]) -> int:
        if key in self._used:
            raise KeyReuseError(
                f"random key {key} (stream, choice, round, purpose, slot) was used for two draws; "
                "every draw of a sequence needs a key of its own"
            )
        self._used.add(key)
        total = sum(distribution)
        if not abs(total - 1) <= 1e-6 or min(distribution) < 0:
            raise DegenerateDistributionError(
                f"a distribution to draw from has total mass {total!r} and least entry {min(distribution)!r}; "
                "expected probabilities that sum to one"
            )
        possible = [index for index, mass in enumerate(distribution) if mass > 0]
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
        self.probability[branch] *= distribution[index] / total
        return index
