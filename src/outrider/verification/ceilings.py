"""How many tokens a round could have emitted: what no lossless verifier can exceed.

Every ceiling counts expected tokens of a round, the correction or bonus included, and is at least
1; `transport_optimum` alone is a probability. The chain's optimum is that of Sun et al. 2025
(arXiv 2403.10444); a verifier keeps a node with a probability of at most
min(Pr[its parent is kept] P(x|parent), Q(node)), and the block recursion attains it at every node.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
from array_api_compat import array_namespace, device
from numpy.typing import NDArray

from .. import trees
from ..errors import DraftShapeError, InvalidConfigError, TargetShapeError
from ..records import DraftProposal
from .checks import (
    common_namespace,
    require_count,
    require_float,
    require_laws,
    require_shape,
    require_width,
)

Path = tuple[int, ...]
Law = Callable[[Path], Sequence[float] | NDArray[np.float64]]
"""The probabilities [V] of the token after a prefix."""

DraftKind = Literal["iid", "greedy", "without_replacement"]

_WIDEST_ENUMERATED = 12


def block_ceiling(ratios: Any, lengths: NDArray[np.int64]) -> Any:
    """1 + p_1 + ... + p_L along each drafted chain, with p_i = min(1, p_(i-1) r_i).

    Its mean over drafts is exactly the most tokens that a verifier which sees the chain can emit on
    average: an unbiased estimate from what was drafted, one for each round.

    Args:
        ratios: floating-point [B, N], the r_i: target over draft probability of each token.
        lengths: host integers [B] in 0..N; columns at and beyond a row's length are ignored.

    Returns:
        float64 [B], of the ratios' library.

    Raises:
        DraftShapeError: a shape or dtype is wrong.
    """
    xp = common_namespace(ratios=ratios)
    require_shape("ratios", ratios, ("B", "N"), "a ratio for each token", DraftShapeError)
    require_float("ratios", ratios, DraftShapeError)
    batch, width = ratios.shape
    _require_lengths(lengths, batch, width)
    ends = xp.asarray(lengths, device=device(ratios))
    kept = xp.ones(batch, dtype=xp.float64, device=device(ratios))
    total = kept
    for column in range(width):
        ratio = xp.where(ends > column, xp.astype(ratios[:, column], xp.float64), 0.0)
        kept = xp.minimum(kept * ratio, xp.ones_like(kept))
        total = total + kept
    return total


def deterministic_ceiling(
    conditionals: NDArray[np.floating[Any]],
    parents: NDArray[np.int64],
    tokens: NDArray[np.int64],
    lengths: NDArray[np.int64],
) -> NDArray[np.float64]:
    """1 + the sum of P(v) over the nodes v of a tree that no draw decided.

    P(v) is the product of the target's conditionals along v's path. Every lossless verifier of such
    a tree emits exactly this on average, if it descends whenever the target's token is a child.

    Args:
        conditionals: [B, N], the target's probability of each node's token after its parent.
        parents: int64 [B, N]; parents[b, i] in 0..i is the node that is parent of node i + 1. Node
            0 is the prefix, node j the token of column j - 1.
        tokens: int64 [B, N]. Siblings of one token are one node, and their children siblings.
        lengths: int64 [B] in 0..N; columns at and beyond a row's length are ignored.

    Returns:
        float64 [B]. All arrays live on the host.

    Raises:
        DraftShapeError: a shape is wrong, or a parent is not in 0..i.
    """
    require_shape("tokens", tokens, ("B", "N"), "a row for each tree", DraftShapeError)
    batch, width = tokens.shape
    require_shape("parents", parents, (batch, width), "as tokens", DraftShapeError)
    require_shape("conditionals", conditionals, (batch, width), "as tokens", DraftShapeError)
    _require_lengths(lengths, batch, width)
    ceilings = np.ones(batch)
    for row, length in enumerate(lengths.tolist()):
        nodes = [0]
        mass = [1.0]
        known: dict[tuple[int, int], int] = {}
        columns = zip(
            parents[row, :length].tolist(),
            tokens[row, :length].tolist(),
            conditionals[row, :length].tolist(),
            strict=True,
        )
        for column, (parent, token, conditional) in enumerate(columns):
            if not 0 <= parent <= column:
                raise DraftShapeError(
                    f"parents[{row}, {column}] is {parent}; expected a node in 0..{column}: the "
                    "prefix, or a token of an earlier column"
                )
            place = (nodes[parent], token)
            if place not in known:
                known[place] = column + 1
                ceilings[row] += mass[nodes[parent]] * conditional
            nodes.append(known[place])
            mass.append(mass[nodes[parent]] * conditional)
    return ceilings


def transport_optimum(target: Any, draft: Any, num_drafts: int, kind: DraftKind) -> Any:
    """The greatest probability with which one of several drafts of one token can be kept.

    By optimal transport it is 1 + min over sets S of tokens of P(S) - Pr[all drafts are in S]
    (SpecTr, Sun et al. 2023, arXiv 2310.15141, is where verification was first seen so).

    Args:
        target: [..., V], the target's laws.
        draft: [..., V], the drafter's.
        num_drafts: K, at least 1.
        kind: how the K drafts come about. "iid": K draws from the draft's law. "greedy": its K - 1
            likeliest tokens (of equals, the lower ids) and one draw from it restricted to the rest.
            "without_replacement": K draws, each from it restricted to tokens not yet drawn, fewer
            where none is left; by enumeration, for V up to 12.

    Returns:
        float64 [...].

    Raises:
        InvalidConfigError: `num_drafts` or `kind` is not allowed, V is too large for `kind`, or the
            arrays are not of one library on one device.
        TargetShapeError, DraftShapeError: a shape or dtype is wrong.
        DistributionWidthError: the laws are not equally wide, or have no width.
        DegenerateDistributionError: a row has NaN or negative mass, or does not sum to one.
    """
    if kind not in get_args(DraftKind):
        raise InvalidConfigError(
            "kind", kind, f"one of {', '.join(map(repr, get_args(DraftKind)))}"
        )
    require_count("num_drafts", num_drafts, 1, 2**20, "an integer in [1, 2**20)")
    xp = common_namespace(target=target, draft=draft)
    require_width("target", target)
    require_width("draft", draft, target.shape[-1])
    require_shape("draft", draft, tuple(target.shape), "that of target", DraftShapeError)
    require_float("target", target, TargetShapeError)
    require_float("draft", draft, DraftShapeError)
    require_laws("target", target)
    require_laws("draft", draft)
    target, draft = xp.astype(target, xp.float64), xp.astype(draft, xp.float64)
    if kind == "iid":
        return _iid_optimum(target, draft, num_drafts)
    if kind == "greedy":
        return _greedy_optimum(target, draft, num_drafts)
    if target.shape[-1] > _WIDEST_ENUMERATED:
        raise InvalidConfigError(
            "kind",
            kind,
            f"a vocabulary of at most {_WIDEST_ENUMERATED} for it, since all sets of tokens are "
            f"enumerated, not {target.shape[-1]}",
        )
    return _without_replacement_optimum(target, draft, num_drafts)


def first_token_optimum(proposal: DraftProposal, target: Any) -> Any | None:
    """The transport optimum of each row's first drafted tokens, as they were drafted.

    Args:
        proposal: drafted trees.
        target: the target's laws after the prefixes, [B, V].

    Returns:
        float64 [B]; None where it has no short form: several tokens drawn, not from one law.
    """
    xp = array_namespace(target)
    batch, width = proposal.tokens.shape
    first = (proposal.structure == 0) & (np.arange(width) < proposal.lengths[:, None])
    laws = None if proposal.laws is None else proposal.laws.probs
    rows = trees.chain(batch, width) if proposal.law_rows is None else proposal.law_rows
    drawn = first & (rows >= 0) if laws is not None else np.zeros_like(first)
    count = drawn.sum(1)
    where = device(target)
    mass = xp.astype(target, xp.float64)
    source = xp.asarray(np.where(drawn, rows, -1).max(1, initial=0), device=where)
    each = xp.arange(batch, device=where)
    law = None if laws is None else xp.astype(laws[each, source], xp.float64)
    if law is not None and (count > 1).any():
        one_law = all(len(set(row[of].tolist())) == 1 for row, of in zip(rows, drawn, strict=True))
        if not one_law or (drawn != first).any() or (count != count[0]).any():
            return None
        return _iid_optimum(mass, law, int(count[0]))
    vocabulary = xp.arange(target.shape[-1], device=where)
    outright = first & ~drawn
    proposed = xp.zeros(mass.shape, dtype=xp.bool, device=where)
    for column in np.flatnonzero(outright.any(0)).tolist():
        there = xp.asarray(outright[:, column], device=where)[:, None]
        proposed = proposed | ((proposal.tokens[:, column][:, None] == vocabulary) & there)
    certain = xp.sum(xp.where(proposed, mass, 0.0), axis=-1)
    if law is None:
        return certain
    covered = xp.where(proposed, 0.0, xp.minimum(mass, law))
    some = xp.asarray(count > 0, device=where)
    return certain + xp.where(some, xp.sum(covered, axis=-1), 0.0)


def _iid_optimum(target: Any, draft: Any, num_drafts: int) -> Any:
    """The best set is a prefix of the tokens in increasing order of P/Q."""
    xp = array_namespace(target)
    impossible = draft == 0
    ratio = xp.where(impossible, math.inf, target / xp.where(impossible, 1.0, draft))
    order = xp.argsort(ratio, axis=-1)
    inside = xp.cumulative_sum(xp.take_along_axis(target, order, axis=-1), axis=-1)
    drafted = xp.cumulative_sum(xp.take_along_axis(draft, order, axis=-1), axis=-1)
    return 1 + xp.clip(xp.min(inside - drafted**num_drafts, axis=-1), max=0.0)


def _greedy_optimum(target: Any, draft: Any, num_drafts: int) -> Any:
    """P(top) + sum over the rest of min(P, Q restricted to the rest)."""
    xp = array_namespace(target)
    top = num_drafts - 1
    if top >= target.shape[-1]:
        return xp.sum(target, axis=-1)
    order = xp.argsort(draft, axis=-1, descending=True, stable=True)
    target = xp.take_along_axis(target, order, axis=-1)
    draft = xp.take_along_axis(draft, order, axis=-1)[..., top:]
    mass = xp.sum(draft, axis=-1, keepdims=True)
    drawn = draft / xp.where(mass > 0, mass, 1.0)
    certain = xp.sum(target[..., :top], axis=-1)
    return certain + xp.sum(xp.minimum(target[..., top:], drawn), axis=-1)


def _without_replacement_optimum(target: Any, draft: Any, num_drafts: int) -> Any:
    """Over all sets, as bit masks: the law of the drafted set, then its mass inside each set."""
    xp = array_namespace(target)
    vocabulary = target.shape[-1]
    rows = [
        np.from_dlpack(array, device="cpu").reshape(-1, vocabulary) for array in (target, draft)
    ]
    sets = np.arange(2**vocabulary)
    members = ((sets[:, None] >> np.arange(vocabulary)) & 1).astype(bool)
    optima = []
    for law, drawn in zip(*rows, strict=True):
        left = np.where(members, 0.0, drawn).sum(axis=-1)
        reached = np.zeros(len(sets))
        reached[0] = 1.0
        for _ in range(num_drafts):
            follows = np.where(left > 0, 0.0, reached)
            share = np.where(left > 0, reached, 0.0) / np.where(left > 0, left, 1.0)
            for token in range(vocabulary):
                before = sets[~members[:, token]]
                follows[before | (1 << token)] += share[before] * drawn[token]
            reached = follows
        for token in range(vocabulary):
            inside = sets[members[:, token]]
            reached[inside] += reached[inside ^ (1 << token)]
        optima.append(1 + min(0.0, float(np.min(members @ law - reached))))
    flat = xp.asarray(optima, dtype=xp.float64, device=device(target))
    return xp.reshape(flat, tuple(target.shape[:-1]))


def exact_block_value(target_law: Law, draft_law: Law, depth: int, prefix: Path = ()) -> float:
    """The most tokens that any verifier of a drafted chain can emit on average, exactly.

    1 + the sum over all paths v of up to `depth` tokens of w(v), with
    w(v) = min(w(parent) P(x|parent), Q(v)): what block verification emits.

    Args:
        target_law: the target's laws.
        draft_law: the drafter's.
        depth: the length of the chain, at least 0. The work grows as V^depth.
        prefix: what the chain follows.
    """

    def beyond(path: Path, kept: float, drafted: float) -> float:
        if len(path) == len(prefix) + depth:
            return 0.0
        total = 0.0
        for token, (target, draft) in enumerate(
            zip(target_law(path), draft_law(path), strict=True)
        ):
            weight = min(kept * float(target), drafted * float(draft))
            if weight > 0:
                total += weight + beyond((*path, token), weight, drafted * float(draft))
        return total

    return 1 + beyond(prefix, 1.0, 1.0)


def path_probabilities(law: Law, depth: int, prefix: Path = ()) -> dict[Path, float]:
    """The probability of every path of 1 to `depth` tokens after `prefix`, the impossible left out.

    With a drafter's law these are the probabilities that a chain of `depth` drafts has each node.
    """
    level: dict[Path, float] = {(): 1.0}
    paths: dict[Path, float] = {}
    for _ in range(depth):
        level = {
            (*path, token): mass * float(share)
            for path, mass in level.items()
            for token, share in enumerate(law((*prefix, *path)))
            if mass * float(share) > 0
        }
        paths |= level
    return paths


def cover_bound(target_law: Law, inclusion: Mapping[Path, float], prefix: Path = ()) -> float:
    """1 + the sum over nodes v of min(P(v), Pr[v is in the tree]).

    No lossless verifier of a random tree emits more on average: it keeps v no more often than the
    target emits it, and no more often than v was drafted.

    Args:
        target_law: the target's laws.
        inclusion: for each path after `prefix`, the probability that the drafted tree has it; paths
            left out have none.
        prefix: what the tree follows.
    """
    known: dict[Path, float] = {(): 1.0}

    def target(path: Path) -> float:
        if path not in known:
            known[path] = target(path[:-1]) * float(target_law((*prefix, *path[:-1]))[path[-1]])
        return known[path]

    return 1 + math.fsum(min(target(path), drafted) for path, drafted in inclusion.items())


def oracle_bound(target_law: Law, num_nodes: int, prefix: Path = ()) -> float:
    """1 + the sum of the `num_nodes` largest P(v): what the best fixed tree of that size emits.

    No tree of so many nodes that no draw decided emits more on average, whoever drafts it. A drawn
    tree may: drafts drawn from the target's own law are all kept. For those there is `cover_bound`.

    A path's probability never exceeds its parent's, so the largest are found best first.

    Args:
        target_law: the target's laws.
        num_nodes: how many drafted tokens the tree has, at least 0.
        prefix: what the tree follows.
    """
    frontier = [(-1.0, prefix)]
    total = 0.0
    for _ in range(num_nodes + 1):
        mass, path = heapq.heappop(frontier)
        total -= mass
        for token, share in enumerate(target_law(path)):
            heapq.heappush(frontier, (mass * float(share), (*path, token)))
    return total


def _require_lengths(lengths: NDArray[np.int64], batch: int, width: int) -> None:
    """Check how many columns of each row count."""
    require_shape("lengths", lengths, (batch,), "one length for each row", DraftShapeError)
    if np.any(lengths < 0) or np.any(lengths > width):
        raise DraftShapeError(
            f"lengths are {lengths.tolist()}; expected 0..{width}, the number of columns"
        )
