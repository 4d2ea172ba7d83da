"""The shape of drafted trees, as host arrays.

Node 0 is the prefix itself, node i + 1 the token in column i. `parents` int64 [B, N] holds for each
column the node that its token follows: parents[b, i] is in 0..i, so that every token stands to the
right of the one it follows. Siblings are verified in the order of their columns. A chain is
[0, 1, 2, ...]. Columns at and beyond a row's length are padding, but keep to the rule.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Parents = NDArray[np.int64]


def chain(batch: int, width: int) -> Parents:
    """The parents [B, N] of chains."""
    return np.tile(np.arange(width, dtype=np.int64), (batch, 1))


def node_depths(parents: Parents) -> NDArray[np.int64]:
    """How many tokens lie between the prefix and each node, the node's own included, [B, N + 1]."""
    batch, width = parents.shape
    depths = np.zeros((batch, width + 1), dtype=np.int64)
    rows = np.arange(batch)
    for column in range(width):
        depths[:, column + 1] = depths[rows, parents[:, column]] + 1
    return depths


def ancestor_mask(parents: Parents) -> NDArray[np.bool_]:
    """Whether column j is column i or one that it follows, bool [B, N, N] by (i, j)."""
    batch, width = parents.shape
    mask = np.zeros((batch, width + 1, width), dtype=bool)
    rows = np.arange(batch)
    for column in range(width):
        mask[:, column + 1] = mask[rows, parents[:, column]]
        mask[:, column + 1, column] = True
    return mask[:, 1:]


def children_table(parents: Parents, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """The nodes that follow each node, in the order of their columns, [B, N + 1, C]; 0 pads."""
    batch, width = parents.shape
    counts = np.zeros((batch, width + 1), dtype=np.int64)
    rows = np.arange(batch)
    places = np.zeros((batch, width), dtype=np.int64)
    for column in range(width):
        drafted = lengths > column
        places[:, column] = counts[rows, parents[:, column]]
        counts[rows[drafted], parents[drafted, column]] += 1
    table = np.zeros((batch, width + 1, int(counts.max(initial=0))), dtype=np.int64)
    for column in range(width):
        drafted = lengths > column
        table[rows[drafted], parents[drafted, column], places[drafted, column]] = column + 1
    return table


def path(parents: Sequence[int], node: int) -> list[int]:
    """The nodes from the first below the root down to `node`, of one row."""
    nodes = []
    while node:
        nodes.append(node)
        node = parents[node - 1]
    return nodes[::-1]


def path_table(parents: Parents) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The columns that lead to each node, [B, N + 1, D], the first first, and the nodes' depths."""
    batch, width = parents.shape
    depths = node_depths(parents)
    table = np.zeros((batch, width + 1, int(depths.max(initial=0))), dtype=np.int64)
    rows = np.arange(batch)
    for column in range(width):
        table[:, column + 1] = table[rows, parents[:, column]]
        table[rows, column + 1, depths[:, column + 1] - 1] = column
    return table, depths


def longest_paths(parents: Parents, lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many tokens in a row are drafted for each row at most, int64 [B]."""
    drafted = np.arange(parents.shape[1] + 1) <= lengths[:, None]
    longest: NDArray[np.int64] = np.where(drafted, node_depths(parents), 0).max(1)
    return longest
