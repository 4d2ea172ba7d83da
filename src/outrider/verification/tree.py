"""Drafted tokens beside the target's distributions, and the one rule that every method repeats.

A chain is the tree with one path. Verification gives each node an acceptance weight: the
probability, given that it was drafted, that the round ends there or below. At a node with weight c,
the mass that may still be spent is c P. Each child t, drawn from Q, takes from it what Q
covers, in the order of columns::

    acceptance = min(1, left(t) / Q(t))                   the child is kept, if it is tried
    left   = (left - Q)+ / (S + 1 - c),  c = S / (S + 1 - c),  S = sum (left - Q)+    if it is not

and what is left when all children are refused is the distribution of the token that follows.
A weight of one at every node is recursive rejection (token-wise on a chain: Leviathan et al. 2023,
arXiv 2211.17192; on trees: SpecInfer, Sequoia). A child's acceptance handed down as its weight is
traversal verification (Weng et al. 2025, arXiv 2505.12398), which on a chain is block verification
(Sun et al. 2025, arXiv 2403.10444).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from array_api_compat import array_namespace
from numpy.typing import NDArray

from ..random import row_totals
from ..types import trees
from ..types.records import DraftProposal


@dataclass(frozen=True, slots=True)
class Level:
    """The nodes of one depth, M at most in a row, padded with the root.

    Attributes:
        nodes: int64 [B, M].
        columns: the column of each node's children, int64 [B, M, C]; 0 where there is none.
        exists: bool [B, M, C], where there is one.
        origin: where each node stands in the level above's [M', C'] children, flattened, [B, M].
        node: the only node, if it is one and the same in all rows: their distributions are views.
    """

    nodes: Any
    columns: Any
    exists: Any
    origin: Any
    node: int | None = None

    @property
    def places(self) -> int:
        """C, the most children of a node."""
        return int(self.columns.shape[2])

    def at(self, node: int) -> Level:
        """One node of a chain's path."""
        parts = (self.nodes, self.columns, self.exists, self.origin)
        nodes, columns, exists, origin = (part[:, node : node + 1, ...] for part in parts)
        return Level(nodes, columns, exists, origin, node)


