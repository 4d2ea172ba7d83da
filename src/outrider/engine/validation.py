"""Contract checks: what drafters, targets, policies and verification methods return.

The engine itself checks nothing of this. An error that is about one row names its sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import (
    DegenerateDistributionError,
    DistributionWidthError,
    DraftShapeError,
    InvalidConfigError,
    OutriderError,
    TargetShapeError,
    TokenOutOfRangeError,
    UserCodeError,
    kind_of,
    shown,
)
from ..random import row_totals
from ..sampling.distributions import DTYPES
from ..types import trees
from ..types.records import (
    Distributions,
    DraftPlan,
    DraftProposal,
    Prefix,
    SequenceState,
    TargetScores,
)
from ..verification import Method, Tree, Verifier
from ..verification.checks import tolerance

_SUM_TOLERANCE, _SUM_TOLERANCE_PER_ENTRY = 1e-4, 2.0**-27
"""How far from one a distribution may sum: at least, and for each entry of a float32 softmax."""

_Refuse = Callable[..., NoReturn]
"""See `_refused`; the prefixes are known."""


def wanted(validate: str, parts: Iterable[object]) -> bool:
    """Whether to check what these parts return: "auto" checks classes that are not this library's.

    Args:
        validate: `SpeculativeConfig.validate`.
        parts: a target; a drafter and those behind it; or a verification method.
    """
    library = __name__.partition(".")[0]
    others = any(type(part).__module__.partition(".")[0] != library for part in parts)
    return validate == "always" or (validate == "auto" and others)


def check_scores(scores: TargetScores, proposal: DraftProposal, vocab_size: int) -> None:
    """Check the shape of a target's scores.

    Raises:
        TargetShapeError: there is not one row of logits for each prefix and drafted token, or
            `cached` is no tuple of a count for each prefix.
        DistributionWidthError: the rows are not as wide as the vocabulary.
    """
    batch, width = proposal.tokens.shape
    shape, cached = tuple(scores.logits.shape), scores.cached
    if shape[:2] != (batch, width + 1) or len(shape) != 3:
        raise TargetShapeError(
            f"the target returned logits of shape {shape}; expected [{batch}, {width + 1}, "
            f"{vocab_size}]: after each prefix and after each of {width} drafted tokens"
        )
    if shape[2] != vocab_size:
        raise DistributionWidthError(
            f"the target returned logits of shape {shape}; expected the last dimension to be its "
            f"vocab_size, {vocab_size}"
        )
    counts = isinstance(cached, tuple) and all(isinstance(n, int) and n >= 0 for n in cached)
    if not counts or len(cached) not in (0, batch):
        raise TargetShapeError(
            f"the target returned cached={shown(cached)}; expected a tuple of {batch} integers >= "
            "0, tokens of each prefix that it found computed, or an empty one"
        )


def check_plan(plan: object, states: Sequence[SequenceState]) -> None:
    """Raise InvalidConfigError unless a policy returned a plan for these sequences."""
    most = [max(0, state.remaining - 1) for state in states]
    expected = (
        f"a DraftPlan(depth) with depth an integer NumPy array [{len(states)}], one a sequence, "
        f"each from 0 to its remaining tokens but the last, which is the target's own: {most}"
    )
    if not isinstance(plan, DraftPlan):
        given = f"the policy returned a {type(plan).__name__}"
        raise InvalidConfigError("policy", plan, expected, given=given)
    for name in ("depth", "model_depth"):
        depth: Any = getattr(plan, name)
        shaped = isinstance(depth, np.ndarray) and depth.dtype.kind in "iu"
        if not shaped or depth.shape != (len(states),) or ((depth < 0) | (depth > most)).any():
            given = f"the policy planned {name}={shown(depth)}"
            raise InvalidConfigError("policy", plan, expected, given=given)
    if plan.tree is not None and plan.deepest > len(plan.tree.levels):
        expected = f"at most the {len(plan.tree.levels)} levels of its tree"
        given = f"the policy planned depth={shown(plan.depth)}"
        raise InvalidConfigError("policy", plan, expected, given=given)


def checked_verifier(verifier: Verifier, validate: str) -> Verifier:
    """Return a verifier whose method is checked at every call, if that is wanted.

    One of a class of the user's own is left as it is.
    """
    method = verifier.method
    if method is None or type(verifier) is not Verifier or not wanted(validate, [method]):
        return verifier
    return Verifier(_CheckedMethod(method))


class _CheckedMethod(Method):
    """A method that raises UserCodeError where it raised, or returned no distributions."""

    def __init__(self, method: Method) -> None:
        self._method = method
        self.trees, self.lossy = method.trees, method.lossy
        self.keeps_forbidden = method.keeps_forbidden

    def stop_distribution(self, tree: Tree) -> tuple[Any, Any]:
        """Find where the round stops, as the method does."""
        expected = "two torch tensors: the distribution [B, N + 1] and weights [B, N + 1]"
        stop, weights = self._called("stop_distribution", expected, tree.target.shape[:2], tree)
        return stop, weights

    def residual(self, tree: Tree, weights: Any, node: Any) -> Any:
        """Find the distribution of the token that follows, as the method does."""
        expected = "a torch tensor: the distribution [B, V] of the token that follows"
        shape = len(tree.target), tree.target.shape[2]
        return self._called("residual", expected, shape, tree, weights, node)[0]

    def _called(
        self, name: str, expected: str, shape: Sequence[int], tree: Tree, *more: Any
    ) -> Sequence[Any]:
        """Call the method for one or two tensors of a shape; the first holds distributions."""
        where, two = f"{type(self._method).__name__}.{name}", name == "stop_distribution"
        try:
            found = getattr(self._method, name)(tree, *more)
        except Exception as error:
            raise UserCodeError(f"{where} raised {type(error).__name__}: {error}") from error
        tensors = found if two and isinstance(found, tuple | list) else [found]
        kinds = {torch.float64} if two else {tree.target.dtype, tree.dtype, torch.float64}
        named = f"expected {expected}, {' or '.join(sorted(map(str, kinds)))}"
        if len(tensors) != 1 + two or not all(isinstance(each, Tensor) for each in tensors):
            raise UserCodeError(f"{where} returned {kind_of(found)}; {named}")
        for each in tensors:
            if list(each.shape) != list(shape) or each.dtype not in kinds:
                form = f"a torch tensor of shape {list(each.shape)} and {each.dtype}"
                raise UserCodeError(f"{where} returned {form}; {named}, here {list(shape)}")
        self._check_masses(where, tree, tensors[0], nodes=two)
        return tensors

    def _check_masses(self, where: str, tree: Tree, rows: Tensor, *, nodes: bool) -> None:
        """Refuse rows that are no distributions; of nodes those that were drafted count."""
        if nodes:
            places = torch.arange(rows.shape[1], device=rows.device)
            rows = rows.masked_fill(places > tree.length[:, None], 0)
        totals, least, allowed = row_totals(rows), rows.amin(-1), tolerance(rows)
        # NaN fails both.
        wrong = ~((least >= -allowed) & ((totals - 1).abs() <= allowed))
        if wrong.any() and tree.draft is not None:
            wrong &= tree.draft.isfinite().flatten(1).all(1)  # else the drafter is to blame
        if wrong.any():
            row = int(wrong.int().argmax())
            raise UserCodeError(
                f"{where} returned a distribution with total mass {float(totals[row]):.6g} and "
                f"least entry {float(least[row]):.6g}; expected finite, non-negative probabilities "
                "of sum one"
            )


def check_proposal(
    proposal: DraftProposal,
    prefixes: Sequence[Prefix],
    plan: DraftPlan,
    vocab_size: int,
    device: torch.device,
) -> None:
    """Check a proposal against the contract of `Drafter.propose`.

    Raises:
        DraftShapeError: tokens, lengths and distributions do not fit the plan or each other, or are
            not on the device; or the confidence is not one from 0 to 1 for each token.
        DistributionWidthError: the distributions are not as wide as the vocabulary.
        TokenOutOfRangeError: a token is outside the vocabulary.
        DegenerateDistributionError: a distribution is not finite, non-negative and of sum one, or
            gives its token no probability.
    """
    refuse = partial(_refused, prefixes)
    _check_kinds(proposal, refuse)
    _check_lengths(proposal, plan, device, refuse)
    if proposal.width:
        _check_structure(proposal, plan, refuse)
        _check_confidence(proposal, refuse)
        made = _check_forms(proposal, vocab_size, refuse)
        tokens = proposal.tokens
        outside = ((tokens < 0) | (tokens >= vocab_size)).cpu().numpy()
        if outside.any():
            expected = f"ids in 0..{vocab_size - 1}, padding included"
            refuse(f"tokens {tokens.tolist()}", expected, outside, TokenOutOfRangeError)
        _check_drawable(proposal, made, refuse)


def _refused(
    prefixes: Sequence[Prefix],
    given: str,
    expected: str,
    wrong: NDArray[np.bool_] | None = None,
    error: type[OutriderError] = DraftShapeError,
) -> NoReturn:
    """Raise an error about what a drafter returned: for rows `wrong` [B, ...], or for all."""
    sequence_id = None if wrong is None else prefixes[int(np.argwhere(wrong)[0, 0])].sequence_id
    about = "" if wrong is None else f" for sequence {sequence_id}"
    message = f"the drafter returned {given}{about}; expected {expected}"
    raise error(message, sequence_id=sequence_id)


def _check_kinds(proposal: object, refuse: _Refuse) -> None:
    """Check that it is a proposal, of arrays of the kinds that later checks rely on."""
    if not isinstance(proposal, DraftProposal):
        refuse(kind_of(proposal), "a DraftProposal (see outrider.types)")
    if not isinstance(proposal.tokens, Tensor):
        refuse(f"tokens that are {kind_of(proposal.tokens)}", "a torch tensor, int64 [B, N]")
    for name in ("lengths", "parents", "distribution_rows"):
        values = getattr(proposal, name)
        if values is None and name != "lengths":
            continue
        if not isinstance(values, np.ndarray) or values.dtype.kind != "i":
            kind = getattr(values, "dtype", type(values).__name__)
            refuse(f"{name} of kind {kind}", "a NumPy array of signed integers")
    made = proposal.distributions or Distributions()
    for given in (made.probs, made.point_masses):
        if given is not None and not isinstance(given, Tensor):
            refuse(f"distributions that are {kind_of(given)}", "a torch tensor")
        if given is not None and given.device != proposal.tokens.device:
            refuse(
                f"tokens on {proposal.tokens.device} and distributions on {given.device}",
                "both where ctx.device says",
            )
    if made.probs is not None and made.probs.dtype not in DTYPES:
        refuse(
            f"distributions of {made.probs.dtype}",
            "float32 or float64, exactly as the tokens were drawn from them",
        )


def _check_lengths(
    proposal: DraftProposal, plan: DraftPlan, device: torch.device, refuse: _Refuse
) -> None:
    """Check the tokens' shape and place, and that no row has more of them than were planned."""
    batch, tokens, lengths = len(plan.depth), proposal.tokens, proposal.lengths
    if tokens.ndim != 2 or len(tokens) != batch or tokens.dtype != torch.int64:
        given = f"tokens of shape {tuple(tokens.shape)} and {tokens.dtype}"
        refuse(given, f"int64 [B, N] with B = {batch}")
    own = tokens.device
    if own.type != device.type or (own.index or 0) != (device.index or 0):
        refuse(f"tokens on {own}", f"them on {device}, where ctx.device says")
    chains = proposal.parents is None
    most, what = (plan.depth, "depths") if chains else (plan.lengths, "numbers of nodes")
    given = f"lengths {lengths.tolist()} for {proposal.width} columns of tokens"
    expected = f"one for each of {batch} rows, at most its columns and the planned {what} {most}"
    if lengths.shape != most.shape:
        refuse(given, expected)
    wrong = (lengths < 0) | (lengths > np.minimum(most, proposal.width))
    if wrong.any():
        refuse(given, expected, wrong)
    sources = proposal.sources
    if sources is not None and len(sources) != batch:
        refuse(f"sources {sources!r}", f"one a row, {batch}")


