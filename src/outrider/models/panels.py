"""Products with a weight matrix that is laid out in panels, at the speed at which it is read.

A panel is a few columns of the product: all weights that they take, in the order in which they are
read. Threads take panels in turn, so that each weight is read from memory once, for all rows. What
a row's product is does not depend on the other rows, to the bit: sums are made in one order.
"""

from __future__ import annotations

import torch
from numba import carray
from torch import Tensor

from ..jit import callback
from . import team
from .simd import LANES, claimed, longs, multiply

_VECTORS = 2
_WIDTH = _VECTORS * LANES
"""How many columns a panel has."""


@callback
def _work(arguments: int) -> None:
    """Panels of one product, until none is left: see `product`."""
    given = carray(longs(arguments), 9)
    rows, depth, panels, some = given[1], given[2], given[3], given[4]
    left, weights, out, width = given[5], given[6], given[7], given[8]
    first = claimed(arguments) * some
    while first < panels:
        for panel in range(first, min(first + some, panels)):
            place = panel * _WIDTH
            multiply(
                rows, _VECTORS, left, depth, weights + 4 * place * depth, out + 4 * place, width,
                depth,
            )  # fmt: skip
        first = claimed(arguments) * some


def laid_out(weight: Tensor) -> Tensor:
    """A weight [N, K] as panels [ceil(N / width), K, width], float32; the last is filled with 0."""
    count, depth = weight.shape
    panels = -(-count // _WIDTH)
    padded = weight.new_zeros(panels * _WIDTH, depth)
    padded[:count] = weight
    return padded.view(panels, _WIDTH, depth).transpose(1, 2).contiguous()


def product(given: Tensor, weights: Tensor, columns: int) -> Tensor:
    """`x W^T` for x [..., K] and the panels of a W [N, K], in float32 on the CPU: [..., N]."""
    panels, depth, _ = weights.shape
    rows = given.shape[:-1].numel()
    left = given.reshape(rows, depth).contiguous()
    out = given.new_empty(rows, panels * _WIDTH)
    if rows:
        # A few at a time, so that all threads are through at about the same time.
        some = max(panels // (8 * torch.get_num_threads()), 1)
        addresses = left.data_ptr(), weights.data_ptr(), out.data_ptr()
        team.run(_work, (rows, depth, panels, some, *addresses, out.shape[1]))
    found = out if out.shape[1] == columns else out[:, :columns].contiguous()
    return found.view(*given.shape[:-1], columns)
