"""The drafted tokens that lead to nodes: the hypotheses that logits are looked at under."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..types import trees
from ..types.records import DraftProposal


@dataclass(frozen=True, slots=True)
class Path:
    """The drafted tokens that lead to M nodes, from the first on.

    Attributes:
        tokens: int64 [B, M, D]; those at and beyond a node's depth are padding.
        depth: int64 [B, M], or what broadcasts to it.
        nodes: how many of the M nodes each row has, on the host; None for all.
    """

    tokens: Tensor
    depth: Tensor
    nodes: list[int] | None = None

    @staticmethod
    def of(tokens: Tensor, nodes: list[int] | None = None) -> Path:
        """Of nodes that all lie at depth D, from tokens [B, M, D]."""
        depth = torch.tensor([[tokens.shape[2]]], device=tokens.device)
        return Path(tokens, depth, nodes)

    @staticmethod
    def to_nodes(proposal: DraftProposal) -> Path:
        """To all nodes of a proposal, the prefix first."""
        tokens, width = proposal.tokens, proposal.width
        nodes = (proposal.lengths + 1).tolist()
        if proposal.parents is None:
            depth = torch.arange(width + 1, device=tokens.device)[None]
            return Path(tokens[:, None, :].expand(-1, width + 1, -1), depth, nodes)
        columns, depths = map(torch.from_numpy, trees.path_table(proposal.parents))
        columns, depths = columns.to(tokens.device), depths.to(tokens.device)
        return Path(tokens.gather(1, columns.flatten(1)).view(columns.shape), depths, nodes)

    @property
    def real(self) -> Tensor:
        """Which tokens are no padding, bool [B, M, D]."""
        steps = torch.arange(self.tokens.shape[2], device=self.tokens.device)
        return (steps < self.depth[..., None]).expand(self.tokens.shape)

    def listed(self, rows: Iterable[int]) -> dict[int, list[tuple[int, ...]]]:
        """List what leads to each of some rows' own nodes, on the host."""
        tokens = self.tokens.tolist()
        depth = self.depth.expand(self.tokens.shape[:2]).tolist()
        return {
            row: [tuple(run[:length]) for run, length in zip(tokens[row], depth[row], strict=True)][
                : None if self.nodes is None else self.nodes[row]
            ]
            for row in rows
        }