def _check_structure(proposal: DraftProposal, plan: DraftPlan, refuse: _Refuse) -> None:
    """Check that parents make trees no deeper than planned."""
    parents, shape = proposal.parents, tuple(proposal.tokens.shape)
    if parents is None:
        return
    expected = (
        f"one for each token of shape {shape}, a node to its left: 0 for the prefix, up to i in "
        "column i"
    )
    if parents.shape != shape:
        refuse(f"parents {parents.tolist()}", expected)
    wrong = (parents < 0) | (parents > np.arange(shape[1]))
    if wrong.any():
        refuse(f"parents {parents.tolist()}", expected, wrong)
    depths = trees.longest_paths(parents, proposal.lengths)
    if (depths > plan.depth).any():
        expected = f"at most the planned depths {plan.depth.tolist()}"
        refuse(f"trees of depths {depths.tolist()}", expected, depths > plan.depth)


def _check_confidence(proposal: DraftProposal, refuse: _Refuse) -> None:
    """Check that each drafted token has a probability for its confidence, if any has one."""
    confidence, shape = proposal.confidence, tuple(proposal.tokens.shape)
    if confidence is None:
        return
    expected = f"a NumPy array with a number from 0 to 1 for each token of shape {shape}"
    if not isinstance(confidence, np.ndarray) or confidence.shape != shape:
        refuse(f"confidence={shown(confidence)}", expected)
    if confidence.dtype.kind not in "biuf":
        refuse(f"confidence of dtype {confidence.dtype}", expected)
    # NaN fails every comparison; sums of probabilities are rounded.
    sound = (confidence >= 0) & (confidence <= 1 + _SUM_TOLERANCE)
    wrong = ~sound & (np.arange(shape[1]) < proposal.lengths[:, None])
    if wrong.any():
        refuse(f"confidence {confidence.tolist()}", expected, wrong)


