"""The draws of one round."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from ..types.protocols import Chance, RacingChance
from .categorical import noise_size, race_index
from .philox import Philox4x32

if TYPE_CHECKING:
    from torch import Tensor


class Race:
    """The noise of a round's positions, shared by drafter and target, made as it is asked for.

    Noise belongs to (stream, choice, position, token). It is made once a round for each position,
    and where few tokens have mass, as after top-k or top-p, only for those.

    Args:
        chance: where the noise comes from.
        keys: [B, 5], of the first position after each prefix.
    """

    def __init__(self, chance: RacingChance, keys: NDArray[np.uint64]) -> None:
        self._chance = chance
        self._keys = keys
        self._made: dict[int, Tensor] = {}

    def times(self, distributions: Tensor, offset: int) -> Tensor:
        """Noise over probability, float64, for distributions [B, V] or [B, M, V], `offset` on.

        The index of the least is a draw from the distribution; infinite where it has no mass.
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

    Noise is made for all of them in one call, since keys say what is drawn and never what came
    out. Coupled rounds, and sources of chance other than `Philox4x32`, are asked draw by draw.

    Args:
        chance: where outcomes come from.
        keys: [B, 2 + N, 5], as `round_keys` makes them.
        positions: keys [B, 5] of the first position after each prefix, in coupled mode.

    Attributes:
        race: the noise that drafter and target share, in coupled mode.
        ahead: whether noise is made ahead, so that an unused draw costs nothing.
    """

    def __init__(
        self,
        chance: Chance,
        keys: NDArray[np.uint64],
        positions: NDArray[np.uint64] | None = None,
    ) -> None:
        self._chance = chance
        self._keys = keys
        self._positions = positions
        self._noise: Tensor | None = None
        self.ahead = type(chance) is Philox4x32 and positions is None
        self.race: Race | None = None
        if positions is not None and isinstance(chance, RacingChance):
            self.race = Race(chance, positions)

    @property
    def coupled(self) -> bool:
        """Whether the target's tokens are drawn by position."""
        return self._positions is not None

    def stop(self, distributions: Tensor) -> Tensor:
        """Draw the node that each row stops at from distributions [B, N + 1]."""
        return self._draw(distributions, 0)

    def token(self, distributions: Tensor) -> Tensor:
        """Draw the token that follows the accepted ones from distributions [B, V]."""
        return self._draw(distributions, 1)

    def drafts(
        self, distributions: Tensor, slots: NDArray[np.int64], used: NDArray[np.bool_]
    ) -> Tensor:
        """Draw drafted tokens from distributions [B, M, V] under a slot each, where `used` [B, M].

        Elsewhere they are undefined.
        """
        batch, nodes, _ = distributions.shape
        if self.ahead:
            noise = self._made(distributions)[:, (2 + slots).tolist()]
            drawn: Tensor = race_index(distributions.flatten(0, 1), noise.flatten(0, 1))
            return drawn.reshape(batch, nodes)
        tokens = distributions.new_zeros((batch, nodes)).long()
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
        tokens = distributions.new_zeros(len(distributions)).long()
        if len(rows):
            keys = self._positions[rows]
            keys[:, 2] += np.uint64(offset)
            tokens[rows] = self._chance.draw(distributions[rows], keys)
        return tokens

    def _draw(self, distributions: Tensor, slot: int) -> Tensor:
        if self.ahead:
            drawn: Tensor = race_index(distributions, self._made(distributions)[:, slot])
            return drawn
        return self._chance.draw(distributions, self._keys[:, slot])

    def _made(self, distributions: Tensor) -> Tensor:
        """The noise of the round's draws, float64 [B, 2 + N, L], enough for such distributions."""
        size = noise_size(distributions.shape[-1])
        if self._noise is None or self._noise.shape[-1] < size:
            assert isinstance(self._chance, Philox4x32)
            import torch

            from ..types.transfer import sent

            made = torch.from_numpy(self._chance.race(self._keys, size))
            self._noise = sent(made, distributions.device)
        return self._noise