@dataclass(frozen=True, slots=True)
class Tree:
    """Drafted trees beside the target's distributions. Arrays of one array-API library.

    Attributes:
        tokens: int64 [B, N], every entry inside the vocabulary.
        length: int64 [B], how many columns of each row are drafted.
        target: [B, N + 1, V], the target's distributions after each node.
        draft: [B, R, V], what tokens were drawn from; None if all are point masses.
        distribution_rows: which of the R distributions, int64 [B, N]; -1 for a point mass.
        ratio: float64 [B, N], target over draft probability of each token at its parent; 0 where
            nothing was drafted.
        share: float64 [B, N], the draft probability of each token.
        levels: the nodes by depth, the root's first; none for chains.
        path: of chains, the nodes 0..N - 1 as if they were of one level; None for trees.
        places: where each node stands among the nodes of all levels, int64 [B, N + 1].
        order: the nodes, children before their parents and siblings in order, int64 [B, N + 1].
        rank: the inverse of `order`.
        children: the children of each node, int64 [B, N + 1, C], in order; 0 where there is none.
        dtype: of masses: that of the distributions, float32 at least. Sums of them are float64.
        beside: whether the draft's distributions go side by side with the tokens.
        kinds: of the children in each of the C places, whether they were drawn (True), proposed
            as point masses (False), or some each (None).
    """

    tokens: Any
    length: Any
    target: Any
    draft: Any | None
    distribution_rows: Any
    ratio: Any
    share: Any
    levels: tuple[Level, ...]
    path: Level | None
    places: Any
    order: Any
    rank: Any
    children: Any
    dtype: Any
    beside: bool
    kinds: tuple[bool | None, ...]

    @staticmethod
    def of(proposal: DraftProposal, target: Any) -> Tree:
        """Set a proposal with N >= 1 beside dense target distributions [B, N + 1, V]."""
        xp = array_namespace(target)
        batch, width = proposal.tokens.shape
        parents, lengths = proposal.structure, proposal.lengths
        draft = None if proposal.distributions is None else proposal.distributions.probs
        sources = proposal.distribution_rows
        if draft is None:
            sources = np.full((batch, width), -1)
        elif sources is None:
            sources = trees.chain(batch, width)
        parents, lengths, sources = (
            np.ascontiguousarray(of, dtype=np.int64) for of in (parents, lengths, sources)
        )
        layout = _layout(parents.tobytes(), lengths.tobytes(), sources.tobytes(), batch, width)
        length, parent, source, places, order, rank, children, *parts = layout.sent(xp, target)
        drafted = xp.arange(width, device=target.device)[None, :] < length
        rows = xp.arange(batch, device=target.device)[:, None]
        ratio = xp.astype(target[rows, parent, proposal.tokens], xp.float64)
        share = xp.ones_like(ratio)
        if draft is not None:
            share = xp.astype(draft[rows, xp.clip(source, min=0), proposal.tokens], xp.float64)
            # What a token was drawn from gives it mass; elsewhere there may be none to divide by.
            share = xp.where(drafted & (source >= 0) & (share > 0), share, 1.0)
        levels = tuple(
            Level(nodes, columns, exists > 0, origin)
            for nodes, columns, exists, origin in zip(*[iter(parts)] * 4, strict=True)
        )
        return Tree(
            tokens=proposal.tokens,
            length=length[:, 0],
            target=target,
            draft=draft,
            distribution_rows=source,
            ratio=xp.where(drafted, ratio / share, 0.0),
            share=share,
            levels=() if layout.chain else levels,
            path=levels[0] if layout.chain else None,
            places=places,
            order=order,
            rank=rank,
            children=children,
            dtype=xp.result_type(
                xp.float32, target.dtype, (target if draft is None else draft).dtype
            ),
            beside=proposal.distribution_rows is None,
            kinds=layout.kinds,
        )

    def acceptance(self, level: Level, weight: Any) -> tuple[Any, Any, Any | None]:
        """Try the children of a level's nodes in order.

        Args:
            level: M nodes a row.
            weight: float64 [B, M], the nodes' weights.

        Returns:
            The probabilities [B, M, C] with which children are kept, 0 where there is none; and the
            weight [B, M] and mass [B, M, V] that are left before the last place (None: untouched).
        """
        xp = array_namespace(self.target)
        rows = xp.arange(weight.shape[0], device=weight.device)[:, None]
        acceptance = [xp.zeros((*weight.shape, 0), dtype=weight.dtype, device=weight.device)]
        left: Any | None = None
        for place in range(level.places):
            column = level.columns[:, :, place]
            if place == 0:
                accepted = weight * self.ratio[rows, column]
            else:
                weight, left = self.refuse(level, place - 1, weight, left)
                at = xp.arange(weight.shape[1], device=weight.device)[None, :]
                accepted = left[rows, at, self.tokens[rows, column]] / self.share[rows, column]
            kept = xp.where(level.exists[:, :, place], xp.clip(accepted, max=1.0), 0.0)
            acceptance.append(kept[..., None])
        return xp.concat(acceptance, axis=-1), weight, left

    def refuse(self, level: Level, place: int, weight: Any, left: Any | None) -> tuple[Any, Any]:
        """Refuse the children in one place: the weights [B, M] and the mass [B, M, V] after it."""
        xp = array_namespace(self.target)
        exists = level.exists[:, :, place]
        left = self._mass(level, weight) if left is None else left
        excess = self._excess(level, place, left)
        after, divisor = weight_after(weight, row_totals(excess))
        excess /= xp.astype(divisor, self.dtype)[..., None]
        left = xp.where(exists[..., None], excess, left)
        return xp.where(exists, after, weight), left

    def stop_probability(self, level: Level, weight: Any, left: Any | None) -> Any:
        """The probability [B, M] that a round stops at each node, once its last child is refused.

        Args:
            level: M nodes a row.
            weight, left: before the last place, as `acceptance` gives them.
        """
        if not level.places:
            return weight
        xp = array_namespace(self.target)
        left = self._mass(level, weight) if left is None else left
        total = row_totals(self._excess(level, level.places - 1, left))
        return xp.where(level.exists[:, :, -1], weight_after(weight, total)[0], weight)

    def remaining_distribution(self, node: Any, weight: Any) -> Any:
        """The distribution of the token after a node whose children are all refused.

        Args:
            node: int64 [B].
            weight: float64 [B], the node's acceptance weight.

        Returns:
            [B, V], in the dtype of masses. Where no mass is left it is the target's row: by
            rounding alone, since the node is then stopped at with probability zero.
        """
        xp = array_namespace(self.target)
        children = rows_at(self.children, node)[:, None, :]
        columns, exists = xp.clip(children - 1, min=0), children > 0
        level = Level(node[:, None], columns, exists, None)
        row, weight = rows_at(self.target, node[:, None]), weight[:, None]
        if not level.places:
            return row[:, 0, :]
        left = xp.astype(weight, self.dtype)[..., None] * row
        for place in range(level.places - 1):
            weight, left = self.refuse(level, place, weight, left)
        excess = self._excess(level, level.places - 1, left)
        # Where there is one child at most, leaves are left out below.
        left = excess if level.places == 1 else xp.where(exists[:, :, -1:], excess, left)
        total = row_totals(left)[..., None]
        used = (total > 0) & xp.any(exists, axis=-1)[..., None]
        left /= xp.astype(xp.where(used, total, 1.0), self.dtype)
        return xp.where(used, left, row)[:, 0, :]

    def by_node(self, values: Sequence[Any]) -> Any:
        """Values [B, M] of each level as values of each node, [B, N + 1]; 0 where not drafted."""
        xp = array_namespace(self.target)
        joint = xp.concat(list(values), axis=1)
        if self.path is None:
            joint = xp.take_along_axis(joint, self.places, axis=1)
        nodes = xp.arange(joint.shape[1], device=joint.device)
        return xp.where(nodes[None, :] <= self.length[:, None], joint, 0.0)

    def ones(self) -> Any:
        """A weight of one for each row's root, float64 [B, 1]."""
        xp = array_namespace(self.target)
        return xp.ones((self.target.shape[0], 1), dtype=xp.float64, device=self.target.device)

    def _mass(self, level: Level, weight: Any) -> Any:
        """c P at each node of a level, [B, M, V], in the dtype of masses."""
        xp = array_namespace(self.target)
        if level.node is None:
            rows = rows_at(self.target, level.nodes)
        else:
            rows = self.target[:, level.node : level.node + 1, :]
        return xp.astype(weight, self.dtype)[..., None] * rows

    def _excess(self, level: Level, place: int, left: Any) -> Any:
        """(left - Q)+ for what the children in one place were drawn from, [B, M, V]."""
        xp = array_namespace(self.target)
        kind, draft = self.kinds[place], self.draft
        if kind is True and draft is not None and self.beside and level.node is not None:
            return xp.clip(left - draft[:, level.node : level.node + 1, :], min=0)
        rows = xp.arange(left.shape[0], device=left.device)[:, None]
        column = level.columns[:, :, place]
        source = self.distribution_rows[rows, column]
        if kind is not True:
            # No mass is above one: a point mass takes all of its token's.
            vocabulary = xp.arange(left.shape[-1], device=left.device)
            point = xp.where(vocabulary == self.tokens[rows, column][..., None], 0.0, left)
            if kind is False:
                return point
        drawn = xp.clip(left - rows_at(self.draft, xp.clip(source, min=0)), min=0)
        return drawn if kind is True else xp.where((source >= 0)[..., None], drawn, point)