def _check_forms(proposal: DraftProposal, vocab_size: int, refuse: _Refuse) -> Distributions:
    """Check that there is a distribution for each token, and return them."""
    made, rows, shape = proposal.distributions, proposal.distribution_rows, proposal.tokens.shape
    if made is None or (made.probs is None) == (made.point_masses is None):
        refuse(
            "tokens without their distributions",
            "Distributions with either probs [B, N, V] or point_masses [B, N]",
        )
    given = made.point_masses if made.probs is None else made.probs
    assert given is not None
    count = 0 if made.probs is None else made.probs.shape[1]
    if rows is not None and (rows.shape != shape or (rows < -1).any() or (rows >= count).any()):
        refuse(
            f"distribution_rows {rows.tolist()}",
            f"for each token of shape {tuple(shape)} the index of one of its {count} "
            "distributions, or -1 for a point mass",
        )
    columns = shape[1] if rows is None else given.shape[1]
    if given.shape[:2] != (shape[0], columns) or not columns:
        refuse(
            f"distributions of shape {tuple(given.shape)} for tokens of shape {tuple(shape)}",
            "one for each token, or Distributions(point_masses=tokens)",
        )
    if made.probs is not None and made.probs.shape[2:] != (vocab_size,):
        expected = f"the last dimension to be the vocabulary, {vocab_size}"
        shown_shape = f"distributions of shape {tuple(given.shape)}"
        refuse(shown_shape, expected, error=DistributionWidthError)
    return made


