"""Tokens that were looked up beside tokens that a model drafted, in one proposal."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from ..types import trees
from ..types.records import Distributions, DraftProposal
from ..types.transfer import sent
from .candidate import Candidate


def merged(drawn: DraftProposal, candidates: Sequence[Candidate]) -> DraftProposal:
    """A proposal with each row's candidate added, as point masses that follow what is there.

    On chains a row has one or the other. In trees a candidate's first tokens are further children
    of the prefix, visited after the model's, and a token that one of a node's children has already
    is that child, not another; only on the CPU, where the drafted tokens can be looked at without
    waiting for a device. Elsewhere such a token stands there twice and is never kept the second
    time: nothing is lost but what would have followed it.

    Verification is exact in either case: a node depends on the tokens that lead to it and on its
    earlier siblings alone.

    Args:
        drawn: the model's tokens.
        candidates: for each row, [B] in all; nothing where none is to be added.
    """
    branches = drawn.parents is not None
    placed = _grafted(drawn, candidates) if branches else list(map(_as_they_are, candidates))
    more = np.array([len(tokens) for tokens, _ in placed], dtype=np.int64)
    lengths = drawn.lengths + more
    width = int(lengths.max(initial=0))
    rows = np.repeat(np.arange(len(placed)), more)
    firsts = [np.arange(len(tokens)) for tokens, _ in placed]
    columns = drawn.lengths[rows] + np.concatenate(firsts)
    added = np.concatenate([tokens for tokens, _ in placed])

    device = drawn.tokens.device
    where = sent(torch.from_numpy(np.stack([rows, columns, added])), device)
    kept = pad(drawn.tokens, (0, width - drawn.width))
    tokens = kept.index_put((where[0], where[1]), where[2])

    parents = None
    if branches:
        parents = _widened(drawn.structure, trees.chain(*tokens.shape))
        parents[rows, columns] = np.concatenate([parents for _, parents in placed])
    looked_up = (drawn.lengths == 0) & (lengths > 0)
    if drawn.distributions is None or drawn.distributions.probs is None:
        return DraftProposal(
            tokens, lengths, Distributions(point_masses=tokens), parents, looked_up=looked_up
        )
    own = (
        trees.chain(*drawn.tokens.shape)
        if drawn.distribution_rows is None
        else drawn.distribution_rows
    )
    distribution_rows = _widened(own, np.full(tokens.shape, -1))
    distribution_rows[rows, columns] = -1
    return DraftProposal(
        tokens, lengths, drawn.distributions, parents, distribution_rows, looked_up
    )


_Placed = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Tokens [n] to be added to a row, and the node that each follows [n]."""


def _as_they_are(candidate: Candidate) -> _Placed:
    return candidate.tokens, candidate.parents


def _grafted(drawn: DraftProposal, candidates: Sequence[Candidate]) -> list[_Placed]:
    """Where candidates go in drafted trees."""
    known = _seen(drawn.tokens)
    structure = drawn.structure.tolist()
    placed = []
    for row, (candidate, length) in enumerate(zip(candidates, drawn.lengths.tolist(), strict=True)):
        there: dict[tuple[int, int], int] = {}
        if known is not None:
            edges = zip(structure[row][:length], known[row][:length], strict=True)
            for node, edge in enumerate(edges, 1):
                there.setdefault(edge, node)
        nodes, tokens, parents = [0], list[int](), list[int]()
        for token, parent in zip(
            candidate.tokens.tolist(), candidate.parents.tolist(), strict=True
        ):
            mother = nodes[parent]
            if (mother, token) not in there:
                tokens.append(token)
                parents.append(mother)
                there[mother, token] = length + len(tokens)
            nodes.append(there[mother, token])
        placed.append((np.array(tokens, dtype=np.int64), np.array(parents, dtype=np.int64)))
    return placed


def _seen(tokens: Tensor) -> list[list[int]] | None:
    """Tokens [B, N] on the host, where that takes no waiting."""
    return tokens.tolist() if tokens.device.type == "cpu" else None


def _widened(values: NDArray[np.int64], room: NDArray[np.int64]) -> NDArray[np.int64]:
    """`values` [B, M] in the first columns of `room` [B, N]."""
    room[:, : values.shape[1]] = values[:, : room.shape[1]]
    return room
