"""What no lossless verifier can exceed: the most tokens that a round could have emitted.

Bounds are computed from the distributions of small models. Every one counts expected tokens of a
round, the correction or bonus included, and is at least 1. The chain's optimum is that of Sun et
al. 2025 (arXiv 2403.10444): a verifier keeps a node with a probability of at most
min(Pr[its parent is kept] P(x|parent), Q(node)), and the block recursion attains it at every node.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..config.params import TreeChildren
from ..verification.bounds import iid_optimum, two_distinct_optimum

Children = TreeChildren | Literal["deterministic"]
Path = tuple[int, ...]
Row = NDArray[np.float64]
Distribution = Callable[[Path], Sequence[float] | Row]
"""The probabilities [V] of the token after a prefix."""


def exact_block_value(
    target_distribution: Distribution,
    draft_distribution: Distribution,
    depth: int,
    prefix: Path = (),
) -> float:
    """The most tokens that any verifier of a chain of drafts can emit on average, exactly.

    1 + the sum over all paths v of up to `depth` tokens behind `prefix` of w(v), with
    w(v) = min(w(parent) P(x|parent), Q(v)): what block verification emits. The work grows as
    V^depth.
    """

    def beyond(path: Path, kept: float, drafted: float) -> float:
        if len(path) == len(prefix) + depth:
            return 0.0
        draft = drafted * np.asarray(draft_distribution(path))
        target = kept * np.asarray(target_distribution(path))
        weights: list[float] = np.minimum(target, draft).tolist()
        return sum(
            weight + beyond((*path, token), weight, float(draft[token]))
            for token, weight in enumerate(weights)
            if weight > 0
        )

    return 1 + beyond(prefix, 1.0, 1.0)


def tree_probabilities(
    draft_distribution: Distribution, shape: Sequence[int], kind: Children, prefix: Path = ()
) -> dict[Path, float]:
    """For each path after `prefix`, the probability that a drafted tree has it.

    Args:
        draft_distribution: the drafter's distributions.
        shape: how many children each node has at each depth; at most as many as tokens are likely.
        kind: how they come about, as `SpeculativeConfig.tree_children` says; "deterministic" are
            the likeliest.
        prefix: what the tree follows.
    """
    if not shape:
        return {}
    paths: dict[Path, float] = {}
    distribution = np.asarray(draft_distribution(prefix), dtype=np.float64)
    for token, share in enumerate(_inclusion(distribution, shape[0], kind)):
        below = tree_probabilities(draft_distribution, shape[1:], kind, (*prefix, token))
        inside = {(token, *path): mass for path, mass in below.items()} | {(token,): 1.0}
        if kind == "with_replacement":
            # Each of the draws brings a node of its own, and they are merged.
            paths |= {
                p: 1 - (1 - distribution[token] * mass) ** shape[0] for p, mass in inside.items()
            }
        else:
            paths |= {p: share * mass for p, mass in inside.items()}
    return paths


def cover_bound(
    target_distribution: Distribution, inclusion: Mapping[Path, float], prefix: Path = ()
) -> float:
    """1 + the sum over nodes v of min(P(v), Pr[v is in the tree]).

    No lossless verifier of a random tree behind `prefix` emits more on average: it keeps v no more
    often than the target emits it, and no more often than v was drafted, which is its `inclusion`
    (0 for paths left out).
    """

    @cache
    def target(path: Path) -> float:
        if not path:
            return 1.0
        *before, token = path
        return target(tuple(before)) * float(target_distribution((*prefix, *before))[token])

    return 1 + math.fsum(min(target(path), drafted) for path, drafted in inclusion.items())


def transport_optimum(target: Row, draft: Row, count: int, kind: TreeChildren) -> float:
    """The greatest probability with which one of several drafts of one token can be kept.

    Args:
        target: float64 [V], the target's distribution.
        draft: the drafter's.
        count: how many tokens are drafted; 2 without replacement.
        kind: how they come about, as `SpeculativeConfig.tree_children` says.
    """
    if kind == "with_replacement":
        return float(iid_optimum(target, draft, count))
    if kind == "without_replacement":
        assert count == 2, "more have no short form"
        return float(two_distinct_optimum(target, draft))
    order = np.argsort(-draft, kind="stable")
    top, rest = order[: count - 1], order[count - 1 :]
    mass = float(draft[rest].sum())
    drawn = draft[rest] / mass if mass > 0 else draft[rest]
    return float(target[top].sum() + np.minimum(target[rest], drawn).sum())


def _inclusion(distribution: Row, count: int, kind: Children) -> Row:
    """The probability [V] that each token is among the `count` children of a node."""
    if kind == "with_replacement":
        return 1 - (1 - distribution) ** count
    if kind in ("greedy", "deterministic"):
        drawn = int(kind == "greedy")
        included = np.zeros(len(distribution))
        included[np.argsort(-distribution, kind="stable")[: count - drawn]] = 1.0
        left = np.where(included > 0, 0.0, distribution)
        included += drawn * left / left.sum()
        return included
    included = distribution.copy()
    if count > 1:
        for token, share in enumerate(distribution):
            left = np.where(np.arange(len(distribution)) == token, 0.0, distribution)
            if share > 0 and left.sum() > 0:
                included += share * _inclusion(left / left.sum(), count - 1, kind)
    return included
