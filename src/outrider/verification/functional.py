"""Verification as pure functions of arrays: no models, no engine, no state.

They take arrays of NumPy, PyTorch or any other array-API library and answer in kind. The names and
shapes are those of kernels in the field; the mathematics is Leviathan et al. 2023
(arXiv 2211.17192, section 2.3), and the verdict is the one that `SpeculativeDecoder` reaches, by
the same code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Integral
from types import SimpleNamespace
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device
from numpy.typing import NDArray

from ..config.validation import choice, integer, integers
from ..errors import (
    DegenerateDistributionError,
    DraftShapeError,
    InvalidConfigError,
    TargetShapeError,
)
from ..random import STOP, TOKEN, Philox4x32, stream_key
from ..types.records import Distributions, DraftProposal
from .checks import (
    common_namespace,
    first_place,
    require_distributions,
    require_range,
    require_rows,
    require_shape,
    require_tokens,
    sound_rows,
)
from .methods import Method
from .verifier import METHODS, verify


@dataclass(frozen=True, slots=True)
class VerificationResult:
    """What became of K drafted tokens in each of B rows. Arrays int64, of the caller's library.

    Attributes:
        num_accepted: [B], how many leading drafts are kept, 0 up to the row's length.
        accepted_tokens: [B, K], the kept drafts, -1 beyond them.
        next_token: [B], the token that follows: the correction of the first draft not kept, or the
            bonus token if all were.
        first_rejection: [B], the position of the first draft not kept; -1 if all were.
        lossy: whether the method changes the distribution of what is emitted.
    """

    num_accepted: Any
    accepted_tokens: Any
    next_token: Any
    first_rejection: Any
    lossy: bool = field(default=False, repr=False)


def verify_speculative_tokens(
    draft_probs: Any,
    target_probs: Any,
    draft_tokens: Any,
    *,
    seed: int | Sequence[int],
    step: int = 0,
    method: str | Method = "token",
    lengths: Sequence[int] | None = None,
) -> VerificationResult:
    """Keep drafted tokens, and draw the one that follows, so that the output is the target's.

    Rows draw independent noise, keyed by (seed, row, step), or by (seed of the row, step): the same
    arguments give the same answer, on every library and device that holds the same numbers. Use
    another `step` for each round of a generation, or noise is reused and the distribution of the
    whole text is no longer the target's.

    Args:
        draft_probs: [B, K, V], the distributions the tokens were drawn from, exactly as they were
            drawn from (after temperature and filters). None if the tokens are point masses,
            drawn from nothing (a look-up, an argmax): point masses, without one-hot rows.
        target_probs: [B, K + 1, V], the target's distributions after the prefix and after each
            token. Rows behind the last token kept are not looked at: they are padding.
        draft_tokens: integers [B, K].
        seed: in [0, 2**64); or one for each row, [B], which gives a row the same answer in any
            batch.
        step: in [0, 2**32).
        method: "token" (Leviathan et al. 2023) or "block" (Sun et al. 2025, arXiv 2403.10444, which
            keeps at least as many); or a `Method`. The lossy ones are `LenientVerification`,
            `MixtureVerification` and `TypicalVerification` of `outrider.verification.lossy`.
        lengths: how many tokens of each row were drafted, integers [B] in 0..K; None for all K.
            What is behind them is not looked at.

    Raises:
        DraftShapeError: `draft_probs`, `draft_tokens` or `lengths` has a wrong shape or dtype.
        TargetShapeError: `target_probs` has.
        DistributionWidthError: the distributions are not equally wide, or have no width.
        DegenerateDistributionError: a row that counts has NaN or negative mass or does not sum to
            one (within 1e-6 in float64, 1e-4 in float32, 1e-2 in half precision), or a drafted
            token has probability zero under the distribution it is said to be drawn from.
        TokenOutOfRangeError: a token is outside 0..V-1.
        InvalidConfigError: `seed`, `step` or `method` is not allowed, or the arrays are not of one
            library on one device, or require a gradient.
    """
    integer("step", step, 0, 2**32 - 1, "an integer in [0, 2**32)")
    rule = method
    if not isinstance(rule, Method):
        rule = METHODS[choice("method", rule, tuple(METHODS))]
    given = {"draft_probs": draft_probs} if draft_probs is not None else {}
    xp = common_namespace(**given, target_probs=target_probs, draft_tokens=draft_tokens)
    tokens, drafted, target, sound = _require_round(
        draft_probs, target_probs, draft_tokens, lengths
    )
    batch, width = tokens.shape
    where = device(tokens)
    chance, keys = Philox4x32(), _keys(seed, step, batch)
    draws: Any = SimpleNamespace(
        stop=lambda given: chance.draw(given, keys[:, 0]),
        token=lambda given: chance.draw(given, keys[:, 1]),
    )
    drawn = {"point_masses": tokens} if draft_probs is None else {"probs": draft_probs}
    verdict = verify(DraftProposal(tokens, drafted, Distributions(**drawn)), target, rule, draws)
    kept = verdict.node
    after = xp.arange(width + 1, device=where)[None, :]
    require_distributions("target_probs", target_probs, ignored=sound | (after > kept[:, None]))
    columns = after[:, :width]
    accepted = xp.where(columns < kept[:, None], tokens, xp.full_like(tokens, -1))
    ends = xp.asarray(drafted, device=where)
    refused = xp.where(kept < ends, kept, xp.full_like(kept, -1))
    return VerificationResult(kept, accepted, verdict.next_token, refused, rule.lossy)


def _keys(seed: int | Sequence[int], step: int, batch: int) -> NDArray[np.uint64]:
    """The keys [B, 2, 5] of each row's two draws."""
    expected = "an integer in [0, 2**64), or one for each row"
    one = isinstance(seed, Integral)
    given = [seed] if one else integers("seed", seed, expected=expected)
    seeds = [integer("seed", each, 0, 2**64 - 1, expected) for each in given]
    if not one and len(seeds) != batch:
        raise InvalidConfigError("seed", seed, f"an integer, or {batch} of them, one for each row")
    keys = np.zeros((batch, 2, 5), dtype=np.uint64)
    # A request's prompt is never empty, so that no request shares this key.
    streams = np.array([stream_key(each, ()) for each in seeds], dtype=np.uint64)
    keys[:, :, 0] = streams[:, None]
    keys[:, :, 1] = np.arange(batch)[:, None] if one else 0
    keys[:, :, 2] = step
    keys[:, :, 3] = STOP, TOKEN
    return keys


