"""The loops of a forward on a CPU: products, attention and what is done to rows, in float32.

They are run by `team`, given addresses, and check nothing: `panels`, `host_attention` and
`host_rows` do. What a row comes to does not depend on other rows, to the bit, since its sums are
made in one order.
"""

from __future__ import annotations

from math import factorial, log
from typing import Any

import numpy as np
from numba import carray
from numpy.typing import NDArray

from ...drafters.suffix.jit import Compiler
from . import simd
from .simd import LANES, TOGETHER, claimed, dots, floats, foreseen, longs, multiply, power_of_two

_compiler = Compiler(simd.__file__)

_DEPTH = 512
"""How many products are summed up in a row; such sums are then added to each other."""


@_compiler.compiled
def _multiply_all(
    rows: int,
    vectors: int,
    left: int,
    stride: int,
    matrix: int,
    out: int,
    out_stride: int,
    depth: int,
    ahead: int,
) -> None:
    """X W for X [rows, depth] and W [depth, vectors * LANES], W without gaps.

    Args:
        rows, depth: at least 1.
        vectors: at most `WIDEST`.
        left, matrix, out: addresses of X, W and the product.
        stride, out_stride: how many numbers rows of X and of the product are apart.
        ahead: from where on as much as W is asked for, which is read next.
    """
    most, row = TOGETHER[vectors], 0
    for parts in range((rows + most - 1) // most, 0, -1):
        some = (rows - row + parts - 1) // parts
        own, into = left + 4 * row * stride, out + 4 * row * out_stride
        for k in range(0, depth, _DEPTH):
            past, deep = 4 * k * vectors * LANES, min(_DEPTH, depth - k)
            right, further = matrix + past, ahead + past
            multiply(some, vectors, own + 4 * k, stride, right, into, out_stride, deep, k, further)
        row += some


@_compiler.compiled
def _dot_all(
    rows: int,
    vectors: int,
    left: int,
    stride: int,
    matrix: int,
    out: int,
    out_stride: int,
    count: int,
    ahead: int,
) -> None:
    """X K^T for X [rows, vectors * LANES] and K [count, vectors * LANES]: see `_multiply_all`."""
    most, row = TOGETHER[vectors], 0
    for parts in range((rows + most - 1) // most, 0, -1):
        some = (rows - row + parts - 1) // parts
        own, into = left + 4 * row * stride, out + 4 * row * out_stride
        dots(some, vectors, own, stride, matrix, into, out_stride, count, ahead)
        row += some


PANEL = 2 * LANES
"""How many columns of a product a panel of weights has."""

_AHEAD = 8192
"""How many bytes of panels are asked for before they are read."""


@_compiler.callback
def product(arguments: int) -> None:
    """Panels of a product, until none is left.

    Arguments: a counter; rows; depth; panels; how many to take at a time; addresses of the rows
    [rows, depth], the panels [panels, depth, PANEL] and the product [rows, panels * PANEL].
    """
    given = carray(longs(arguments), 8)
    rows, depth, panels, some = given[1], given[2], given[3], given[4]
    left, weights, out = given[5], given[6], given[7]
    width = panels * PANEL
    first = claimed(arguments) * some
    while first < panels:
        for panel in range(first, min(first + some, panels)):
            place = 4 * panel * PANEL
            own, into = weights + place * depth, out + place
            _multiply_all(rows, 2, left, depth, own, into, width, depth, own + _AHEAD)
        first = claimed(arguments) * some


# 2^x for x in [-.5, .5] by its derivatives at 0: the eighth is less than 1e-8 of it.
_C1, _C2, _C3, _C4, _C5, _C6, _C7 = (np.float32(log(2) ** k / factorial(k)) for k in range(1, 8))
_LOG2E = np.float32(1 / log(2))
_HALF, _ONE, _NONE = np.float32(0.5), np.float32(1), np.float32(0)
_LEAST, _MOST = np.float32(-126), np.float32(127)


@_compiler.reordered
def _exp(exponent: Any) -> Any:
    """e^x to some units in the last place, from 1e-38 to 1e38; NaN of NaN."""
    power = exponent * _LOG2E
    power = _LEAST if power < _LEAST else power
    power = _MOST if power > _MOST else power
    whole = np.floor(power + _HALF)
    rest = power - whole
    series = _C4 + rest * (_C5 + rest * (_C6 + rest * _C7))
    series = _ONE + rest * (_C1 + rest * (_C2 + rest * (_C3 + rest * series)))
    # NaN is no integer, and is kept by the series.
    return series * power_of_two(np.int32(whole if whole > _LEAST else _LEAST))


UNSEEN = np.float32(-1e30)
"""Less than that is added to the scores of columns that are not to be seen."""

_BLOCK = 64
"""Columns are taken so many at a time, so that what lies beyond changes no sum's order."""


@_compiler.reordered
def _softmax(scores: NDArray[np.float32], mask: NDArray[np.float32], scale: np.float32) -> None:
    """Turn scores [n] into weights in place: NaN if nothing is seen, or NaN is."""
    highest = -np.float32(np.inf)
    for i in range(len(scores)):
        score = scores[i] * scale + mask[i]
        scores[i] = score
        highest = max(highest, score)
    total = _NONE
    for i in range(len(scores)):
        weight = _exp(scores[i] - highest)
        weight = weight if mask[i] > UNSEEN else _NONE
        scores[i] = weight
        total += weight
    share = _ONE / total
    for i in range(len(scores)):
        scores[i] *= share


@_compiler.compiled
def _seen(mask: int, stride: int, columns: int, span: int) -> int:
    """How many columns there are up to the last that is seen, in whole blocks if they fit."""
    most = 1
    for column in range(columns):
        own = carray(floats(mask + 4 * column * stride), span)
        end = span
        while end > most and own[end - 1] <= UNSEEN:
            end -= 1
        most = max(most, end)
    return min(-(-most // _BLOCK) * _BLOCK, span)


ATTENTION = 25
"""How many arguments `attention` is given, before room for scores and the scale."""


@_compiler.callback
def attention(arguments: int) -> None:
    """Heads of sequences, until none is left.

    Arguments: counters of heads, and of threads; how many heads in all, key heads, query heads of
    each, columns read, vectors of a head, columns whose scores are kept at once; address and
    strides of sequences, heads and columns of the queries; of slots and heads of keys and values;
    of sequences and columns of the mask; the output's address and width; where the columns of each
    sequence begin; its slot; room for scores of each thread; and the scale, a float32.
    """
    given = carray(longs(arguments), ATTENTION)
    tasks, heads, groups, span = given[2], given[3], given[4], given[5]
    vectors, room = given[6], given[7]
    query, query_row, query_head, query_column = given[8], given[9], given[10], given[11]
    key, key_row, key_head = given[12], given[13], given[14]
    value, value_row, value_head = given[15], given[16], given[17]
    mask, mask_row, mask_column = given[18], given[19], given[20]
    out, width, bounds = given[21], given[22], given[23]
    slots = carray(longs(given[24]), tasks // heads)
    rest = carray(longs(arguments + 8 * ATTENTION), 1)
    scale = carray(floats(arguments + 8 * (ATTENTION + 1)), 1)[0]
    scores = rest[0] + 4 * claimed(arguments + 8) * room * span
    task = claimed(arguments)
    while task < tasks:
        # Whoever comes first takes it: a guess will do.
        following = foreseen(arguments)
        row, head = task // heads, task % heads
        bound = carray(longs(bounds + 8 * row), 2)
        first, columns = bound[0], bound[1] - bound[0]
        own_mask = mask + 4 * row * mask_row
        seen = _seen(own_mask, mask_column, columns, span)
        keys = key + 4 * (slots[row] * key_row + head * key_head)
        values = value + 4 * (slots[row] * value_row + head * value_head)
        # The next head's keys are asked for while values are read, and values while keys are.
        further = following if following < tasks else task
        ahead = key + 4 * (slots[further // heads] * key_row + further % heads * key_head)
        for place in range(head * groups, (head + 1) * groups):
            own = query + 4 * (row * query_row + place * query_head)
            into = out + 4 * (first * width + place * vectors * LANES)
            for start in range(0, columns, room):
                some, asked = min(room, columns - start), own + 4 * start * query_column
                _dot_all(some, vectors, asked, query_column, keys, scores, span, seen, values)
                for column in range(some):
                    _softmax(
                        carray(floats(scores + 4 * column * span), seen),
                        carray(floats(own_mask + 4 * (start + column) * mask_column), seen),
                        scale,
                    )
                found = into + 4 * start * width
                _multiply_all(some, vectors, scores, span, values, found, width, seen, ahead)
        task = claimed(arguments)


@_compiler.reordered
def _normed(
    row: NDArray[np.float32],
    weight: NDArray[np.float32],
    out: NDArray[np.float32],
    epsilon: np.float32,
) -> None:
    squares = _NONE
    for i in range(len(row)):
        squares += row[i] * row[i]
    scale = _ONE / np.sqrt(squares / np.float32(len(row)) + epsilon)
    for i in range(len(row)):
        out[i] = weight[i] * (row[i] * scale)


@_compiler.callback
def norm(arguments: int) -> None:
    """Root mean square layer norm (Zhang and Sennrich 2019) of rows, until none is left.

    Arguments: a counter; rows; their width; how many to take at a time; addresses of the rows, the
    weights and the output; and epsilon, a float32.
    """
    given = carray(longs(arguments), 7)
    rows, width, some = given[1], given[2], given[3]
    epsilon = carray(floats(arguments + 8 * 7), 1)[0]
    weight = carray(floats(given[5]), width)
    first = claimed(arguments) * some
    while first < rows:
        for row in range(first, min(first + some, rows)):
            place = 4 * row * width
            own, into = floats(given[4] + place), floats(given[6] + place)
            _normed(carray(own, width), weight, carray(into, width), epsilon)
        first = claimed(arguments) * some


@_compiler.reordered
def _gated(gate: NDArray[np.float32], up: NDArray[np.float32], out: NDArray[np.float32]) -> None:
    for i in range(len(gate)):
        out[i] = gate[i] / (_ONE + _exp(-gate[i])) * up[i]


@_compiler.callback
def gated(arguments: int) -> None:
    """silu(gate) * up of rows (Shazeer 2020), until none is left.

    Arguments: a counter; rows; their width; how many to take at a time; addresses of the gates and
    of what they gate, each with how many numbers its rows are apart, and the output's.
    """
    given = carray(longs(arguments), 9)
    rows, width, some = given[1], given[2], given[3]
    first = claimed(arguments) * some
    while first < rows:
        for row in range(first, min(first + some, rows)):
            gate, up = floats(given[4] + 4 * row * given[5]), floats(given[6] + 4 * row * given[7])
            into = floats(given[8] + 4 * row * width)
            _gated(carray(gate, width), carray(up, width), carray(into, width))
        first = claimed(arguments) * some
