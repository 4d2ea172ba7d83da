"""Attention of new columns over a long cache, for a few at the speed at which the cache is read.

What frameworks have for it is made for many columns, and takes twice as long for one or two. Here a
thread takes a head of a sequence: scores of all its columns, their softmax, and the mean of the
values. Keys and values come from memory once, and what nobody sees is hardly read. What a column
gets does not depend on the columns and sequences beside it, to the bit.
"""

from __future__ import annotations

import struct
from math import factorial, log

import numpy as np
import torch
from numba import carray
from numpy.typing import NDArray
from torch import Tensor

from ..jit import callback, compiled, reordered
from . import team
from .ragged import Ragged
from .simd import LANES, WIDEST, claimed, dots, floats, longs, multiply

_TOGETHER = 32
"""For how many columns of a sequence scores are kept at once."""

_BLOCK = 64
"""Columns are taken so many at a time, so that what lies beyond changes no sum's order."""

_UNSEEN = np.float32(-1e30)
"""Less than that is added to the scores of columns that are not to be seen."""

# 2^x for x in [-.5, .5] by its derivatives at 0: the eighth is less than 1e-8 of it.
_C1, _C2, _C3, _C4, _C5, _C6, _C7 = (np.float32(log(2) ** k / factorial(k)) for k in range(1, 8))
_LOG2E = np.float32(1 / log(2))
_HALF, _ONE, _NONE = np.float32(0.5), np.float32(1), np.float32(0)
_LEAST = np.float32(-126)
_BIAS, _MANTISSA = np.int32(127), np.int32(23)


@reordered
def _softmax(
    scores: NDArray[np.float32],
    mask: NDArray[np.float32],
    exponents: NDArray[np.int32],
    scale: np.float32,
) -> None:
    """Turn scores [n] into weights in place; `exponents` [n] is room to work in. NaN stays."""
    count = len(scores)
    highest = -np.float32(np.inf)
    for i in range(count):
        score = scores[i] * scale + mask[i]
        scores[i] = score
        highest = max(highest, score)
    for i in range(count):
        power = (scores[i] - highest) * _LOG2E
        power = _LEAST if power < _LEAST else power
        whole = np.floor(power + _HALF)
        rest = power - whole
        series = _C4 + rest * (_C5 + rest * (_C6 + rest * _C7))
        scores[i] = _ONE + rest * (_C1 + rest * (_C2 + rest * (_C3 + rest * series)))
        exponents[i] = (np.int32(whole if whole > _LEAST else _LEAST) + _BIAS) << _MANTISSA
    twos, total = exponents.view(np.float32), _NONE
    for i in range(count):
        weight = scores[i] * twos[i] if mask[i] > _UNSEEN else _NONE
        scores[i] = weight
        total += weight
    share = _ONE / total
    for i in range(count):
        scores[i] *= share


@compiled
def _seen(mask: int, stride: int, columns: int, span: int) -> int:
    """How many columns are seen by any of those of a sequence, rounded up to whole blocks."""
    most = 1
    for column in range(columns):
        own = carray(floats(mask + 4 * column * stride), span)
        end = span
        while end > most and own[end - 1] <= _UNSEEN:
            end -= 1
        most = max(most, end)
    return min(-(-most // _BLOCK) * _BLOCK, span)


@callback
def _work(arguments: int) -> None:
    """Heads of sequences, until none is left: see `attention`."""
    given = carray(longs(arguments), 24)
    tasks, heads, groups, span = given[1], given[2], given[3], given[4]
    vectors, room, width = given[5], given[6], given[7]
    query, query_row, query_head, query_column = given[8], given[9], given[10], given[11]
    key, key_row, key_head = given[12], given[13], given[14]
    value, value_row, value_head = given[15], given[16], given[17]
    mask, mask_row, mask_column = given[18], given[19], given[20]
    out, scratch, bounds = given[21], given[22], given[23]
    scale = carray(floats(arguments + 8 * 24), 1)[0]
    task = claimed(arguments)
    while task < tasks:
        row, head = task // heads, task % heads
        bound = carray(longs(bounds + 8 * row), 2)
        first, columns = bound[0], bound[1] - bound[0]
        own_mask = mask + 4 * row * mask_row
        seen = _seen(own_mask, mask_column, columns, span)
        keys = key + 4 * (row * key_row + head * key_head)
        values = value + 4 * (row * value_row + head * value_head)
        scores = scratch + 4 * task * (room + 1) * span
        exponents = carray(floats(scores + 4 * room * span), seen).view(np.int32)
        for place in range(head * groups, (head + 1) * groups):
            own = query + 4 * (row * query_row + place * query_head)
            into = out + 4 * (first * width + place * vectors * LANES)
            for start in range(0, columns, room):
                some, asked = min(room, columns - start), own + 4 * start * query_column
                dots(some, vectors, asked, query_column, keys, scores, span, seen)
                for column in range(some):
                    _softmax(
                        carray(floats(scores + 4 * column * span), seen),
                        carray(floats(own_mask + 4 * (start + column) * mask_column), seen),
                        exponents,
                        scale,
                    )
                found = into + 4 * start * width
                multiply(some, vectors, scores, span, values, found, width, seen)
        task = claimed(arguments)


def fits(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> bool:
    """Whether `attention` is made for states like these."""
    width = query.shape[3]
    return (
        width % LANES == 0
        and width <= WIDEST * LANES
        and value.shape[3] == width
        and all(each.dtype == torch.float32 and each.is_cpu for each in (query, key, value, mask))
        and key.stride()[2:] == value.stride()[2:] == (width, 1)
        and query.stride(3) == mask.stride(3) == 1
    )


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    scaling: float,
    ragged: Ragged | None = None,
) -> Tensor:
    """Masked attention of states that it `fits`, in float32.

    Args:
        query: [B, g * H, q, D].
        key, value: [B, H, span, D].
        mask: additive, [B or 1, 1, q or g * q, span]; of g * q rows each q are the same.
        scaling: multiplies the products.
        ragged: which columns are computed; None for all.

    Returns:
        [B, q, g * H * D], or of ragged rows [1, n, g * H * D].
    """
    rows, all_heads, columns, width = query.shape
    heads, span = key.shape[1:3]
    bounds = np.arange(rows + 1) * columns if ragged is None else ragged.bounds
    computed = (rows, columns) if ragged is None else (1, len(ragged.columns))
    out = query.new_empty(*computed, all_heads * width)
    tasks, room = rows * heads, min(columns, _TOGETHER)
    scratch = query.new_empty(tasks * (room + 1) * span)
    sizes = tasks, heads, all_heads // heads, span, width // LANES, room, out.shape[2]
    (scale,) = struct.unpack("=q", struct.pack("=ff", scaling, 0.0))
    team.run(
        _work,
        (
            *sizes,
            *(query.data_ptr(), *query.stride()[:3]),
            *(key.data_ptr(), *key.stride()[:2]),
            *(value.data_ptr(), *value.stride()[:2]),
            *(mask.data_ptr(), mask.stride(0) if len(mask) > 1 else 0, mask.stride(2)),
            *(out.data_ptr(), scratch.data_ptr(), bounds.ctypes.data),
            scale,
        ),
    )
    return out
