"""Drafted trees as llama.cpp takes them: tokens that belong to all paths below them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...types import trees
from ...types.records import Prefix
from ..paths import paths_to_leaves
from .library import Batch, Ids

Tokens = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One prefix, and tokens drafted after it.

    Attributes:
        prefix: of a sequence.
        tokens: int64 [n].
        parents: the node that each follows, int64 [n]; see `outrider.types.trees`.
        certain: how many tokens of the prefix the sequence has, the others being drafts that a
            cursor was fed; None for all.
    """

    prefix: Prefix
    tokens: Tokens
    parents: Tokens
    certain: int | None = None

    @property
    def settled(self) -> int:
        """How many tokens lead to the first one whose logits are wanted, or that may be a draft."""
        length = len(self.prefix) if self.certain is None else self.certain
        return min(length, len(self.prefix)) - 1


@dataclass(slots=True, eq=False)
class Part:
    """Some paths of a row that are computed in one forward.

    Attributes:
        row: what it is of.
        start: the first token of the row's prefix that is not in cells.
        nodes: the columns of the tokens on these paths, int64 [k].
        depths: how many tokens lead to each, itself included, int64 [k].
        below: whether each path goes through each token, bool [k, paths].
    """

    row: Row
    start: int
    nodes: Tokens
    depths: Tokens
    below: NDArray[np.bool_]

    @property
    def paths(self) -> int:
        """How many paths there are, at least one."""
        return int(self.below.shape[1])

    @property
    def first(self) -> Tokens:
        """The row's prefix and the tokens of the first path."""
        return np.concatenate(
            [self.row.prefix.tokens, self.row.tokens[self.nodes[self.below[:, 0]]]]
        )


def parts(row: Row, start: int, most: int) -> Iterator[Part]:
    """Split a row into parts of at most so many paths: one part if it is a chain.

    The first path of the last part is kept, and is that by the first child of each node.
    """
    columns, ancestors = np.arange(len(row.tokens)), trees.ancestor_mask(row.parents[None])[0]
    paths = paths_to_leaves(ancestors)
    for first in reversed(range(0, len(paths), most)):
        below = np.stack([np.isin(columns, path) for path in paths[first : first + most]], 1)
        nodes = np.flatnonzero(below.any(1))
        depths = ancestors[nodes].sum(1)
        yield Part(row, start, nodes, depths, below[nodes])


def batch_of(part: Part, ids: Ids, below: NDArray[np.bool_]) -> Batch:
    """Make the batch of a part, with what its prefix misses.

    Args:
        part: what is computed.
        ids: sequences, int32 [n].
        below: whether each missing token, and each of the part, belongs to them, bool [k, n].
    """
    row, start, length = part.row, part.start, len(part.row.prefix)
    missing = row.prefix.tokens[start:]
    wanted = np.arange(start + 1, length + 1 + len(part.nodes)) >= length
    return Batch(
        np.concatenate([missing, row.tokens[part.nodes]]).astype(np.int32),
        np.concatenate([np.arange(start, length), length - 1 + part.depths]).astype(np.int32),
        below.sum(1, dtype=np.int32),
        ids[below.nonzero()[1]],
        wanted.astype(np.int8),
    )
