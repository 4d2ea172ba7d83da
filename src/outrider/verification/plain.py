"""Drafted chains as plain numbers, and the distributions of where a round stops as edges.

A distribution over the nodes 0..L cuts [0, 1) into intervals, in order; the node drawn is the one whose
interval has the uniform. Its edges, the probabilities of stopping before each node, can be found
from the leaf towards the root. Where the uniform is known ahead, those on the far side of it need
not be found at all, and sums over whole rows that only they would have needed are not made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Protocol

from .chain import Method

Excess = Callable[[list[int], int, list[float]], list[float]]
"""sum_x (w P(x) - Q(x))+ at one node, before the leaf, of some rows, for a weight w of each."""


@dataclass(frozen=True, slots=True)
class PlainChains:
    """B drafted chains.

    Attributes:
        ratios: of each row its L numbers, target over draft probability of each token.
        excess: makes sums over whole rows.
    """

    ratios: list[list[float]]
    excess: Excess

    def reached(self) -> list[list[float]]:
        """The p_i = min(1, p_(i-1) r_i) of each row, L + 1 numbers that begin with p_0 = 1."""
        return [
            list(accumulate(row, lambda kept, ratio: min(kept * ratio, 1.0), initial=1.0))
            for row in self.ratios
        ]


class LazyMethod(Method, Protocol):
    """A method whose distribution of where to stop is also known by its edges."""

    def stop_edges(
        self, chains: PlainChains, uniforms: Sequence[float] | None
    ) -> tuple[list[list[float]], list[list[float]]]:
        """Where the distribution of each row's last node cuts [0, 1).

        Args:
            chains: the drafts.
            uniforms: one of [0, 1) for each row, if only `stop` is to be known; None asks for the
                whole distribution.

        Returns:
            The probability of stopping before each node 0..L of a row, and the weights that
            `residual` wants there. With uniforms, numbers may stand for edges that `stop` does not
            depend on.
        """
        ...


def stop(edges: Sequence[float], uniform: float) -> int:
    """The node whose interval has the uniform, of [0, 1): the last whose edge is not above it."""
    node = len(edges) - 1
    while node and not uniform >= edges[node]:
        node -= 1
    return node


def stop_distribution(edges: Sequence[float], width: int) -> list[float]:
    """The distribution of the nodes 0..width whose first L + 1 have these edges; the rest have no mass."""
    distribution = [after - before for before, after in pairwise((*edges, 1.0))]
    return distribution + [0.0] * (width + 1 - len(distribution))
