"""Validation of what the array functions are given: once, at the edge.

Each check names the argument, the value, what was expected and what to do; behind it nothing is
checked again. Reading a value to check it waits for the device.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from array_api_compat import array_namespace, device, is_array_api_obj, is_torch_array

from ..config.validation import real
from ..errors import (
    DegenerateDistributionError,
    DistributionWidthError,
    DraftShapeError,
    InvalidConfigError,
    OutriderError,
    TokenOutOfRangeError,
    type_name,
)
from ..random import row_totals

_LARGE = 500.0


def common_namespace(**arrays: Any) -> Any:
    """The array library that all the arguments belong to; they must share a device too.

    Raises:
        InvalidConfigError: one is no array, or is of another library or device than the first.
    """
    first = next(iter(arrays))
    for name, array in arrays.items():
        if not is_array_api_obj(array):
            given = f"{name} is of type {type_name(array)}"
            expected = "an array of NumPy, PyTorch or another array-API library: convert it"
        elif is_torch_array(array) and array.requires_grad:
            given, expected = f"{name} requires grad", "a tensor without a gradient: detach it"
        elif array_namespace(array) is not array_namespace(arrays[first]):
            kinds = type_name(array), type_name(arrays[first])
            given = f"{name} is of type {kinds[0]} and {first} of type {kinds[1]}"
            expected = "arrays of one library: convert one of them"
        elif device(array) != device(arrays[first]):
            given = f"{name} is on {device(array)} and {first} on {device(arrays[first])}"
            expected = "arrays on one device: move one of them"
        else:
            continue
        raise InvalidConfigError(name, array, expected, given=given)
    return array_namespace(arrays[first])


def require_float(name: str, array: Any, error: type[OutriderError]) -> None:
    """Check that an array is of a real floating-point dtype, else raise `error`."""
    xp = array_namespace(array)
    if not xp.isdtype(array.dtype, "real floating"):
        raise error(
            f"{name} has dtype {array.dtype}; expected a floating-point dtype: convert it first"
        )


def require_shape(
    name: str, array: Any, shape: tuple[int | str, ...], meaning: str, error: type[OutriderError]
) -> None:
    """Check a shape, a letter matching any size, else raise `error` with the shape's `meaning`."""
    given = tuple(array.shape)
    if len(given) != len(shape) or any(
        isinstance(wanted, int) and wanted != size
        for size, wanted in zip(given, shape, strict=True)
    ):
        expected = ", ".join(map(str, shape))
        raise error(f"{name} has shape {given}; expected [{expected}], {meaning}")


def require_width(name: str, array: Any, width: int | None = None) -> None:
    """Check that rows are `width` wide; if None, that they have a width at all.

    Raises:
        DistributionWidthError: they are not.
    """
    given = tuple(array.shape)
    if not given or given[-1] == 0:
        raise DistributionWidthError(
            f"{name} has shape {given}; expected a last dimension of at least one token"
        )
    if width is not None and given[-1] != width:
        raise DistributionWidthError(
            f"{name} has shape {given}; expected a last dimension of {width}, the vocabulary of "
            "the other distributions: pad the narrower ones with zeros"
        )


def require_rows(
    name: str,
    array: Any,
    shape: tuple[int | str, ...],
    meaning: str,
    error: type[OutriderError],
    width: int | None = None,
) -> None:
    """Check that an array holds `shape` rows, `width` wide if given, of floating-point numbers."""
    require_shape(name, array, (*shape, "V"), meaning, error)
    require_width(name, array, width)
    require_float(name, array, error)


def tolerance(array: Any) -> float:
    """How far from one a row of this dtype may sum: 1e-6 in 64 bits, 1e-4 in 32, 1e-2 in 16.

    Twice what rounding every entry of a row to bfloat16 can do, and ample for a softmax in float32.
    """
    bits = array_namespace(array).finfo(array.dtype).bits
    return {64: 1e-6, 32: 1e-4}.get(bits, 1e-2)


def sound_rows(distributions: Any) -> Any:
    """Say which rows [..., V] are non-negative with a sum of one, bool [...]."""
    xp = array_namespace(distributions)
    totals = row_totals(distributions)
    least = xp.min(distributions, axis=-1)
    return (least >= 0) & (xp.abs(totals - 1) <= tolerance(distributions))


