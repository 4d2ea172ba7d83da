"""Products with a weight matrix that is laid out in panels, at the speed at which it is read.

A panel is a few columns of the product: all weights that they take, in the order in which they are
read. Threads take panels in turn, so that each weight comes from memory once, for all rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import loops, team
from .loops import PANEL


def laid_out(weight: Tensor) -> Tensor:
    """A weight [N, K] as panels [ceil(N / width), K, width], float32; the last is filled with 0."""
    count, depth = weight.shape
    panels = -(-count // PANEL)
    padded = weight.new_zeros(panels * PANEL, depth)
    padded[:count] = weight
    return padded.view(panels, PANEL, depth).transpose(1, 2).contiguous()


def product(given: Tensor, weights: Tensor, columns: int) -> Tensor:
    """`x W^T` for x [..., K] and the panels of a W [N, K], in float32 on the CPU: [..., N]."""
    panels, depth, _ = weights.shape
    rows = given.shape[:-1].numel()
    left = given.reshape(rows, depth).contiguous()
    out = given.new_empty(rows, panels * PANEL)
    if rows:
        # A few at a time, so that all threads are through at about the same time.
        some = max(panels // (8 * torch.get_num_threads()), 1)
        addresses = left.data_ptr(), weights.data_ptr(), out.data_ptr()
        team.run(loops.product, rows, depth, panels, some, *addresses)
    found = out if out.shape[1] == columns else out[:, :columns].contiguous()
    return found.view(*given.shape[:-1], columns)
