"""Recursive rejection on trees, with and without replacement.

SpecInfer (Miao et al., ASPLOS 2024) with siblings drawn from one distribution, Sequoia (Chen et al. 2024,
arXiv 2402.12374) with each drawn from what its siblings left. From the root down, a child is kept
with probability min(1, r(t) / distribution(t)); if it is refused, r becomes norm((r - distribution)+), and the next
is tried; when all are refused the token that follows is drawn from r. On a chain this is token-wise
verification (Leviathan et al. 2023).
"""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

from array_api_compat import array_namespace

from .tree import Tree, handed_down


class RecursiveVerification:
    """Descend to the first child that is kept, again and again."""

    def stop_distribution(self, tree: Tree) -> tuple[Any, Any]:
        """The distribution [B, N + 1] of the last node kept, float64, and claims of one."""
        xp = array_namespace(tree.target)
        first = tree.levels[0].nodes
        reached = xp.ones(first.shape, dtype=xp.float64, device=first.device)
        stops = []
        for level, below in zip_longest(tree.levels, tree.levels[1:]):
            weights, _, _ = tree.visit(level, xp.ones_like(reached))
            refused = xp.cumulative_prod(1 - weights, axis=-1)
            before = xp.concat([xp.ones_like(reached)[..., None], refused], axis=-1)
            stops.append(reached * before[..., -1])
            if below is not None:
                reached = handed_down(reached[..., None] * before[..., :-1] * weights, below)
        distribution = tree.by_node(stops)
        return distribution, xp.ones_like(distribution)

    def residual(self, tree: Tree, claims: Any, node: Any) -> Any:
        """The distribution of the token after `node` [B], float64 [B, V]."""
        return tree.remaining_distribution(node, claims[:, 0])