def _require_round(
    draft_probs: Any | None, target_probs: Any, draft_tokens: Any, lengths: Sequence[int] | None
) -> tuple[Any, NDArray[np.int64], Any, Any]:
    """Check a round's arrays; return tokens, lengths [B] and the target's distributions.

    Even distributions stand in the place of rows that are none; the last result says which are.
    """
    if draft_probs is None:
        require_shape("draft_tokens", draft_tokens, ("B", "K"), "a row each", DraftShapeError)
        batch, width = draft_tokens.shape
    else:
        meaning = "a distribution for each drafted token"
        require_rows("draft_probs", draft_probs, ("B", "K"), meaning, DraftShapeError)
        batch, width, _ = draft_probs.shape
    meaning = "a distribution after the prefix and after each drafted token"
    known = None if draft_probs is None else draft_probs.shape[-1]
    rows = (batch, width + 1)
    require_rows("target_probs", target_probs, rows, meaning, TargetShapeError, known)
    vocabulary = target_probs.shape[-1]
    xp = array_namespace(target_probs)
    drafted = np.full(batch, width, dtype=np.int64)
    if lengths is not None:
        expected = f"{batch} integers in 0..{width}"
        given = integers("lengths", lengths, expected=expected)
        if len(given) != batch:
            raise DraftShapeError(f"lengths has {len(given)} entries; expected {batch}, a row each")
        drafted[:] = [integer("lengths", each, 0, width, expected) for each in given]
    ends = xp.asarray(drafted, device=device(target_probs))[:, None]
    counts = xp.arange(width, device=device(target_probs))[None, :] < ends
    tokens = require_tokens("draft_tokens", draft_tokens, (batch, width), vocabulary, counts)
    if draft_probs is not None:
        require_distributions("draft_probs", draft_probs, ignored=~counts)
        drawn = xp.take_along_axis(draft_probs, tokens[:, :, None], axis=-1)[..., 0]
        place = first_place((drawn == 0) & counts)
        if place is not None:
            raise DegenerateDistributionError(
                f"draft_probs gives draft_tokens{list(place)} = {int(tokens[place])} "
                "probability 0; expected the distribution that the token was drawn from, which "
                "cannot exclude it: pass the draft's probabilities after temperature and filters"
            )
    sound, target = sound_rows(target_probs), target_probs
    if not bool(xp.all(sound)):
        target = xp.where(sound[..., None], target_probs, 1 / vocabulary)
    return tokens, drafted, xp.astype(target, target_probs.dtype, copy=False), sound


def compute_acceptance_probs(draft_probs: Any, target_probs: Any) -> tuple[Any, Any]:
    """What token-wise verification would do with every token of the vocabulary.

    Args:
        draft_probs: [B, K, V], the drafter's distributions.
        target_probs: [B, K, V], the target's distributions at the same positions; [B, K + 1, V] is
            taken too, and its last position is left out.

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
    meaning = "a distribution for each position"
    require_rows("draft_probs", draft_probs, ("B", "K"), meaning, DraftShapeError)
    batch, width, vocabulary = draft_probs.shape
    bonus = target_probs.ndim < 3 or target_probs.shape[1] != width
    meaning = f"a distribution at each of the {width} positions of draft_probs, or one more"
    rows = (batch, width + bonus)
    require_rows("target_probs", target_probs, rows, meaning, TargetShapeError, vocabulary)
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
