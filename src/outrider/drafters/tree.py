"""Drafting a tree with a model, level by level: one forward of the draft model for each depth.

All nodes of a level are fed at once. With a fixed shape each gets the same number of children. With
a budget the nodes of a level are shared out where they are likeliest to be kept (the growth of
EAGLE-2, Li et al. 2024, and OPT-Tree, Wang et al. 2024): a node is worth the product of the draft's
probabilities down to it. What is ranked is known before anything is drawn at that level; a token
that was drawn is in the tree, and never ranked away.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..types.protocols import Cursor, DraftContext
from ..types.records import Distributions, DraftPlan, DraftProposal
from .growth import Level, existing, level_of, tree_of


def draft_tree(
    cursor: Cursor, plan: DraftPlan, ctx: DraftContext, aligned: Callable[[Tensor], Tensor]
) -> DraftProposal:
    """A tree for each row, as deep as the row's plan.

    Args:
        cursor: the draft model at the end of the prefixes.
        plan: with levels.
        ctx: makes distributions and children.
        aligned: brings the draft's logits to the target's vocabulary.
    """
    levels: list[Level] = []
    logits = cursor.logits[:, None]
    rows = torch.arange(len(logits), device=logits.device)[:, None]
    # Of each node, the product of draft probabilities down to it.
    worth = torch.ones(logits.shape[:2], dtype=torch.float64, device=logits.device)
    path = logits.new_empty(*logits.shape[:2], 0, dtype=torch.int64)
    first = 0
    for depth in range(plan.deepest):
        if depth:
            above = levels[-1]
            logits = cursor.expand(above.tokens, above.parents)
            path = torch.cat([path[rows, above.mothers], above.tokens[..., None]], -1)
        distribution = ctx.distribution(aligned(logits), path if depth else None)
        assert distribution.probs is not None, "distributions of trees are dense"
        probs = distribution.probs
        if plan.shape is None:
            assert plan.levels is not None
            level = _shared_out(probs, worth, plan.levels[depth], first, depth, ctx)
        else:
            level = _same_for_all(probs, plan.shape[depth], first, depth, ctx)
        levels.append(level)
        worth = worth.gather(1, level.mothers) * probs[rows, level.mothers, level.tokens]
        first += probs.shape[1]
    return tree_of(levels, plan.depth)


def _same_for_all(probs: Tensor, most: int, first: int, depth: int, ctx: DraftContext) -> Level:
    """The same number of children for every node of a level."""
    batch, nodes, vocab_size = probs.shape
    most = min(most, vocab_size)
    counts = torch.full((batch, nodes), most, device=probs.device)
    return level_of(
        ctx.children(Distributions(probs=probs), counts, most, first, depth), first, None
    )


def _shared_out(
    probs: Tensor, worth: Tensor, quota: int, first: int, depth: int, ctx: DraftContext
) -> Level:
    """`quota` children among the nodes of a level, where they are likeliest to be kept."""
    nodes, vocab_size = probs.shape[1:]
    most = min(quota, vocab_size)
    quota = min(quota, nodes * most)
    worths = worth[..., None] * ctx.promise(Distributions(probs=probs), most)
    chosen = worths.flatten(1).topk(quota, 1).indices // most
    counts = torch.zeros(probs.shape[:2], dtype=torch.int64, device=probs.device)
    counts.scatter_add_(1, chosen, torch.ones_like(chosen))
    children = ctx.children(Distributions(probs=probs), counts, most, first, depth)
    return level_of(children, first, existing(counts, most, quota))
