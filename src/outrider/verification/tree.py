"""What a verification method sees of a drafted tree, and the one step that every method repeats.

Verification visits nodes with a claim on them: the probability, given that a node was drafted, that
the round ends there or below. At a node the target's row times the claim is the mass that may still
be spent. Each child takes from it what the distribution it was drawn from covers, in the order of columns::

    weight = min(1, left(t) / distribution(t))                the child's own claim
    left   = (left - distribution)+ / (S + 1 - claim),  claim = S / (S + 1 - claim),  S = sum (left - distribution)+

and what is left when all children have been refused is the distribution of the token that follows the node.
A claim of one at every node is recursive rejection (Leviathan et al. 2023 on a chain; Miao et al.
2024, Chen et al. 2024 on trees); the child's weight handed down as its claim is traversal
verification (Weng et al. 2025, arXiv 2505.12398), which on a chain is block verification.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace

from ..types import trees
from ..types.records import DraftProposal


@dataclass(frozen=True, slots=True)
class Level:
    """The nodes of one depth, M at most in a row, padded with the root.

    Attributes:
        nodes: int64 [B, M].
        children: the nodes that follow each, int64 [B, M, C]; 0 where there is none.
        origin: where in the level above's [M', C'] children, flattened, each node stands, [B, M].
    """

    nodes: Any
    children: Any
    origin: Any


@dataclass(frozen=True, slots=True)
class Tree:
    """Drafted trees beside the target's distributions. Arrays of one array-API library.

    Attributes:
        tokens: int64 [B, N], every entry inside the vocabulary.
        target: [B, N + 1, V], the target's distributions after each node.
        draft: [B, R, V], the distributions that tokens were drawn from; None if all are point masses.
        distribution_rows: which of the R distributions, int64 [B, N]; -1 for a point mass.
        levels: the nodes by depth, the root's first.
        places: where each node stands among the nodes of all levels, [B, N + 1].
        order: the nodes in the order they are tried as the last one kept, children before their
            parents, int64 [B, N + 1]; `rank` is its inverse.
        real: whether a node was drafted for its row, bool [B, N + 1].
    """

    tokens: Any
    target: Any
    draft: Any | None
    distribution_rows: Any
    levels: tuple[Level, ...]
    places: Any
    order: Any
    rank: Any
    real: Any

    @staticmethod
    def of(proposal: DraftProposal, target: Any) -> Tree:
        """The trees of a proposal with N >= 1, beside dense target distributions [B, N + 1, V]."""
        xp = array_namespace(target)
        batch, width = proposal.tokens.shape
        draft = None if proposal.distributions is None else proposal.distributions.probs
        rows = proposal.distribution_rows
        if draft is None:
            rows = np.full((batch, width), -1)
        elif rows is None:
            rows = trees.chain(batch, width)
        children = trees.children_table(proposal.structure, proposal.lengths)
        levels, places = _levels(children, proposal.structure, proposal.lengths)
        order = np.array([_post_order(row) for row in children.tolist()])

        def array(values: Any) -> Any:
            return xp.asarray(np.ascontiguousarray(values), device=target.device)

        return Tree(
            tokens=proposal.tokens,
            target=target,
            draft=draft,
            distribution_rows=array(rows),
            levels=tuple(Level(*map(array, level)) for level in levels),
            places=array(places),
            order=array(order),
            rank=array(np.argsort(order, axis=1)),
            real=array(np.arange(width + 1) <= proposal.lengths[:, None]),
        )

    def visit(self, level: Level, claim: Any) -> tuple[Any, Any, Any]:
        """Let the children of a level's nodes take their share.

        Args:
            level: M nodes a row.
            claim: float64 [B, M].

        Returns:
            The children's weights [B, M, C], 0 where there is none; the claim [B, M] and the
            unnormalised distribution [B, M, V] that are left once they are all refused, None where no node
            has a child.
        """
        xp = array_namespace(self.target)
        batch, nodes = level.nodes.shape
        if level.children.shape[2] == 0:
            return xp.zeros((batch, nodes, 0), device=self.target.device), claim, None
        rows = xp.arange(batch, device=self.target.device)[:, None]
        vocabulary = xp.arange(self.target.shape[-1], device=self.target.device)
        left = claim[..., None] * self.target[rows, level.nodes]
        weights = []
        for place in range(level.children.shape[2]):
            child = level.children[:, :, place]
            exists = child > 0
            column = xp.where(exists, child - 1, 0)
            token = self.tokens[rows, column]
            distribution_row = self.distribution_rows[rows, column]
            covered = xp.astype(vocabulary == token[..., None], xp.float64)
            if self.draft is not None:
                drawn = distribution_row >= 0
                distribution = self.draft[rows, xp.where(drawn, distribution_row, 0)]
                covered = xp.where(drawn[..., None], distribution, covered)
            at = xp.arange(nodes, device=self.target.device)[None, :]
            mass = left[rows, at, token]
            share = covered[rows, at, token]
            weight = xp.clip(mass / (share + xp.astype(share == 0, share.dtype)), max=1.0)
            weights.append(xp.where(exists, weight, 0.0))

            excess = xp.clip(left - covered, min=0)
            total = xp.sum(excess, axis=-1)
            divisor = total + (1 - claim)
            divisor = divisor + xp.astype(divisor <= 0, xp.float64)
            left = xp.where(exists[..., None], excess / divisor[..., None], left)
            claim = xp.where(exists, total / divisor, claim)
        return xp.stack(weights, axis=-1), claim, left

    def at(self, node: Any) -> Level:
        """A level of one node a row, `node` [B], with its children."""
        xp = array_namespace(self.target)
        rows = xp.arange(node.shape[0], device=node.device)
        place = self.places[rows, node]
        most = max(level.children.shape[2] for level in self.levels)
        padded = [
            xp.concat(
                [
                    level.children,
                    xp.zeros(
                        (*level.children.shape[:2], most - level.children.shape[2]),
                        dtype=level.children.dtype,
                        device=node.device,
                    ),
                ],
                axis=2,
            )
            for level in self.levels
        ]
        children = xp.concat(padded, axis=1)[rows, place]
        return Level(node[:, None], children[:, None], None)

    def remaining_distribution(self, node: Any, claim: Any) -> Any:
        """The distribution after `node` [B] was visited with `claim` [B], normalised, float64 [B, V].

        Where no mass is left (rounding alone can bring that about, since the node is then stopped
        at with probability zero) it is the target's row.
        """
        xp = array_namespace(self.target)
        _, _, left = self.visit(self.at(node), claim[:, None])
        rows = xp.arange(node.shape[0], device=node.device)
        row = xp.astype(self.target[rows, node], xp.float64)
        if left is None:
            return row
        left = left[:, 0]
        total = xp.sum(left, axis=-1, keepdims=True)
        return xp.where(total > 0, left / xp.where(total > 0, total, 1.0), row)

    def by_node(self, values: list[Any]) -> Any:
        """Values [B, M] of each level as values of each node, [B, N + 1]; 0 where not drafted."""
        xp = array_namespace(self.target)
        joint = xp.take_along_axis(xp.concat(values, axis=1), self.places, axis=1)
        return xp.where(self.real, joint, 0.0)


def handed_down(weights: Any, level: Level) -> Any:
    """Of weights [B, M', C'] of the level above's children, those of this level's nodes, [B, M]."""
    xp = array_namespace(weights)
    flat = xp.reshape(weights, (weights.shape[0], -1))
    return xp.take_along_axis(flat, level.origin, axis=1)


def _levels(children: Any, parents: Any, lengths: Any) -> tuple[list[tuple[Any, Any, Any]], Any]:
    """The levels of each row's tree as host arrays (see `Level`), and `Tree.places`."""
    depths = trees.node_depths(parents)
    batch, nodes = depths.shape
    real = np.arange(nodes) <= lengths[:, None]
    places = np.zeros((batch, nodes), dtype=np.int64)
    slot = np.zeros((batch, nodes), dtype=np.int64)
    sibling = np.zeros((batch, nodes), dtype=np.int64)
    for row, node, place in zip(*np.nonzero(children), strict=True):
        sibling[row, children[row, node, place]] = place
    levels: list[tuple[Any, Any, Any]] = []
    start = 0
    for depth in range(int(np.where(real, depths, 0).max()) + 1):
        here = real & (depths == depth)
        most = int(here.sum(1).max())
        members = np.zeros((batch, most), dtype=np.int64)
        origin = np.zeros((batch, most), dtype=np.int64)
        for row in range(batch):
            found = np.flatnonzero(here[row])
            members[row, : len(found)] = found
            slot[row, found] = np.arange(len(found))
            places[row, found] = start + np.arange(len(found))
            if depth:
                above = levels[-1][1].shape[2]
                mothers = parents[row, found - 1]
                origin[row, : len(found)] = slot[row, mothers] * above + sibling[row, found]
        following = np.take_along_axis(children, members[:, :, None], axis=1)
        following[np.arange(most) >= here.sum(1)[:, None]] = 0
        used = int((following > 0).sum(2).max(initial=0))
        levels.append((members, following[:, :, :used], origin))
        start += most
    return levels, places


def _post_order(children: list[list[int]]) -> list[int]:
    """The nodes of one row, children first and in order; nodes that are not drafted at the end."""
    # Parents before children and siblings from the last to the first, turned round.
    order, waiting = [], [0]
    while waiting:
        node = waiting.pop()
        order.append(node)
        waiting += [child for child in children[node] if child]
    order.reverse()
    return order + sorted(set(range(len(children))) - set(order))