def require_distributions(name: str, distributions: Any, ignored: Any | None = None) -> None:
    """Check that rows [..., V] are probabilities: non-negative, with a sum of one.

    Args:
        name: of the argument.
        distributions: the rows.
        ignored: bool [...], rows that are not looked at; None looks at all.

    Raises:
        DegenerateDistributionError: a row has NaN, infinite or negative mass, or another sum (by
            more than `tolerance`).
    """
    xp = array_namespace(distributions)
    fine = sound_rows(distributions)
    wrong = _first_row(name, distributions, fine if ignored is None else fine | ignored)
    if wrong is None:
        return
    place, row = wrong
    total = float(xp.sum(row, dtype=xp.float64))
    raise DegenerateDistributionError(
        f"{place} has total mass {total!r} and least entry {float(xp.min(row))!r}; expected "
        f"non-negative probabilities that sum to one within {tolerance(distributions)}: normalise "
        "the row, and look for NaN where it came from"
    )


def exponentiated(name: str, logprobs: Any) -> Any:
    """Check that rows [..., V] are log-probabilities, and return their probabilities, float64.

    Raises:
        DegenerateDistributionError: they are of no floating-point dtype, or a row has NaN or
            infinite mass, or its probabilities do not sum to one (by more than `tolerance`).
    """
    require_float(name, logprobs, DegenerateDistributionError)
    xp = array_namespace(logprobs)
    # A logarithm above one is no probability's; clipped, it fails the check without overflowing.
    distributions = xp.exp(xp.clip(xp.astype(logprobs, xp.float64), max=1.0))
    totals = xp.sum(distributions, axis=-1)
    wrong = _first_row(name, logprobs, xp.abs(totals - 1) <= tolerance(logprobs))
    if wrong is None:
        return distributions
    place, row = wrong
    total = float(xp.sum(xp.exp(xp.clip(xp.astype(row, xp.float64), max=_LARGE))))
    raise DegenerateDistributionError(
        f"{place} has total mass {total!r} and greatest entry {float(xp.max(row))!r}; expected "
        f"logarithms of probabilities that sum to one within {tolerance(logprobs)}: take the "
        "log-softmax of logits first, and look for NaN where they came from"
    )


def _first_row(name: str, rows: Any, fine: Any) -> tuple[str, Any] | None:
    """The first of the rows [..., V] that is not fine [...], with its name; None if all are."""
    place = first_place(~fine)
    return None if place is None else (f"{name}{list(place) or ''}", rows[(*place, ...)])


def first_place(wrong: Any) -> tuple[int, ...] | None:
    """The indices of the first true entry; None if there is none."""
    xp = array_namespace(wrong)
    if not bool(xp.any(wrong)):
        return None
    first = int(xp.argmax(xp.astype(xp.reshape(wrong, (-1,)), xp.int64)))
    return tuple(int(index) for index in np.unravel_index(first, tuple(wrong.shape)))


def require_tokens(
    name: str, tokens: Any, shape: tuple[int, int], vocab_size: int, counts: Any
) -> Any:
    """Check token ids [B, K] where they count, bool [B, K], and return them as int64, 0 elsewhere.

    Raises:
        DraftShapeError: their shape or dtype is wrong.
        TokenOutOfRangeError: one is outside the vocabulary.
    """
    xp = array_namespace(tokens)
    require_shape(name, tokens, shape, "one token for each drafted distribution", DraftShapeError)
    if not xp.isdtype(tokens.dtype, "integral"):
        raise DraftShapeError(f"{name} has dtype {tokens.dtype}; expected integer token ids")
    ids = xp.where(counts, xp.astype(tokens, xp.int64), 0)
    place = first_place((ids < 0) | (ids >= vocab_size))
    if place is not None:
        raise TokenOutOfRangeError(
            f"{name}{list(place)} is {int(ids[place])}; expected ids in "
            f"0..{vocab_size - 1}: check that draft and target share a vocabulary"
        )
    return ids


def require_range(name: str, value: Any, low: float, high: float, expected: str) -> None:
    """Check that a real number, or every entry of a floating-point array, is in [low, high].

    Raises:
        InvalidConfigError: it is not, or is no number.
    """
    if not is_array_api_obj(value):
        real(name, value, expected, lambda number: low <= number <= high)
        return
    xp = array_namespace(value)
    if not xp.isdtype(value.dtype, "real floating"):
        raise InvalidConfigError(name, value, f"{expected}, of a floating-point dtype")
    place = first_place(~((value >= low) & (value <= high)))
    if place is not None:
        raise InvalidConfigError(name, float(value[place]), expected)
