"""The lossless methods: which drafted tokens are kept, as pure functions of a tree."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from array_api_compat import array_namespace

from .tree import Level, Tree, handed_down


class Method(ABC):
    """A verification method. Subclass it to bring your own.

    Attributes:
        lossy: whether it changes the distribution of the output.
        trees: whether it takes trees, and tokens drawn beside point masses, and not chains alone.
        keeps_forbidden: whether it may keep a token to which the target gives no probability.
    """

    lossy: bool = False
    trees: bool = True
    keeps_forbidden: bool = False

    @abstractmethod
    def stop_distribution(self, tree: Tree) -> tuple[Any, Any]:
        """Find where the round stops.

        Returns:
            The distribution [B, N + 1] of the last node kept, float64 (on a chain: of the number of
            tokens kept), and the nodes' acceptance weights [B, N + 1], float64, for `residual`.
        """

    def residual(self, tree: Tree, weights: Any, node: Any) -> Any:
        """Find the distribution of the token after `node` [B], [B, V], of the target's dtype."""
        xp = array_namespace(weights)
        rows = xp.arange(node.shape[0], device=node.device)
        return tree.remaining_distribution(node, weights[rows, node])


class RecursiveVerification(Method):
    """Descend to the first child that is kept, again and again; on a chain, token by token.

    A child is kept with probability min(1, r(t) / q(t)), where r is the target's distribution at
    first; if it is refused, r becomes norm((r - q)+) and the next child is tried; when all are, the
    token that follows is drawn from r. Leviathan et al. 2023 (arXiv 2211.17192, section 2.3) and
    Chen et al. 2023 on chains; SpecInfer (Miao et al. 2024) for siblings drawn from one
    distribution, Sequoia (Chen et al. 2024, arXiv 2402.12374) for those drawn without replacement.
    """

    def stop_distribution(self, tree: Tree) -> tuple[Any, Any]:
        """As `Method` says; all weights are one."""
        xp = array_namespace(tree.target)
        if tree.draft is None:
            return point_mass_stop(tree)

        def onward(level: Level) -> Any:
            weight = xp.ones(level.nodes.shape, dtype=xp.float64, device=level.nodes.device)
            acceptance, _, _ = tree.acceptance(level, weight)
            if level.places < 2:
                return acceptance
            refused = xp.cumulative_prod(1 - acceptance, axis=-1)
            before = xp.concat([xp.ones_like(refused[..., :1]), refused[..., :-1]], axis=-1)
            return before * acceptance

        distribution = _descent(tree, onward)
        return distribution, xp.ones_like(distribution)


class TraversalVerification(Method):
    """Keep the path to the first node that the round stops at, children tried before their parents.

    A node's stop probability is the weight that is left once its children have been refused (see
    `outrider.verification.tree`). Weng et al. 2025 (arXiv 2505.12398); on a chain it is block
    verification (Sun et al. 2025, arXiv 2403.10444, algorithm 2): with p_0 = 1 and
    p_i = min(1, p_(i-1) P(x_i) / Q(x_i)), every token i has a stop probability::

        h_L = p_L,   h_i = A_i / (A_i + 1 - p_i),   A_i = sum_x (p_i P(x) - Q(x))+

    and the round keeps everything up to the last node whose draw says stop. No lossless verifier
    that sees only the drafted path keeps more tokens in expectation.
    """

    def stop_distribution(self, tree: Tree) -> tuple[Any, Any]:
        """As `Method` says; on a chain the weights are the p_i."""
        xp = array_namespace(tree.target)
        if tree.draft is None:
            return point_mass_stop(tree)
        weights, stops = [tree.ones()], [tree.ones()]  # the round stops at the root, or below
        if tree.path is not None:
            for column in range(tree.ratio.shape[1]):
                weights.append(xp.clip(weights[-1] * tree.ratio[:, column : column + 1], max=1.0))
            # Node by node, so that what is computed of a row of the vocabulary stays in a cache.
            for node, weight in enumerate(weights[1:-1], 1):
                stops.append(tree.stop_probability(tree.path.at(node), weight, None))
            stops.append(weights[-1])
        for depth, level in enumerate(tree.levels):
            acceptance, before, left = tree.acceptance(level, weights[-1])
            if depth:
                stops.append(tree.stop_probability(level, before, left))
            if depth + 1 < len(tree.levels):
                weights.append(handed_down(acceptance, tree.levels[depth + 1]))
        stop = xp.take_along_axis(tree.by_node(stops), tree.order, axis=1)
        refused = xp.cumulative_prod(1 - stop, axis=-1)
        before = xp.concat([xp.ones_like(refused[:, :1]), refused[:, :-1]], axis=-1)
        return xp.take_along_axis(stop * before, tree.rank, axis=1), tree.by_node(weights)


def point_mass_stop(tree: Tree) -> tuple[Any, Any]:
    """Find where a round stops whose tokens are all point masses, none drawn.

    Sample the target, descend while the token is among the children: every method comes to this,
    and no distribution is read but at the drafted tokens. A token proposed twice after one node is
    taken where it came first.

    Returns:
        As `Method.stop_distribution`.
    """
    xp = array_namespace(tree.target)

    def onward(level: Level) -> Any:
        rows = xp.arange(level.nodes.shape[0], device=level.nodes.device)[:, None, None]
        taken = xp.where(level.exists, xp.clip(tree.ratio[rows, level.columns], max=1.0), 0.0)
        if level.places > 1:
            places = xp.arange(level.places, device=level.nodes.device)
            tokens = tree.tokens[rows, level.columns]
            same = tokens[..., :, None] == tokens[..., None, :]
            earlier = places[None, :] < places[:, None]
            repeated = xp.any(same & earlier & level.exists[..., None, :], axis=-1)
            taken = xp.where(repeated, 0.0, taken)
        return taken

    distribution = _descent(tree, onward)
    return distribution, xp.ones_like(distribution)


def _descent(tree: Tree, onward: Callable[[Level], Any]) -> Any:
    """The distribution [B, N + 1] of where a descent from the root ends.

    `onward` gives the probabilities [B, M, C] of going on from a level's nodes to each child.
    """
    xp = array_namespace(tree.target)
    reached, stops = tree.ones(), []
    if tree.path is not None:
        chosen = onward(tree.path)[..., 0]
        reached = xp.concat([reached, xp.cumulative_prod(chosen, axis=-1)], axis=-1)
        return tree.by_node([reached[:, :-1] * (1 - chosen), reached[:, -1:]])
    for level, below in pairwise(tree.levels):
        chosen = onward(level)
        stops.append(reached * xp.clip(1 - xp.sum(chosen, axis=-1), min=0.0))
        reached = handed_down(reached[..., None] * chosen, below)
    return tree.by_node([*stops, reached])