def rows_at(array: Any, index: Any) -> Any:
    """The entries [B, ..., *] of an array [B, M, *] at each row's own indices [B, ...]."""
    xp = array_namespace(array)
    batch, count, *rest = array.shape
    first = xp.arange(batch, device=index.device) * count
    at = xp.reshape(first, (batch, *[1] * (index.ndim - 1))) + index
    flat = xp.reshape(array, (batch * count, *rest))
    found = xp.take(flat, xp.reshape(at, (prod(index.shape),)), axis=0)
    return xp.reshape(found, (*index.shape, *rest))


def weight_after(weight: Any, total: Any) -> tuple[Any, Any]:
    """The weight of a node after a child is refused, S / (S + 1 - c), and its divisor; 1 at 0/0."""
    xp = array_namespace(total)
    divisor = total + (1 - weight)
    certain = xp.astype(divisor <= 0, xp.float64)
    return (total + certain) / (divisor + certain), divisor + certain


def handed_down(acceptance: Any, level: Level) -> Any:
    """Of the acceptance [B, M', C'] of the level above's children, that of this level's nodes."""
    xp = array_namespace(acceptance)
    return xp.take_along_axis(
        xp.reshape(acceptance, (acceptance.shape[0], -1)), level.origin, axis=1
    )


@dataclass(frozen=True, slots=True)
class _Layout:
    """The shape of a round's drafts: host integers of `shapes` laid end to end, `joint` [B, X]."""

    joint: NDArray[np.int64]
    shapes: tuple[tuple[int, ...], ...]
    chain: bool
    kinds: tuple[bool | None, ...]

    def sent(self, xp: Any, target: Any) -> list[Any]:
        """The parts beside the target's distributions, in one copy to their device."""
        joint = xp.asarray(self.joint, copy=True, device=target.device)
        parts, start = [], 0
        for shape in self.shapes:
            end = start + prod(shape)
            parts.append(xp.reshape(joint[:, start:end], (len(self.joint), *shape)))
            start = end
        return parts


