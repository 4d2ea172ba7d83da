"""Coupled verification: the target's token at a position is one keyed draw, whatever was proposed.

A draft is kept if it equals that token, so the text does not depend on the drafter, on the depth,
on the tree, nor on whether there is one; it is the text of plain keyed sampling. Under Philox the
draw is an exponential race whose noise the drafter shares, which makes the two agree often: with
one draft the probability is sum_j 1 / sum_i max(p_i / p_j, q_i / q_j) (Daliri, Musco and Suresh
2024, arXiv 2408.07978), at least (1 - TV) / (1 + TV).
"""

from __future__ import annotations

from typing import Any

from array_api_compat import array_namespace

from ..random import RoundDraws
from ..types import trees
from ..types.records import DraftProposal, Verdict


def verify_coupled(proposal: DraftProposal, target: Any, draws: RoundDraws) -> Verdict:
    """Follow the target's own draws down the tree while they were proposed.

    Args:
        proposal: drafted tokens; what they were drawn from does not matter.
        target: the target's distributions, dense [B, N + 1, V].
        draws: the round's chance.
    """
    xp = array_namespace(target)
    device = target.device
    batch = target.shape[0]
    rows = xp.arange(batch, device=device)
    structure = proposal.structure
    children = trees.children_table(structure, proposal.lengths)
    deepest = int(trees.longest_paths(structure, proposal.lengths).max())
    children = xp.asarray(children, device=device)
    node = xp.zeros(batch, dtype=xp.int64, device=device)
    active = xp.ones(batch, dtype=xp.bool, device=device)
    token = draws.position(target[:, 0], 0, active)
    for offset in range(deepest):
        following = children[rows, node]
        proposed = proposal.tokens[rows[:, None], xp.clip(following - 1, min=0)]
        # Siblings with one token lead to the same distributions; the first of them is taken.
        agrees = (following > 0) & (proposed == token[:, None]) & active[:, None]
        active = xp.any(agrees, axis=1)
        first = xp.argmax(xp.astype(agrees, xp.int64), axis=1)
        node = xp.where(active, following[rows, first], node)
        drawn = draws.position(target[rows, node], offset + 1, active)
        token = xp.where(active, drawn, token)
    return Verdict(node, token)
