"""Verification as pure functions of arrays: no models, no engine, no state.

They take arrays of NumPy, PyTorch or any other array-API library and answer in kind. The names and
shapes are those of kernels in the field; the mathematics is Leviathan et al. 2023
(arXiv 2211.17192, section 2.3), and the verdict is the one that `SpeculativeDecoder` reaches, by
the same code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from ..errors import (
    DegenerateDistributionError,
    DraftShapeError,
    InvalidConfigError,
    TargetShapeError,
)
from ..random import STOP, TOKEN, Philox4x32, inverse_cdf, stream_key
from ..types.records import Distributions, DraftProposal
from .checks import (
    common_namespace,
    require_count,
    require_distributions,
    require_float,
    require_range,
    require_shape,
    require_tokens,
    require_width,
)
from .verifier import METHODS, verify


@dataclass(frozen=True, slots=True)
class VerificationResult:
    """What became of K drafted tokens in each of B rows. Arrays int64, of the caller's library.

    Attributes:
        num_accepted: [B], how many leading drafts are kept, 0..K.
        accepted_tokens: [B, K], the kept drafts, -1 beyond them.
        next_token: [B], the token that follows: the correction of the first draft not kept, or the
            bonus token if all were.
        first_rejection: [B], the position of the first draft not kept; -1 if all were.
    """

    num_accepted: Any
    accepted_tokens: Any
    next_token: Any
    first_rejection: Any


class _RowDraws:
    """The two draws of a verdict, by inversion of uniforms float64 [B, 2]."""

    def __init__(self, uniforms: Any) -> None:
        self._uniforms = uniforms

    def stop(self, distributions: Any) -> Any:
        return inverse_cdf(distributions, self._uniforms[:, 0])

    def token(self, distributions: Any) -> Any:
        return inverse_cdf(distributions, self._uniforms[:, 1])


def verify_speculative_tokens(
    draft_probs: Any,
    target_probs: Any,
    draft_tokens: Any,
    *,
    seed: int,
    step: int = 0,
    method: str = "token",
) -> VerificationResult:
    """Keep drafted tokens and draw the one that follows, so that the target's distribution is emitted.

    Rows draw independent noise, keyed by (seed, row, step): the same arguments give the same
    answer, on every library and device that holds the same numbers. Use another `step` for each
    round of a generation, or noise is reused and the distribution of the whole text is no longer the
    target's.

    Args:
        draft_probs: [B, K, V], the distributions the tokens were drawn from, exactly as they were drawn from
            (after temperature and filters).
        target_probs: [B, K + 1, V], the target's distributions after the prefix and after each token.
        draft_tokens: integers [B, K].
        seed: in [0, 2**64).
        step: in [0, 2**32).
        method: "token" (Leviathan et al. 2023) or "block" (Sun et al. 2025, arXiv 2403.10444, which
            keeps at least as many); another name of `outrider.verification.METHODS`.

    Raises:
        DraftShapeError: `draft_probs` or `draft_tokens` has a wrong rank, shape or dtype.
        TargetShapeError: `target_probs` has.
        DistributionWidthError: the distributions are not equally wide, or have no width.
        DegenerateDistributionError: a row has NaN or negative mass or does not sum to one (within
            1e-6 in float64, 1e-4 in float32, 1e-2 in half precision), or a drafted token has
            probability zero under the distribution it is said to be drawn from.
        TokenOutOfRangeError: a token is outside 0..V-1.
        InvalidConfigError: `seed`, `step` or `method` is not allowed, or the arrays are not of one
            library on one device.
    """
    require_count("seed", seed, 0, 2**64, "an integer in [0, 2**64)")
    require_count("step", step, 0, 2**32, "an integer in [0, 2**32)")
    if method not in METHODS:
        raise InvalidConfigError("method", method, f"one of {', '.join(map(repr, METHODS))}")
    xp = common_namespace(
        draft_probs=draft_probs, target_probs=target_probs, draft_tokens=draft_tokens
    )
    tokens = _require_round(draft_probs, target_probs, draft_tokens)
    batch, width = tokens.shape
    where = device(tokens)

    keys = np.zeros((batch, 2, 5), dtype=np.uint64)
    # A request's prompt is never empty, so that no request shares this key.
    keys[:, :, 0] = stream_key(int(seed), ())
    keys[:, :, 1] = np.arange(batch)[:, None]
    keys[:, :, 2] = step
    keys[:, :, 3] = STOP, TOKEN
    uniforms = Philox4x32().uniforms(keys)
    draws = _RowDraws(xp.asarray(uniforms, device=where))
    lengths = np.full(batch, width, dtype=np.int64)
    proposal = DraftProposal(tokens, lengths, Distributions(probs=draft_probs) if width else None)
    verdict = verify(proposal, target_probs, METHODS[method], draws)
    kept, following = verdict.node, verdict.next_token
    columns = xp.arange(width, device=where)[None, :]
    accepted = xp.where(columns < kept[:, None], tokens, xp.full_like(tokens, -1))
    return VerificationResult(
        kept, accepted, following, xp.where(kept < width, kept, xp.full_like(kept, -1))
    )


def _require_round(draft_probs: Any, target_probs: Any, draft_tokens: Any) -> Any:
    """Check a round's arrays and return its tokens, int64 [B, K]."""
    require_shape(
        "draft_probs",
        draft_probs,
        ("B", "K", "V"),
        "a distribution for each drafted token",
        DraftShapeError,
    )
    batch, width, vocabulary = draft_probs.shape
    require_shape(
        "target_probs",
        target_probs,
        (batch, width + 1, "V"),
        "a distribution after the prefix and after each drafted token",
        TargetShapeError,
    )
    require_width("draft_probs", draft_probs)
    require_width("target_probs", target_probs, vocabulary)
    require_float("draft_probs", draft_probs, DraftShapeError)
    require_float("target_probs", target_probs, TargetShapeError)
    tokens = require_tokens("draft_tokens", draft_tokens, (batch, width), vocabulary)
    require_distributions("draft_probs", draft_probs)
    require_distributions("target_probs", target_probs)
    xp = array_namespace(tokens)
    drawn = xp.take_along_axis(draft_probs, tokens[:, :, None], axis=-1)
    if bool(xp.any(drawn == 0)):
        first = int(xp.argmin(xp.reshape(drawn, (-1,))))
        row, position = divmod(first, width)
        raise DegenerateDistributionError(
            f"draft_probs gives draft_tokens[{row}, {position}] = {int(tokens[row, position])} "
            "probability 0; expected the distribution that the token was drawn from, which cannot exclude "
            "it: pass the draft's probabilities after temperature and filters"
        )
    return tokens