@lru_cache(maxsize=256)
def _layout(parents: bytes, lengths: bytes, sources: bytes, batch: int, width: int) -> _Layout:
    """Lay out drafts of one shape: one round is like the next, so that few are ever made."""
    parent, source = (
        np.frombuffer(of, dtype=np.int64).reshape(batch, width) for of in (parents, sources)
    )
    length = np.frombuffer(lengths, dtype=np.int64)
    children = trees.children_table(parent, length)
    levels, places = _levels(children)
    columns = np.tile(np.arange(width), (batch, 1))
    chain = bool((parent == columns).all())
    if chain:
        following = np.where(columns < length[:, None], columns + 1, 0)[:, :, None]
        levels = [(columns, following, np.zeros_like(columns))]
        nodes, last = np.arange(width + 1), length[:, None]
        order = np.where(nodes <= last, last - nodes, nodes)
    else:
        order = np.array([_post_order(row) for row in children.tolist()]).reshape(batch, width + 1)
    parts = [length[:, None], parent, source, places, order, np.argsort(order, axis=1), children]
    for nodes, below, origin in levels:
        parts += [nodes, np.maximum(below - 1, 0), below > 0, origin]
    shapes = tuple(part.shape[1:] for part in parts)
    flat = [part.reshape(batch, prod(shape)) for part, shape in zip(parts, shapes, strict=True)]
    joint = np.concatenate(flat, axis=1).astype(np.int64)
    drawn = source[np.arange(batch)[:, None, None], np.maximum(children - 1, 0)] >= 0
    exists = children > 0
    found = [drawn[..., place][exists[..., place]] for place in range(children.shape[2])]
    kinds = tuple(None if each.any() and not each.all() else bool(each.any()) for each in found)
    return _Layout(joint, shapes, chain, kinds or (False,))  # a chain's place may be empty


def _levels(
    children: NDArray[np.int64],
) -> tuple[list[tuple[NDArray[np.int64], ...]], NDArray[np.int64]]:
    """The nodes, children and origins of each level on the host (see `Level`); `Tree.places`."""
    batch, nodes, _ = children.shape
    places = np.zeros((batch, nodes), dtype=np.int64)
    members, origin = np.zeros((2, batch, 1), dtype=np.int64)
    used = np.ones((batch, 1), dtype=bool)
    levels: list[tuple[NDArray[np.int64], ...]] = []
    start = 0
    while not levels or used.any():
        index = np.tile(start + np.arange(members.shape[1]), (batch, 1))
        np.put_along_axis(places, members, index, 1)
        start += members.shape[1]
        following = np.take_along_axis(children, members[:, :, None], axis=1) * used[:, :, None]
        following = following[:, :, : int((following > 0).sum(2).max(initial=0))]
        levels.append((members, following, origin))
        joint = following.reshape(batch, prod(following.shape[1:]))
        most = int((joint > 0).sum(1).max(initial=0))
        origin = np.argsort(joint == 0, axis=1, kind="stable")[:, :most]
        members = np.take_along_axis(joint, origin, 1)
        used = members > 0
        origin = np.where(used, origin, 0)
    places[:, 0] = 0  # padding stands for the root
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
