"""How likely a drafted token is to be kept, by how sure the draft was of it.

Sure means a law of little entropy. AdaEDL (Agrawal et al. 2024, arXiv 2410.18351) bounds the chance
from below by a formula; here it is counted, since it depends on the pair: a draft that is unsure of
many tokens at temperature 0 still has the right one first more often than not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_EDGES = np.array([0.05, 0.2, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0])
"""Nats: where one class of entropies ends and the next begins."""

_GREEDY = (0.99, 0.98, 0.96, 0.92, 0.9, 0.85, 0.8, 0.75, 0.65, 0.45, 0.35)
_SAMPLED = (0.98, 0.93, 0.85, 0.75, 0.68, 0.58, 0.52, 0.48, 0.45, 0.42, 0.4)
"""What is thought of each class before the first round: of likeliest tokens, and of drawn ones."""

_FIRST_WEIGHT = 4.0
"""For how many tokens that counts."""

_MEMORY = 0.99
"""What a token weighs beside the next one of its class: 100 count in all."""


class Sureness:
    """Running estimates of one kind of rows: greedy ones, or sampled ones."""

    def __init__(self, *, greedy: bool) -> None:
        self._reached = np.full(len(_EDGES) + 1, _FIRST_WEIGHT)
        self._kept = np.array(_GREEDY if greedy else _SAMPLED) * _FIRST_WEIGHT

    @property
    def overall(self) -> float:
        """Of all tokens."""
        return float(self._kept.sum() / self._reached.sum())

    @property
    def chances(self) -> NDArray[np.float64]:
        """Of each class of entropies, as `classes` numbers them."""
        return np.asarray(self._kept / self._reached)

    def add(self, entropies: Sequence[float], accepted: int) -> None:
        """Count a row's round: all tokens that were kept, and the first that was not.

        Args:
            entropies: of the laws that its tokens were drawn from, in nats.
            accepted: how many of them were kept.
        """
        for place, index in enumerate(classes(np.array(entropies[: accepted + 1]))):
            self._reached[index] = self._reached[index] * _MEMORY + 1
            self._kept[index] = self._kept[index] * _MEMORY + (place < accepted)


def classes(entropies: NDArray[np.float64]) -> NDArray[np.int64]:
    """The class of each entropy; one that is not a number belongs to the least sure."""
    return np.digitize(entropies, _EDGES)


@dataclass(frozen=True, slots=True)
class WorthAStep:
    """Whether another step of the draft pays, for rows that take their steps together.

    After n tokens in a row the next step emits, summed over the rows, the chance that all n are
    kept and the next one too, and takes what a round of n + 1 tokens takes beyond one of n. It pays
    where that is more tokens a second than rounds bring on the whole: the rule of greatest reward
    a second in a renewal process (Ross 1970, "Applied Probability Models with Optimization
    Applications", chapter 7). How likely the next token is to be kept is not known before the
    step, so that what tokens on the whole are stands for it.

    Attributes:
        shared: the rows that end together, bool [B]; the others go as deep as planned.
        chances: of each row's classes of entropies, float64 [B, C].
        following: the chance of a next token to be kept, float64 [B].
        seconds: of a round at each depth, float64 [N + 2] for drafts of N at most.
        rate: tokens a second, of all shared rows, that a step has to bring.
    """

    shared: NDArray[np.bool_]
    chances: NDArray[np.float64]
    following: NDArray[np.float64]
    seconds: NDArray[np.float64]
    rate: float

    def __call__(
        self, entropies: NDArray[np.float64], drafting: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """Whether each row takes another step, bool [B].

        Args:
            entropies: of the laws so far, float64 [B, n].
            drafting: the rows that may take another step, bool [B].
        """
        taken = entropies.shape[1]
        kept = np.take_along_axis(self.chances, classes(entropies), 1).prod(1)
        more = float((kept * self.following)[self.shared & drafting].sum())
        pays = more >= self.rate * float(self.seconds[taken + 1] - self.seconds[taken])
        return ~self.shared | pays