def compute_acceptance_probs(draft_probs: Any, target_probs: Any) -> tuple[Any, Any]:
    """What token-wise verification would do with every token of the vocabulary.

    Args:
        draft_probs: [B, K, V], the drafter's distributions.
        target_probs: [B, K, V], the target's distributions at the same positions; [B, K + 1, V] is taken
            too, and its last position is left out.

    Returns:
        acceptance: [B, K, V], min(1, target / draft), the probability that the token is kept where
            it was drafted. Where the drafter gives it none: 1 if the target gives it some (the
            limit), 0 if not, since a token of target probability zero is never emitted.
        residual: [B, K, V], (target - draft)+, not normalised: its sum is the probability of a
            rejection, its shape the distribution of the correction.
        Both in the dtype the arguments promote to.

    Raises:
        DraftShapeError, TargetShapeError, DistributionWidthError, DegenerateDistributionError,
        InvalidConfigError: as `verify_speculative_tokens`.
    """
    xp = common_namespace(draft_probs=draft_probs, target_probs=target_probs)
    require_shape(
        "draft_probs",
        draft_probs,
        ("B", "K", "V"),
        "a distribution for each position",
        DraftShapeError,
    )
    batch, width, vocabulary = draft_probs.shape
    positions = target_probs.shape[1] if target_probs.ndim == 3 else None
    require_shape(
        "target_probs",
        target_probs,
        (batch, width if positions == width else width + 1, "V"),
        f"a distribution at each of the {width} positions of draft_probs, or one more",
        TargetShapeError,
    )
    require_width("draft_probs", draft_probs)
    require_width("target_probs", target_probs, vocabulary)
    require_float("draft_probs", draft_probs, DraftShapeError)
    require_float("target_probs", target_probs, TargetShapeError)
    require_distributions("draft_probs", draft_probs)
    require_distributions("target_probs", target_probs)

    target = target_probs[:, :width, :]
    dtype = xp.result_type(target.dtype, draft_probs.dtype)
    target, draft = xp.astype(target, dtype), xp.astype(draft_probs, dtype)
    # min(1, p/q) = min(p, q) / q, which cannot overflow; where q is 0, p/p or 0/1.
    least = xp.where(draft > 0, xp.minimum(target, draft), target)
    divisor = xp.where(draft > 0, draft, xp.where(target > 0, target, xp.ones_like(target)))
    return least / divisor, xp.clip(target - draft, min=0)


def compute_expected_tokens(acceptance_rates: Any) -> Any:
    """Expected tokens of a round in which drafts are kept up to the first refusal.

    1 + a_1 + a_1 a_2 + ... : each draft counts if it and all before it are kept, and one token
    follows whatever happens.

    Args:
        acceptance_rates: [B, K], the rate at each position given that it is reached, in [0, 1].

    Returns:
        [B], in 1..K + 1, in the dtype of the rates; formed in float64.

    Raises:
        DraftShapeError: `acceptance_rates` has another rank.
        InvalidConfigError: it is no floating-point array, or a rate is outside [0, 1].
    """
    xp = common_namespace(acceptance_rates=acceptance_rates)
    require_shape(
        "acceptance_rates", acceptance_rates, ("B", "K"), "a rate for each draft", DraftShapeError
    )
    require_range("acceptance_rates", acceptance_rates, 0, 1, "rates in [0, 1]")
    reached = xp.cumulative_prod(xp.astype(acceptance_rates, xp.float64), axis=-1)
    return xp.astype(1 + xp.sum(reached, axis=-1), acceptance_rates.dtype)
