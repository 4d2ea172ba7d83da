"""What no verifier can exceed, estimated from what a round drafted.

The chain's optimum is that of Sun et al. 2025 (arXiv 2403.10444). The greatest probability with
which one of several drafts of one token is kept is 1 + min over sets S of tokens of
P(S) - Pr[all drafts are in S], by optimal transport: Sun et al. 2023 (SpecTr, arXiv 2310.15141).
For drafts drawn from one distribution, with or without replacement, the best set is a prefix of the
tokens in increasing order of P/Q (Hu et al. 2025, arXiv 2502.18779).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from ..types import trees
from ..types.records import DraftProposal

_ROUNDING = 1e-5
"""How far a distribution may be from what its sibling left of another and still be taken for it."""


def block_values(ratios: Any) -> Any:
    """Return 1 + p_1 + ... + p_N along each drafted chain, with p_i = min(1, p_(i-1) r_i).

    Its mean over drafts is exactly the most tokens that a verifier which sees the chain can emit on
    average: an unbiased estimate from what was drafted, one for each round.

    Args:
        ratios: float64 [B, N], target over draft probability of each token; 0 where nothing was
            drafted.

    Returns:
        float64 [B], of the ratios' library.
    """
    xp = array_namespace(ratios)
    one = xp.ones(ratios.shape[0], dtype=xp.float64, device=device(ratios))
    kept = total = one
    for column in range(ratios.shape[1]):
        kept = xp.minimum(kept * ratios[:, column], one)
        total = total + kept
    return total


def first_token_optimum(proposal: DraftProposal, target: Any) -> Any | None:
    """The transport optimum of each row's first drafted tokens, as they were drafted.

    Args:
        proposal: drafted trees.
        target: the target's distributions after the prefixes, [B, V].

    Returns:
        float64 [B]; rows without drafts are undefined. None where it has no short form: several
        tokens drawn, but beside others, or not equally many in every row that draws several, or
        more than two without replacement. NaN in a row whose second token was drawn from another
        distribution than what the first left of its own.
    """
    xp = array_namespace(target)
    batch, width = proposal.tokens.shape
    first = (proposal.structure == 0) & (np.arange(width) < proposal.lengths[:, None])
    distributions = None if proposal.distributions is None else proposal.distributions.probs
    rows = proposal.distribution_rows
    rows = trees.chain(batch, width) if rows is None else rows
    drawn = first & (rows >= 0) if distributions is not None else np.zeros_like(first)
    where = device(target)
    mass = xp.astype(target, xp.float64)
    deterministic = first & ~drawn
    proposed = xp.zeros(mass.shape, dtype=xp.bool, device=where)
    vocabulary = xp.arange(target.shape[-1], device=where)
    for column in np.flatnonzero(deterministic.any(0)).tolist():
        there = xp.asarray(deterministic[:, column], device=where)[:, None]
        proposed = proposed | ((proposal.tokens[:, column][:, None] == vocabulary) & there)
    certain = xp.sum(xp.where(proposed, mass, 0.0), axis=-1)
    if distributions is None:
        return certain

    def distribution(place: int) -> tuple[Any, Any]:
        """The token drawn in this place, and what it was drawn from; the first if none was."""
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
        many = iid_optimum(mass, draft, most)
    elif most == 2:
        rest = xp.where(token[:, None] == vocabulary, 0.0, draft)
        total = xp.sum(rest, axis=-1, keepdims=True)
        left = xp.where(total > 0, rest / xp.where(total > 0, total, 1.0), draft)
        near = xp.max(xp.abs(distribution(1)[1] - left), axis=-1) < _ROUNDING
        many = xp.where(near, two_distinct_optimum(mass, draft), xp.nan)
    else:
        return None
    return xp.where(xp.asarray(several, device=where), many, one)


def _by_ratio(target: Any, draft: Any) -> Any:
    """The tokens in increasing order of P/Q, int64 [..., V]."""
    xp = array_namespace(target)
    impossible = draft == 0
    ratio = xp.where(impossible, math.inf, target / xp.where(impossible, 1.0, draft))
    return xp.argsort(ratio, axis=-1)


def iid_optimum(target: Any, draft: Any, num_drafts: int) -> Any:
    """The best set is a prefix of the tokens in increasing order of P/Q."""
    xp = array_namespace(target)
    order = _by_ratio(target, draft)
    inside = xp.cumulative_sum(xp.take_along_axis(target, order, axis=-1), axis=-1)
    drafted = xp.cumulative_sum(xp.take_along_axis(draft, order, axis=-1), axis=-1)
    return 1 + xp.clip(xp.min(inside - drafted**num_drafts, axis=-1), max=0.0)


def two_distinct_optimum(target: Any, draft: Any) -> Any:
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
