"""Verification of trees whose tokens were all proposed outright, none of them drawn.

Sample the target, descend while the token is among the children. Every lossless verifier of a tree
of distinct siblings keeps p(v) of each node v, so this simplest one is optimal (the case EAGLE and
prompt lookup are in). A token proposed twice after one node is taken where it came first, and what
follows the second is not reached. No distribution but the target's is read, and no row is rebuilt but the
one that is drawn from.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from array_api_compat import array_namespace

from ..types import trees
from ..types.records import DraftProposal


class Walk:
    """Where sampling the target leads in a tree of point masses.

    Args:
        proposal: drafted trees with N >= 1; its distributions are taken to be point masses.
        target: the target's distributions, dense [B, N + 1, V].
    """

    def __init__(self, proposal: DraftProposal, target: Any) -> None:
        xp = array_namespace(target)
        batch, width = proposal.tokens.shape
        structure = proposal.structure
        drafted = np.arange(width) < proposal.lengths[:, None]
        follows = (structure[:, :, None] == structure[:, None, :]) & drafted[:, None, :]
        earlier = follows & np.tri(width, k=-1, dtype=bool)
        child_of = (structure[:, None, :] == np.arange(width + 1)[:, None]) & drafted[:, None, :]

        def array(values: Any) -> Any:
            return xp.asarray(np.ascontiguousarray(values), device=target.device)

        tokens = proposal.tokens
        rows = xp.arange(batch, device=target.device)[:, None]
        same = tokens[:, :, None] == tokens[:, None, :]
        # A token proposed twice after the same node counts once, where it came first.
        counts = array(drafted) & ~xp.any(same & array(earlier), axis=-1)
        chance = xp.astype(target[rows, array(structure), tokens], xp.float64)
        self._chance = xp.where(counts, chance, 0.0)
        self._target = target
        self._tokens = tokens
        self._child_of = array(child_of)
        self._ancestors = array(trees.ancestor_mask(structure))

    def reach(self) -> Any:
        """The probability that sampling the target passes each token, float64 [B, N]."""
        xp = array_namespace(self._target)
        return xp.prod(xp.where(self._ancestors, self._chance[:, None, :], 1.0), axis=-1)

    def stop_distribution(self) -> Any:
        """The distribution [B, N + 1] of the last node passed, float64."""
        xp = array_namespace(self._target)
        reached = self.reach()
        onward = xp.sum(xp.where(self._child_of, reached[:, None, :], 0.0), axis=-1)
        reached = xp.concat([xp.ones_like(reached[:, :1]), reached], axis=-1)
        # A child that repeats a sibling is not passed, and has nothing to pass on.
        return xp.clip(reached - onward, min=0)

    def residual(self, node: Any) -> Any:
        """The target's distribution after `node` [B] without the tokens that follow it, float64 [B, V]."""
        xp = array_namespace(self._target)
        rows = xp.arange(node.shape[0], device=node.device)
        row = xp.astype(self._target[rows, node], xp.float64)
        vocabulary = xp.arange(row.shape[-1], device=node.device)
        tokens = xp.where(self._child_of[rows, node], self._tokens, -1)
        removed = xp.any(tokens[:, :, None] == vocabulary, axis=1)
        left = xp.where(removed, 0.0, row)
        total = xp.sum(left, axis=-1, keepdims=True)
        return xp.where(total > 0, left / xp.where(total > 0, total, 1.0), row)
