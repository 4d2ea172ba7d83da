"""Drafts as the paths that lead to their nodes, each a sequence that shares the blocks before them.

That is how rows are computed where one forward of all nodes does not do: where attention cannot see
which node of a tree is which, or where a draft of which the model makes NaN spoils others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from .flat import FlatBatch, Outputs

if TYPE_CHECKING:
    from .paged import PagedModel

_FIRST = -1000
"""The sequence id of the first path; the others' are below."""

Path = NDArray[np.int64]
"""Columns of drafts that follow one another."""


def paths_to_leaves(ancestors: NDArray[np.bool_]) -> list[Path]:
    """List the columns that lead to each leaf, the path by the first child of each node first.

    Args:
        ancestors: whether column j of a row is column i or one that it follows, [n, n] by (i, j).
    """
    leaves = np.flatnonzero(ancestors.sum(0) == 1)
    paths = list(map(np.flatnonzero, ancestors[leaves])) or [np.empty(0, np.int64)]
    return sorted(paths, key=np.ndarray.tolist)


def paths_to_nodes(batch: FlatBatch, row: int) -> list[Path]:
    """List the columns that lead to each node, the prefix first and the deepest last."""
    drafted = int(batch.drafted[row])
    mask = np.tri(drafted, dtype=np.bool_)
    if batch.ancestors is not None:
        mask = batch.ancestors[row, :drafted, :drafted].cpu().numpy()
    return sorted([np.empty(0, np.int64), *map(np.flatnonzero, mask)], key=len)


def by_paths(
    model: PagedModel,
    batch: FlatBatch,
    compute: Callable[[FlatBatch], Outputs],
    paths: Mapping[int, Sequence[Path]],
    outputs: Outputs | None = None,
) -> Outputs:
    """Compute some rows of a batch by their paths, in one forward.

    Args:
        model: has the blocks.
        batch: of chains or trees.
        compute: computes a batch of chains.
        paths: of each of these rows. The first of a row is computed in its own blocks, and written
            last, where several have a node.
        outputs: what is known of the batch, written over; None for nothing.

    Returns:
        As `PagedModel.forward`, of all nodes.

    Raises:
        CacheFullError: there are no blocks for the paths but the first.
    """
    found = [(row, path, not place) for row in paths for place, path in enumerate(paths[row])]
    rows = np.array([row for row, _, _ in found])
    lengths = np.array([len(path) for _, path, _ in found])
    index = [_tokens(batch, row, path) for row, path, _ in found]
    names = [
        batch.sequence_ids[row] if own else _FIRST - place
        for place, (row, _, own) in enumerate(found)
    ]
    others = [name for name in names if name <= _FIRST]
    try:
        for name, row, tokens in zip(names, rows.tolist(), index, strict=True):
            if name <= _FIRST:
                start = int(batch.past[row])
                model.pool.fork(batch.sequence_ids[row], name)
                model.states.fork(batch.sequence_ids[row], name)
                model.copy_blocks(model.pool.extend(name, start, start + len(tokens)))
        flat = FlatBatch(
            tokens=batch.tokens[np.concatenate(index)],
            positions=batch.positions[np.concatenate(index)],
            sequence_ids=names,
            past=batch.past[rows],
            missing=batch.missing[rows],
            drafted=lengths,
            tables=[model.pool.blocks(name) for name in names],
            width=int(lengths.max()),
            layers=batch.layers,
        )
        computed = compute(flat)
    finally:
        model.pool.release(others, discard=True)
        model.states.release(others)
    if outputs is None:
        logits, hidden = computed
        shape = len(batch.tables), batch.width + 1, logits.shape[2]
        made = None if hidden is None else hidden.new_zeros(len(batch.tokens), *hidden.shape[1:])
        outputs = Outputs(logits.new_zeros(shape), made)
    ends = np.cumsum(batch.missing[rows] + lengths)
    for place, (row, path, _) in reversed(list(enumerate(found))):
        outputs.logits[row, np.append(0, path + 1)] = computed.logits[place, : len(path) + 1]
        if outputs.hidden is not None and computed.hidden is not None:
            own = computed.hidden[ends[place] - len(index[place]) : ends[place]]
            outputs.hidden[torch.from_numpy(index[place])] = own
    return outputs


def _tokens(batch: FlatBatch, row: int, path: Path) -> NDArray[np.int64]:
    """The places of a path's tokens in a flat batch, those before it included."""
    missing = int(batch.missing[row])
    tokens: NDArray[np.int64] = batch.begins[row] + np.append(np.arange(missing), missing + path)
    return tokens
