"""Traversal verification of trees: Weng et al. 2025 (arXiv 2505.12398).

Nodes are tried as the last one kept from the leaves up, siblings in the order of their columns. A
node's claim is what `Tree.visit` hands down to it; its head comes up with the claim that is left
once its children have been refused. On a chain this is block verification (Sun et al., ICLR 2025).
"""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

from array_api_compat import array_namespace

from .tree import Tree, handed_down


class TraversalVerification:
    """Keep the path to the first node, children before parents, whose head comes up."""

    def stop_distribution(self, tree: Tree) -> tuple[Any, Any]:
        """The distribution [B, N + 1] of the last node kept, float64, and every node's claim [B, N + 1]."""
        xp = array_namespace(tree.target)
        first = tree.levels[0].nodes
        claim = xp.ones(first.shape, dtype=xp.float64, device=first.device)
        claims, heads = [], []
        for level, below in zip_longest(tree.levels, tree.levels[1:]):
            weights, head, _ = tree.visit(level, claim)
            claims.append(claim)
            heads.append(head)
            if below is not None:
                claim = handed_down(weights, below)
        head = xp.take_along_axis(tree.by_node(heads), tree.order, axis=1)
        refused = xp.cumulative_prod(1 - head, axis=-1)
        before = xp.concat([xp.ones_like(refused[:, :1]), refused[:, :-1]], axis=-1)
        distribution = xp.take_along_axis(head * before, tree.rank, axis=1)
        return distribution, tree.by_node(claims)

    def residual(self, tree: Tree, claims: Any, node: Any) -> Any:
        """The distribution of the token after `node` [B], float64 [B, V]."""
        xp = array_namespace(claims)
        rows = xp.arange(node.shape[0], device=node.device)
        return tree.remaining_distribution(node, claims[rows, node])