def _check_drawable(proposal: DraftProposal, made: Distributions, refuse: _Refuse) -> None:
    """Check that each drafted token may have been drawn from its distribution."""
    drafted = np.arange(proposal.width) < proposal.lengths[:, None]
    if made.probs is None:
        assert made.point_masses is not None
        wrong = (made.point_masses != proposal.tokens).cpu().numpy() & drafted
    else:
        wrong = _undrawable(proposal, made.probs) & drafted
    for row, column in np.argwhere(wrong)[:1].tolist():
        token = int(proposal.tokens[row, column])
        refuse(
            f"token {token} as draft {column + 1} with {_described(proposal, made, row, column)}",
            "the probabilities that it was drawn from: finite, non-negative, their sum one, more "
            "than zero for the token: return what ctx.pick was given, as it was",
            wrong,
            DegenerateDistributionError,
        )


def _undrawable(proposal: DraftProposal, probs: Tensor) -> NDArray[np.bool_]:
    """Whether each token cannot have been drawn from its row of `probs` [B, R, V], bool [B, N]."""
    rows = proposal.distribution_rows
    if rows is None:
        rows = np.tile(np.arange(proposal.width), (len(probs), 1))
    index = torch.from_numpy(rows.clip(0)).to(probs.device)
    totals, least = probs.sum(-1).gather(1, index), probs.amin(-1).gather(1, index)
    batch = torch.arange(len(probs), device=probs.device)[:, None]
    own = probs[batch, index, proposal.tokens]
    allowed = max(_SUM_TOLERANCE, _SUM_TOLERANCE_PER_ENTRY * probs.shape[-1])
    # NaN fails every comparison.
    sound = ((totals - 1).abs() <= allowed) & (least >= 0) & (own > 0)
    undrawable: NDArray[np.bool_] = ~sound.cpu().numpy() & (rows >= 0)
    return undrawable


def _described(proposal: DraftProposal, made: Distributions, row: int, column: int) -> str:
    if made.probs is None:
        assert made.point_masses is not None
        return f"the point mass {int(made.point_masses[row, column])}"
    rows = proposal.distribution_rows
    probs = made.probs[row, column if rows is None else int(rows[row, column])].double()
    return (
        f"a distribution with total mass {probs.sum():.6g} and least entry {probs.min():.6g}, "
        f"{probs[proposal.tokens[row, column]]:.6g} of it the token's"
    )
