"""Trees as the paths that lead to their leaves, where attention cannot see which node is which.

Beyond a sliding window OpenVINO counts columns, not positions. There each path is computed as a
sequence of its own, that shares the blocks before the tree.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from ..flat import FlatBatch, Outputs
from ..paged import PagedModel

_FIRST = -1000
"""The sequence id of the first path; the others' are below."""

Path = NDArray[np.int64]


def by_paths(
    model: PagedModel, batch: FlatBatch, compute: Callable[[FlatBatch], Outputs]
) -> Outputs:
    """Compute the logits of trees.

    Args:
        model: has the blocks.
        batch: of trees.
        compute: computes a batch of chains.

    Returns:
        As `PagedModel.forward`.
    """
    assert batch.ancestors is not None
    trees = zip(batch.ancestors.numpy(), batch.drafted.tolist(), strict=True)
    found = [(row, path) for row, tree in enumerate(trees) for path in _paths(*tree)]
    rows, lengths = np.array([row for row, _ in found]), np.array([len(path) for _, path in found])
    chains, names = [], []
    for place, (row, path) in enumerate(found):
        begin, missing = int(batch.begins[row]), int(batch.missing[row])
        chains.append(begin + np.append(np.arange(missing), missing + path))
        # The first of each is computed where the tree's own chain is to stand.
        own = place == 0 or rows[place - 1] != row
        names.append(batch.sequence_ids[row] if own else _FIRST - place)
    index = np.concatenate(chains)
    try:
        for name, row, chain in zip(names, rows.tolist(), chains, strict=True):
            if name <= _FIRST:
                start = int(batch.past[row])
                model.pool.fork(batch.sequence_ids[row], name)
                model.copy_blocks(model.pool.extend(name, start, start + len(chain)))
        flat = FlatBatch(
            tokens=batch.tokens[index],
            positions=batch.positions[index],
            sequence_ids=names,
            past=batch.past[rows],
            missing=batch.missing[rows],
            drafted=lengths,
            tables=[model.pool.blocks(name) for name in names],
            width=int(lengths.max()),
            layers=batch.layers,
        )
        logits, states = compute(flat)
    finally:
        model.pool.release([name for name in names if name <= _FIRST], discard=True)
    made = logits.new_zeros(len(batch.tables), batch.width + 1, logits.shape[2])
    for (row, path), own in zip(found, logits, strict=True):
        made[row, np.append(0, path + 1)] = own[: len(path) + 1]
    hidden = None
    if states is not None:
        hidden = states.new_zeros(len(batch.tokens), *states.shape[1:])
        hidden[torch.from_numpy(index)] = states
    return Outputs(made[:, batch.first :], hidden)


def _paths(ancestors: NDArray[np.bool_], drafted: int) -> list[Path]:
    """List the columns that lead to each leaf, the path with most of the leading ones first."""
    mask = ancestors[:drafted, :drafted]
    leaves = np.flatnonzero(mask.sum(0) == 1)
    paths = [np.flatnonzero(mask[leaf]) for leaf in leaves.tolist()] or [np.empty(0, np.int64)]
    return sorted(paths, key=lambda path: -int((path == np.arange(len(path))).sum()))
