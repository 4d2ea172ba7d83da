"""Drafting a tree with a model, level by level: one forward of the draft model for each depth.

All nodes of a level are fed at once. With a fixed shape each gets the same number of children. With
a budget the nodes of a level are shared out where they are likeliest to be kept (the growth of
EAGLE-2, Li et al. 2024, and OPT-Tree, Wang et al. 2024): a node is worth the product of the draft's
probabilities down to it. What is ranked is known before anything is drawn at that level; a token
that was drawn is in the tree, and never ranked away.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..models.transfer import sent
from ..protocols import Cursor, DraftContext
from ..records import Children, DraftPlan, DraftProposal, Laws


@dataclass(frozen=True, slots=True)
class _Growth:
    """One level's new nodes: tokens, the node each follows, and the law each was drawn from.

    `worth` [B, n] is the product of draft probabilities down to each.
    """

    tokens: Tensor
    parents: Tensor
    law_rows: Tensor
    worth: Tensor


def draft_tree(
    cursor: Cursor, plan: DraftPlan, ctx: DraftContext, aligned: Callable[[Tensor], Tensor]
) -> DraftProposal:
    """A tree for each row, as deep as the row's plan.

    Args:
        cursor: the draft model at the end of the prefixes.
        plan: with levels.
        ctx: makes laws and children.
        aligned: brings the draft's logits to the target's vocabulary.
    """
    levels: list[_Growth] = []
    laws: list[Tensor] = []
    logits = cursor.logits[:, None]
    first, drawn = 0, 0
    worth = torch.ones(logits.shape[:2], dtype=torch.float64, device=logits.device)
    path = logits.new_empty(*logits.shape[:2], 0, dtype=torch.int64)
    for level in range(plan.deepest):
        if level:
            logits = cursor.expand(levels[-1].tokens, levels[-1].parents)
            path = _extended(path, levels[-1], first)
        law = ctx.law(aligned(logits), path if level else None)
        assert law.probs is not None, "laws of trees are dense"
        probs = law.probs
        if plan.shape is None:
            assert plan.levels is not None
            grown, children = _shared_out(probs, worth, plan.levels[level], first, level, ctx)
        else:
            grown, children = _same_for_all(probs, worth, plan.shape[level], first, level, ctx)
        if children.laws is not None and children.laws.probs is not None:
            rows = children.laws.probs
            laws.append(rows.flatten(1, 2))
            grown = _Growth(
                grown.tokens,
                grown.parents,
                torch.where(grown.law_rows < 0, grown.law_rows, grown.law_rows + drawn),
                grown.worth,
            )
            drawn += rows.shape[1] * rows.shape[2]
        levels.append(grown)
        first += probs.shape[1]
        worth = grown.worth
    sizes = np.cumsum([0, *(level.tokens.shape[1] for level in levels)])
    tokens = torch.cat([level.tokens for level in levels], 1)
    structure = torch.stack(
        [
            torch.cat([level.parents for level in levels], 1),
            torch.cat([level.law_rows for level in levels], 1),
        ]
    )
    parents, law_rows = structure.cpu().numpy()
    joint = Laws(probs=torch.cat(laws, 1)) if laws else Laws(atoms=tokens)
    return DraftProposal(
        tokens,
        sizes[plan.depth].astype(np.int64),
        joint,
        parents,
        law_rows if laws else None,
    )


def _extended(path: Tensor, level: _Growth, first: int) -> Tensor:
    """The tokens [B, n, D + 1] that lead to a level's nodes, from those [B, M, D] of the one above.

    `first` is the index of the first of these nodes.
    """
    above = first - path.shape[1]
    rows = torch.arange(len(path), device=path.device)[:, None]
    return torch.cat([path[rows, level.parents - above], level.tokens[..., None]], -1)


def _same_for_all(
    probs: Tensor, worth: Tensor, most: int, first: int, level: int, ctx: DraftContext
) -> tuple[_Growth, Children]:
    """The same number of children for every node of a level."""
    batch, nodes, vocab_size = probs.shape
    most = min(most, vocab_size)
    counts = torch.full((batch, nodes), most, device=probs.device)
    children = ctx.children(Laws(probs=probs), counts, most, first, level)
    mothers = torch.arange(nodes, device=probs.device).repeat_interleave(most)
    return _numbered(children, probs, worth, mothers.expand(batch, -1), None, first), children


def _shared_out(
    probs: Tensor, worth: Tensor, quota: int, first: int, level: int, ctx: DraftContext
) -> tuple[_Growth, Children]:
    """`quota` children among the nodes of a level, where they are likeliest to be kept."""
    nodes, vocab_size = probs.shape[1:]
    most = min(quota, vocab_size)
    quota = min(quota, nodes * most)
    worths = worth[..., None] * ctx.promise(Laws(probs=probs), most)
    chosen = worths.flatten(1).topk(quota, 1).indices // most
    counts = torch.zeros(probs.shape[:2], dtype=torch.int64, device=probs.device)
    counts.scatter_add_(1, chosen, torch.ones_like(chosen))
    children = ctx.children(Laws(probs=probs), counts, most, first, level)
    exists = torch.arange(most, device=probs.device) < counts[..., None]
    # Exactly `quota` of them exist in each row: they come first, in their order.
    taken = exists.flatten(1).int().argsort(dim=1, descending=True, stable=True)[:, :quota]
    return _numbered(children, probs, worth, taken // most, taken, first), children


def _numbered(
    children: Children,
    probs: Tensor,
    worth: Tensor,
    mothers: Tensor,
    taken: Tensor | None,
    first: int,
) -> _Growth:
    """Children as nodes of the tree.

    Args:
        children: of M nodes, C each.
        probs: the draft's laws [B, M, V].
        worth: of the M nodes, [B, M].
        mothers: which of the M nodes each new one follows, [B, n].
        taken: which of the M * C children are nodes, [B, n]; None takes all.
        first: the index of the first of the M nodes.
    """
    batch, _, places = children.tokens.shape
    tokens = children.tokens.flatten(1)
    law_rows = sent(torch.from_numpy(children.law_rows), tokens.device)
    drawn_from = 0 if children.laws is None else _rows(children.laws)
    at = torch.arange(places, device=tokens.device).repeat(probs.shape[1]).expand(batch, -1)
    if taken is not None:
        tokens, at = tokens.gather(1, taken), at.gather(1, taken)
    own = law_rows.gather(1, at)
    rows = torch.where(own < 0, own, mothers * drawn_from + own)
    chance = probs[torch.arange(batch, device=tokens.device)[:, None], mothers, tokens]
    return _Growth(tokens, mothers + first, rows, worth.gather(1, mothers) * chance)


def _rows(laws: Laws) -> int:
    assert laws.probs is not None
    return int(laws.probs.shape[2])
