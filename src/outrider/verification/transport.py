"""The greatest probability with which one of several drafts of one token can be kept.

By optimal transport it is 1 + min over sets S of tokens of P(S) - Pr[all drafts are in S]: Sun et
al. 2023 (SpecTr, arXiv 2310.15141) saw verification so. For drafts drawn from one distribution, with or
without replacement, the best set is a prefix of the tokens in increasing order of P/Q (Hu et al.
2025, arXiv 2502.18779).
"""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

import numpy as np
from array_api_compat import array_namespace, device

from ..config.validation import integer
from ..errors import DraftShapeError, InvalidConfigError, TargetShapeError
from ..types import trees
from ..types.records import DraftProposal
from .checks import (
    common_namespace,
    require_distributions,
    require_float,
    require_shape,
    require_width,
)

DraftKind = Literal["iid", "greedy", "without_replacement"]

_WIDEST_ENUMERATED = 12
_ROUNDING = 1e-5
"""How far a distribution may be from what its sibling left of another and still be taken for it."""


def transport_optimum(target: Any, draft: Any, num_drafts: int, kind: DraftKind) -> Any:
    """The greatest probability with which one of several drafts of one token can be kept.

    Args:
        target: [..., V], the target's distributions.
        draft: [..., V], the drafter's.
        num_drafts: K, at least 1.
        kind: how the K drafts come about. "iid": K draws from the draft's distribution. "greedy": its K - 1
            likeliest tokens (of equals, the lower ids) and one draw from it restricted to the rest.
            "without_replacement": K draws, each from it restricted to tokens not yet drawn, fewer
            where none is left; for K above 2 by enumeration, for V up to 12.

    Returns:
        float64 [...].

    Raises:
        InvalidConfigError: `num_drafts` or `kind` is not allowed, V is too large for `kind`, or the
            arrays are not of one library on one device.
        TargetShapeError, DraftShapeError: a shape or dtype is wrong.
        DistributionWidthError: the distributions are not equally wide, or have no width.
        DegenerateDistributionError: a row has NaN or negative mass, or does not sum to one.
    """
    if kind not in get_args(DraftKind):
        raise InvalidConfigError(
            "kind", kind, f"one of {', '.join(map(repr, get_args(DraftKind)))}"
        )
    integer("num_drafts", num_drafts, 1, 2**20 - 1, "an integer in [1, 2**20)")
    xp = common_namespace(target=target, draft=draft)
    require_width("target", target)
    require_width("draft", draft, target.shape[-1])
    require_shape("draft", draft, tuple(target.shape), "that of target", DraftShapeError)
    require_float("target", target, TargetShapeError)
    require_float("draft", draft, DraftShapeError)
    require_distributions("target", target)
    require_distributions("draft", draft)
    target, draft = xp.astype(target, xp.float64), xp.astype(draft, xp.float64)
    if kind == "iid" or num_drafts == 1:
        return _iid_optimum(target, draft, num_drafts)
    if kind == "greedy":
        return _greedy_optimum(target, draft, num_drafts)
    if num_drafts == 2:
        return _two_distinct_optimum(target, draft)
    if target.shape[-1] > _WIDEST_ENUMERATED:
        raise InvalidConfigError(
            "kind",
            kind,
            f"a vocabulary of at most {_WIDEST_ENUMERATED} for more than 2 drafts of it, since all "
            f"sets of tokens are enumerated, not {target.shape[-1]}",
        )
    return _without_replacement_optimum(target, draft, num_drafts)


def first_token_optimum(proposal: DraftProposal, target: Any) -> Any | None:
    """The transport optimum of each row's first drafted tokens, as they were drafted.

    Args:
        proposal: drafted trees.
        target: the target's distributions after the prefixes, [B, V].

    Returns:
        float64 [B]; rows without drafts mean nothing. None where it has no short form: several
        tokens drawn, but beside others, or not equally many in every row that draws several, or
        more than two without replacement. NaN in a row whose second token was drawn from another
        distribution than what the first left of its own.
    """
    xp = array_namespace(target)
    batch, width = proposal.tokens.shape
    first = (proposal.structure == 0) & (np.arange(width) < proposal.lengths[:, None])
    distributions = None if proposal.distributions is None else proposal.distributions.probs
    rows = (
        trees.chain(batch, width)
        if proposal.distribution_rows is None
        else proposal.distribution_rows
    )
    drawn = first & (rows >= 0) if distributions is not None else np.zeros_like(first)
    where = device(target)
    mass = xp.astype(target, xp.float64)
    outright = first & ~drawn
    proposed = xp.zeros(mass.shape, dtype=xp.bool, device=where)
    vocabulary = xp.arange(target.shape[-1], device=where)
    for column in np.flatnonzero(outright.any(0)).tolist():
        there = xp.asarray(outright[:, column], device=where)[:, None]
        proposed = proposed | ((proposal.tokens[:, column][:, None] == vocabulary) & there)
    certain = xp.sum(xp.where(proposed, mass, 0.0), axis=-1)
    if distributions is None:
        return certain

    def distribution(place: int) -> tuple[Any, Any]:
        """The token drawn in this place, and the distribution it was drawn from; the first if none was."""
        columns = np.where(drawn, np.cumsum(drawn, axis=1), 0) == place + 1
        column = columns.argmax(axis=1)
        source = np.maximum(rows[np.arange(batch), column], 0)
        each = xp.arange(batch, device=where)
        at, of = (xp.asarray(values, device=where) for values in (column, source))
        return proposal.tokens[each, at], xp.astype(distributions[each, of], xp.float64)

    token, draft = distribution(0)
    count = drawn.sum(1)
    covered = xp.sum(xp.where(proposed, 0.0, xp.minimum(mass, draft)), axis=-1)
    one = certain + xp.where(xp.asarray(count > 0, device=where), covered, 0.0)
    several = count > 1
    if not several.any():
        return one
    most = int(count.max())
    pairs = zip(rows[several], drawn[several], strict=True)
    kinds = {len(set(row[of].tolist())) for row, of in pairs}
    if (drawn != first)[several].any() or (count[several] != most).any() or len(kinds) > 1:
        return None
    if kinds == {1}:
        many = _iid_optimum(mass, draft, most)
    elif most == 2:
        left = _what_is_left(draft, token[:, None] == vocabulary)
        near = xp.max(xp.abs(distribution(1)[1] - left), axis=-1) < _ROUNDING
        many = xp.where(near, _two_distinct_optimum(mass, draft), xp.nan)
    else:
        return None
    return xp.where(xp.asarray(several, device=where), many, one)


