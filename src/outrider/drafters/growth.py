"""Trees put together of the children that were drawn for each level's nodes.

A level's nodes are numbered in the order of the nodes that they follow, children of one node in the
order they are verified in; nodes of the next level come after all of this one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..types.records import Children, Distributions, DraftProposal
from ..types.transfer import sent


@dataclass(frozen=True, slots=True)
class Level:
    """A level's n nodes, which follow M.

    Attributes:
        tokens: int64 [B, n].
        mothers: which of the M nodes each follows, int64 [B, n].
        first: the index of the first of the M nodes in the tree.
        distribution_rows: the index of the distribution each was drawn from among the level's, or -1, int64 [B, n].
        distributions: those distributions, [B, R, V]; None if there are none.
    """

    tokens: Tensor
    mothers: Tensor
    first: int
    distribution_rows: Tensor
    distributions: Tensor | None

    @property
    def parents(self) -> Tensor:
        """The node of the tree that each follows, int64 [B, n]."""
        return self.mothers + self.first


def existing(counts: Tensor, most: int, number: int) -> Tensor:
    """Which of M * `most` children are nodes, in their order, int64 [B, number].

    Args:
        counts: how many children each of M nodes has, int64 [B, M]; `number` in each row.
        most: how many there are for each node, those that are none included.
        number: known on the host, so that nothing waits for a device.
    """
    exists = torch.arange(most, device=counts.device) < counts[..., None]
    return exists.flatten(1).int().argsort(dim=1, descending=True, stable=True)[:, :number]


def level_of(children: Children, first: int, taken: Tensor | None) -> Level:
    """The level that children make.

    Args:
        children: of M nodes, C each.
        first: the index of the first of the M nodes.
        taken: which of the M * C children are nodes, int64 [B, n]; None for all.
    """
    batch, nodes, places = children.tokens.shape
    tokens = children.tokens.flatten(1)
    if taken is None:
        taken = torch.arange(nodes * places, device=tokens.device).expand(batch, -1)
    else:
        tokens = tokens.gather(1, taken)
    mothers = taken // places
    own = sent(torch.from_numpy(children.distribution_rows), tokens.device).gather(
        1, taken % places
    )
    probs = None if children.distributions is None else children.distributions.probs
    if probs is None:
        return Level(tokens, mothers, first, own, None)
    rows = torch.where(own < 0, own, mothers * probs.shape[2] + own)
    return Level(tokens, mothers, first, rows, probs.flatten(1, 2))


def tree_of(levels: Sequence[Level], depth: NDArray[np.int64]) -> DraftProposal:
    """A tree for each row.

    Args:
        levels: from the root down, at least one.
        depth: how many of them each row has, int64 [B].
    """
    tokens = torch.cat([level.tokens for level in levels], 1)
    distributions, rows = [], []
    drawn = 0
    for level in levels:
        rows.append(
            torch.where(
                level.distribution_rows < 0,
                level.distribution_rows,
                level.distribution_rows + drawn,
            )
        )
        if level.distributions is not None:
            distributions.append(level.distributions)
            drawn += level.distributions.shape[1]
    structure = torch.stack([torch.cat([level.parents for level in levels], 1), torch.cat(rows, 1)])
    parents, distribution_rows = structure.cpu().numpy()
    sizes = np.cumsum([0, *(level.tokens.shape[1] for level in levels)])
    return DraftProposal(
        tokens,
        sizes[depth].astype(np.int64),
        Distributions(probs=torch.cat(distributions, 1))
        if distributions
        else Distributions(point_masses=tokens),
        parents,
        distribution_rows if distributions else None,
    )
