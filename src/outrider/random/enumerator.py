"""The source of randomness of a proof: every outcome of every draw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from ..errors import DegenerateDistributionError, KeyReuseError

if TYPE_CHECKING:
    from torch import Tensor


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
            DegenerateDistributionError: one has NaN or negative mass, or does not sum to one within
                1e-6.
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
                f"a distribution to draw from has total mass {total!r} and least entry "
                f"{min(distribution)!r}; expected probabilities that sum to one"
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
