"""Attention of new columns over a long cache, for a few at the speed at which the cache is read.

What frameworks have for it is made for many columns, and takes twice as long for one or two. Here a
thread takes a head of a sequence: scores of all its columns, their softmax, and the mean of the
values. Keys and values come from memory once, those beyond a sequence's last column not at all.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from . import loops, team
from .ragged import Ragged
from .simd import LANES, WIDEST
from .slot_cache import Span

_TOGETHER = 32
"""For how many columns of a sequence scores are kept at once."""


def width_fits(width: int) -> bool:
    """Whether `attention` is made for heads so wide."""
    return width % LANES == 0 and 0 < width <= WIDEST * LANES


def fits(query: Tensor, read: Span, mask: Tensor) -> bool:
    """Whether `attention` is made for states like these."""
    rows, all_heads, columns, width = query.shape
    key, value = read.keys, read.values
    slots, heads, span = key.shape[:3]
    return (
        width_fits(width)
        and key.shape == value.shape == (slots, heads, span, width)
        and (slots if read.rows is None else len(read.rows)) == rows
        and (read.rows is None or (read.rows.dtype == torch.int64 and read.rows.is_contiguous()))
        and all_heads % heads == 0
        and mask.shape[0] in (1, rows)
        and mask.shape[1] == 1
        and mask.shape[2] >= columns
        and mask.shape[3] == span
        and all(each.dtype == torch.float32 and each.is_cpu for each in (query, key, value, mask))
        and key.stride()[2:] == value.stride()[2:] == (width, 1)
        and query.stride(3) == mask.stride(3) == 1
        and query.numel() > 0
        and span > 0
    )


def attention(
    query: Tensor,
    read: Span,
    mask: Tensor,
    scaling: float,
    ragged: Ragged | None = None,
) -> Tensor:
    """Masked attention of states that it `fits`, in float32.

    Args:
        query: [B, g * H, q, D].
        read: keys and values [S, H, span, D].
        mask: additive, [B or 1, 1, q or g * q, span]; of g * q rows each q are the same.
        scaling: multiplies the products.
        ragged: which columns are computed; None for all.

    Returns:
        [B, q, g * H * D], or of ragged rows [1, n, g * H * D].
    """
    rows, all_heads, columns, width = query.shape
    key, value = read.keys, read.values
    heads, span = key.shape[1:3]
    slots = np.arange(rows) if read.rows is None else read.rows.numpy()
    bounds = np.arange(rows + 1) * columns if ragged is None else ragged.bounds
    computed = (rows, columns) if ragged is None else (1, len(ragged.columns))
    out = query.new_empty(*computed, all_heads * width)
    room = min(columns, _TOGETHER)
    scratch = query.new_empty(torch.get_num_threads() * room * span)
    team.run(
        loops.attention,
        *(rows * heads, heads, all_heads // heads, span, width // LANES, room),
        *(query.data_ptr(), *query.stride()[:3]),
        *(key.data_ptr(), *key.stride()[:2]),
        *(value.data_ptr(), *value.stride()[:2]),
        *(mask.data_ptr(), mask.stride(0) if len(mask) > 1 else 0, mask.stride(2)),
        *(
            out.data_ptr(),
            all_heads * width,
            bounds.ctypes.data,
            slots.ctypes.data,
            scratch.data_ptr(),
        ),
        team.as_integer(scaling),
        counters=2,
    )
    return out
