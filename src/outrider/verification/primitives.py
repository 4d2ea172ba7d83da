"""The steps of token-wise verification one by one: the coin, the residual, and the draws.

Log-probabilities are natural logarithms, `-inf` for a probability of zero; everything is formed in
float64. Uniforms are arguments, so that nothing here is random: pass `Philox4x32().uniforms(keys)`,
or any numbers of [0, 1). Arrays may be of any array-API library; the leading axes are a batch, and
a single row [V] works too. The rules are those of Leviathan et al. 2023 (arXiv 2211.17192,
section 2.3).
"""

from __future__ import annotations

import math
import sys
from numbers import Real
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device, is_array_api_obj

from ..errors import (
    DegenerateDistributionError,
    DraftShapeError,
    InvalidConfigError,
    TargetShapeError,
)
from ..random import inverse_cdf
from .checks import (
    common_namespace,
    exponentiated,
    require_distributions,
    require_float,
    require_range,
    require_shape,
    require_width,
    tolerance,
)

_LAST_UNIFORM = math.nextafter(1.0, 0.0)
_GREATEST = sys.float_info.max


def accept(draft_logprob: Any, target_logprob: Any, uniform: Any) -> Any:
    """Whether a drafted token is kept: u < p/q, from its log-probabilities.

    A token that the target gives no probability is refused, at u = 0 too. One that the drafter
    gives none and the target some is kept, the limit of p/q.

    Args:
        draft_logprob: the token's log-probability under the distribution it was drawn from.
        target_logprob: the same under the target's distribution.
        uniform: in [0, 1).
        Each is a number or a floating-point array; shapes broadcast.

    Returns:
        A boolean array of the broadcast shape; of NumPy if all three are numbers.

    Raises:
        DegenerateDistributionError: a log-probability is NaN or above zero (by more than rounding:
            1e-6 in float64, 1e-4 in float32, 1e-2 in half precision).
        InvalidConfigError: a uniform is outside [0, 1), or the arrays are not of one library on one
            device.
        TargetShapeError: the shapes do not broadcast.
    """
    named = {"draft_logprob": draft_logprob, "target_logprob": target_logprob, "uniform": uniform}
    xp, where = _home(named)
    require_range("uniform", uniform, 0, _LAST_UNIFORM, "numbers in [0, 1)")
    draft, target = (_log_probability(name, named[name], xp, where) for name in list(named)[:2])
    chance = _float64(uniform, xp, where)
    try:
        np.broadcast_shapes(tuple(draft.shape), tuple(target.shape), tuple(chance.shape))
    except ValueError:
        shapes = {name: tuple(getattr(value, "shape", ())) for name, value in named.items()}
        raise TargetShapeError(
            f"the shapes {shapes} do not broadcast; expected one log-probability of each model and "
            "one uniform for each token"
        ) from None
    zero = xp.zeros_like(target)
    impossible = target == -math.inf
    # min(0, .) also keeps the exponential from overflowing, and changes nothing since u < 1.
    log_ratio = xp.where(impossible, zero, target) - xp.where(impossible, zero, draft)
    ratio = xp.where(impossible, 0.0, xp.exp(xp.clip(log_ratio, max=0)))
    return chance < ratio


def adjusted_distribution(target_logprobs: Any, draft_logprobs: Any) -> Any:
    """The distribution of the token that corrects a refused draft: norm((p - q)+).

    Args:
        target_logprobs: [..., V], log-probabilities of the target.
        draft_logprobs: [..., V], those of the distribution the refused token was drawn from.

    Returns:
        Probabilities float64 [..., V]. Where no mass is left, which is where the two distributions
        are equal and nothing is ever refused, the target's.

    Raises:
        DraftShapeError: `draft_logprobs` has another batch shape.
        DistributionWidthError: the distributions are not equally wide, or have no width.
        DegenerateDistributionError: the probabilities of a row do not sum to one, or it is of no
            floating-point dtype.
        InvalidConfigError: the arrays are not of one library on one device.
    """
    xp = common_namespace(target_logprobs=target_logprobs, draft_logprobs=draft_logprobs)
    require_width("target_logprobs", target_logprobs)
    require_width("draft_logprobs", draft_logprobs, target_logprobs.shape[-1])
    require_shape(
        "draft_logprobs",
        draft_logprobs,
        tuple(target_logprobs.shape),
        "that of target_logprobs",
        DraftShapeError,
    )
    target = exponentiated("target_logprobs", target_logprobs)
    residual = xp.clip(target - exponentiated("draft_logprobs", draft_logprobs), min=0)
    left = xp.sum(residual, axis=-1, keepdims=True)
    distribution = xp.where(left > 0, residual, target)
    return distribution / xp.sum(distribution, axis=-1, keepdims=True)