def _what_is_left(draft: Any, taken: Any) -> Any:
    """The distributions [B, V] without the tokens `taken` [B, V]; as they are where nothing else is left."""
    xp = array_namespace(draft)
    left = xp.where(taken, 0.0, draft)
    total = xp.sum(left, axis=-1, keepdims=True)
    return xp.where(total > 0, left / xp.where(total > 0, total, 1.0), draft)


def _by_ratio(target: Any, draft: Any) -> Any:
    """The tokens in increasing order of P/Q, int64 [..., V]."""
    xp = array_namespace(target)
    impossible = draft == 0
    ratio = xp.where(impossible, math.inf, target / xp.where(impossible, 1.0, draft))
    return xp.argsort(ratio, axis=-1)


def _iid_optimum(target: Any, draft: Any, num_drafts: int) -> Any:
    """The best set is a prefix of the tokens in increasing order of P/Q."""
    xp = array_namespace(target)
    order = _by_ratio(target, draft)
    inside = xp.cumulative_sum(xp.take_along_axis(target, order, axis=-1), axis=-1)
    drafted = xp.cumulative_sum(xp.take_along_axis(draft, order, axis=-1), axis=-1)
    return 1 + xp.clip(xp.min(inside - drafted**num_drafts, axis=-1), max=0.0)


def _two_distinct_optimum(target: Any, draft: Any) -> Any:
    """For two draws without replacement; the best set is again such a prefix.

    Pr[both are in S] is the sum over tokens i of S of q_i (Q(S) - q_i) / (1 - q_i): running sums
    over prefixes. The likeliest token, for which 1 - q_i may cancel, is counted apart.
    """
    xp = array_namespace(target)
    order = _by_ratio(target, draft)
    target = xp.take_along_axis(target, order, axis=-1)
    draft = xp.take_along_axis(draft, order, axis=-1)
    places = xp.arange(draft.shape[-1], device=device(draft))
    likeliest = places == xp.argmax(draft, axis=-1, keepdims=True)
    others = xp.where(likeliest, 0.0, draft)
    beside = xp.cumulative_sum(others, axis=-1)
    rest, top = beside[..., -1:], xp.max(draft, axis=-1, keepdims=True)
    total = rest + top
    within = xp.cumulative_sum(draft, axis=-1)
    odds = others / (total - others)
    both = within * xp.cumulative_sum(odds, axis=-1) - xp.cumulative_sum(odds * others, axis=-1)
    # Where nothing is left beside it, the likeliest token is drawn alone.
    after = xp.where(rest > 0, beside / xp.where(rest > 0, rest, 1.0), 1.0)
    included = xp.cumulative_sum(xp.astype(likeliest, xp.float64), axis=-1)
    drafted = (both + included * top * after) / total
    inside = xp.cumulative_sum(target, axis=-1)
    return 1 + xp.clip(xp.min(inside - drafted, axis=-1), max=0.0)


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
    """Over all sets, as bit masks: the distribution of the drafted set, then its mass inside each set."""
    xp = array_namespace(target)
    vocabulary = target.shape[-1]
    rows = [
        np.from_dlpack(array, device="cpu").reshape(-1, vocabulary) for array in (target, draft)
    ]
    sets = np.arange(2**vocabulary)
    members = ((sets[:, None] >> np.arange(vocabulary)) & 1).astype(bool)
    optima = []
    for distribution, drawn in zip(*rows, strict=True):
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
        optima.append(1 + min(0.0, float(np.min(members @ distribution - reached))))
    flat = xp.asarray(optima, dtype=xp.float64, device=device(target))
    return xp.reshape(flat, tuple(target.shape[:-1]))
