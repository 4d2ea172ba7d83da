"""Drafting a tree with a model, level by level: one forward of the draft model for each depth.

All nodes of a level are fed at once. With a fixed shape each gets the same number of children. With
a budget the nodes of a level are shared out where they are likeliest to be kept (the growth of
EAGLE-2, Li et al. 2024, and OPT-Tree, Wang et al. 2024): a node counts the product of the draft's
probabilities down to it. What is ranked is known before anything is drawn at that level; a token
that was drawn is in the tree, and never ranked away. A node has no more children than tokens of
some probability; where there are fewer nodes than planned, padding fills a level, and is left out
at the end.

A level's nodes are numbered in the order of the nodes that they follow, children of one node in the
order they are verified in; nodes of the next level come after all of this one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..runtimes.base import Cursor
from ..types.records import Children, Distributions, DraftProposal, DraftTree
from ..types.transfer import sent
from .base import DraftContext


@dataclass(frozen=True, slots=True)
class _Level:
    """A level's tokens, int64 [B, n], each of which follows one of M nodes of the level above.

    It was drawn from one of the level's distributions `probs` [B, R, V] by its row, or by none: -1.
    Those that are not `real`, bool [B, n], are padding.
    """

    tokens: Tensor
    follows: Tensor
    real: Tensor
    rows: Tensor
    probs: Tensor | None


def draft_tree(
    cursor: Cursor,
    tree: DraftTree,
    depth: NDArray[np.int64],
    ctx: DraftContext,
    fed: Callable[[Tensor], Tensor],
    aligned: Callable[[Tensor], Tensor],
) -> DraftProposal:
    """Draft a tree for each row, of so many levels as `depth`, int64 [B], one of them at least 1.

    The cursor is the draft model at the end of the prefixes. `fed` brings tokens to its vocabulary,
    `aligned` its logits to the target's.
    """
    levels: list[_Level] = []
    logits = cursor.logits[:, None]
    batch = torch.arange(len(logits), device=logits.device)[:, None]
    # Of each node, the product of draft probabilities down to it; 0 of padding.
    reach = torch.ones(logits.shape[:2], dtype=torch.float64, device=logits.device)
    path = logits.new_empty(*logits.shape[:2], 0, dtype=torch.int64)
    first = 0
    for level in range(int(depth.max())):
        if level:
            above = levels[-1]
            logits = cursor.expand(fed(above.tokens), above.follows + first)
            first += path.shape[1]
            path = torch.cat([path[batch, above.follows], above.tokens[..., None]], -1)
        made = ctx.distribution(aligned(logits), path if level else None)
        assert made.probs is not None, "distributions of trees are dense"
        counts, most, number = _counts(made, reach, tree, level, ctx)
        children = ctx.children(made, counts, most, first, level)
        added = _level(children, counts, number)
        levels.append(added)
        reach = reach.gather(1, added.follows) * made.probs[batch, added.follows, added.tokens]
        reach = reach.masked_fill(~added.real, 0)
    return _proposal(levels, depth)


def _counts(
    made: Distributions, reach: Tensor, tree: DraftTree, level: int, ctx: DraftContext
) -> tuple[Tensor, int, int]:
    """Decide how many children each node of a level has, [B, M], before anything is drawn.

    Beside them: the largest number that a node may have, and the number of children in all.
    """
    assert made.probs is not None
    nodes, vocab_size = made.probs.shape[1:]
    candidates = made.probs.count_nonzero(-1) * (reach != 0)
    if tree.children is not None:
        most = min(tree.children[level], vocab_size)
        return candidates.clamp(max=most), most, nodes * most
    most = min(tree.levels[level], vocab_size)
    number = min(tree.levels[level], nodes * most)
    ranked = reach[..., None] * ctx.estimate_acceptance(made, most)
    missing = torch.arange(most, device=reach.device) >= candidates[..., None]
    best = ranked.masked_fill(missing, -1).flatten(1).topk(number, 1)
    counts = torch.zeros_like(candidates)
    return counts.scatter_add_(1, best.indices // most, (best.values != -1).long()), most, number


def _level(children: Children, counts: Tensor, number: int) -> _Level:
    """Make a level of drawn children, C of each of M nodes, those that are none included.

    Each node has as many as `counts`, int64 [B, M]; a row has at most `number`, known on the host.
    """
    _, _, places = children.tokens.shape
    exists = torch.arange(places, device=counts.device) < counts[..., None]
    taken = exists.flatten(1).int().argsort(dim=1, descending=True, stable=True)[:, :number]
    real = exists.flatten(1).gather(1, taken)
    follows, place = taken // places, taken % places
    # The draft model is fed padding: of a node's children the first one may always follow it.
    fed = torch.where(real, taken, follows * places)
    tokens = children.tokens.flatten(1).gather(1, fed)
    rows = sent(children.distribution_rows, tokens.device).gather(1, place)
    probs = None if children.distributions is None else children.distributions.probs
    if probs is not None:
        rows = torch.where(rows < 0, rows, follows * probs.shape[2] + rows)
        probs = probs.flatten(1, 2)
    return _Level(tokens, follows, real, rows, probs)


def _proposal(levels: Sequence[_Level], depth: NDArray[np.int64]) -> DraftProposal:
    """Put levels together without padding: each row has its first `depth` [B], the root's first."""
    sizes = np.cumsum([0, *(level.tokens.shape[1] for level in levels)])
    firsts = [0, *(1 + sizes[:-2])]
    parents = [level.follows + int(first) for level, first in zip(levels, firsts, strict=True)]
    probs, rows, drawn = list[Tensor](), list[Tensor](), 0
    for level in levels:
        rows.append(torch.where(level.rows < 0, level.rows, level.rows + drawn))
        if level.probs is not None:
            probs.append(level.probs)
            drawn += level.probs.shape[1]
    parts = (parents, rows, [level.real for level in levels])
    structure = torch.stack([torch.cat(list(part), 1) for part in parts]).cpu().numpy()
    real = (structure[2] > 0) & (np.arange(sizes[-1]) < sizes[depth][:, None])
    lengths = real.sum(1)
    columns = np.argsort(~real, axis=1, kind="stable")[:, : lengths.max()]
    numbers = np.pad(real.cumsum(1), ((0, 0), (1, 0)))
    tokens = torch.cat([level.tokens for level in levels], 1)
    tokens = tokens.gather(1, sent(columns, tokens.device))
    parent, row = (np.take_along_axis(part, columns, 1) for part in structure[:2])
    return DraftProposal(
        tokens,
        lengths,
        Distributions(probs=torch.cat(probs, 1)) if probs else Distributions(point_masses=tokens),
        np.take_along_axis(numbers, parent, 1),
        row if probs else None,
    )