def resample_from_adjusted_target(target_logprobs: Any, draft_logprobs: Any, uniform: Any) -> Any:
    """Draw the correction of a refused draft, from norm((p - q)+).

    Args:
        target_logprobs: [..., V], log-probabilities of the target.
        draft_logprobs: [..., V], those of the distribution the refused token was drawn from.
        uniform: [...], in [0, 1); a number for single rows.

    Returns:
        Token ids int64 [...].

    Raises:
        As `adjusted_distribution` and `sample_index`.
    """
    return _inverted(adjusted_distribution(target_logprobs, draft_logprobs), uniform)


def sample_from_logprobs(logprobs: Any, uniform: Any) -> Any:
    """Draw token ids from log-probabilities [..., V]; otherwise as `sample_index`."""
    common_namespace(logprobs=logprobs)
    require_width("logprobs", logprobs)
    return _inverted(exponentiated("logprobs", logprobs), uniform)


def sample_index(probs: Any, uniform: Any) -> Any:
    """Draw indices by inversion: the first at which the cumulative mass exceeds u.

    Args:
        probs: [..., V], rows that sum to one.
        uniform: [...], in [0, 1); a number for single rows.

    Returns:
        int64 [...]. Never an index of no mass, whatever u.

    Raises:
        DistributionWidthError: there is no last dimension, or it is empty.
        DegenerateDistributionError: a row has NaN or negative mass, does not sum to one, or is of
            no floating-point dtype.
        InvalidConfigError: a uniform is outside [0, 1), or there is not one for each row; or the
            arrays are not of one library on one device.
    """
    common_namespace(probs=probs)
    require_width("probs", probs)
    require_float("probs", probs, DegenerateDistributionError)
    require_distributions("probs", probs)
    return _inverted(probs, uniform)


def _inverted(distributions: Any, uniform: Any) -> Any:
    """One index for each of the checked distributions [..., V], by checked uniforms [...]."""
    leading = tuple(distributions.shape[:-1])
    given = {"distributions": distributions, "uniform": uniform}
    xp, where = _home(given)
    require_range("uniform", uniform, 0, _LAST_UNIFORM, "numbers in [0, 1)")
    shape = tuple(getattr(uniform, "shape", ()))
    if shape != leading:
        raise InvalidConfigError(
            "uniform", f"shape {shape}", f"shape {leading}: one number of [0, 1) for each row"
        )
    rows = xp.reshape(distributions, (math.prod(leading), distributions.shape[-1]))
    uniforms = xp.reshape(_float64(uniform, xp, where), (rows.shape[0],))
    return xp.reshape(inverse_cdf(rows, uniforms), leading)


def _home(named: dict[str, Any]) -> tuple[Any, Any]:
    """The library and device of those arguments that are arrays; NumPy's if none is."""
    arrays = {name: value for name, value in named.items() if is_array_api_obj(value)}
    if not arrays:
        return array_namespace(np.zeros(0)), None
    return common_namespace(**arrays), device(next(iter(arrays.values())))


def _float64(value: Any, xp: Any, where: Any) -> Any:
    if is_array_api_obj(value):
        return xp.astype(value, xp.float64)
    # Log-probabilities beyond float64 are -inf; none above zero is let through.
    number = float(value) if -_GREATEST <= value <= _GREATEST or value != value else math.inf
    return xp.asarray(-number if value < -_GREATEST else number, dtype=xp.float64, device=where)


def _log_probability(name: str, value: Any, xp: Any, where: Any) -> Any:
    """A log-probability or an array of them, checked, float64."""
    if is_array_api_obj(value):
        require_float(name, value, DegenerateDistributionError)
    elif isinstance(value, bool) or not isinstance(value, Real):
        raise InvalidConfigError(name, value, "a log-probability: a number, or an array of them")
    logs = _float64(value, xp, where)
    most = tolerance(value if is_array_api_obj(value) else logs)
    if not bool(xp.all(logs <= most)):
        raise DegenerateDistributionError(
            f"{name} has the entry {float(xp.max(logs))!r}; expected logarithms of probabilities, "
            "zero or below: take the log-softmax of logits, and look for NaN where it came from"
        )
    return logs
