"""Products of a few rows with a weight matrix, the other way round.

A forward multiplies 1 row with every weight matrix where nothing is drafted, and 2 to 9 where
something is. BLAS libraries are made for many: for a few, `x W^T` takes a CPU twice as long as
`(W x^T)^T`, the same products in another order, and one row is slower than two equal ones, which
several threads can share (`python -m benchmarks products` times both on the machine it runs on).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

MOST = 8
"""For up to how many rows the other way is taken."""


class FewRows(nn.Linear):
    """A linear layer that multiplies a few rows the other way round. Its state is `nn.Linear`'s.

    On a CPU in float32; anything else takes the usual way.
    """

    def forward(self, input: Tensor) -> Tensor:
        """`input W^T + b`, for an input [..., K] and weights [N, K].

        What is compiled takes the usual way: its number of rows is a symbol.
        """
        rows = input.numel() // max(1, input.shape[-1])
        few = 1 <= rows <= MOST and input.is_cpu and input.dtype == torch.float32
        if not few or torch.compiler.is_compiling():
            return linear(input, self.weight, self.bias)
        columns = input.reshape(rows, -1).T if rows > 1 else input.reshape(1, -1).repeat(2, 1).T
        bias: Tensor | None = self.bias
        if bias is None:
            product = torch.mm(self.weight, columns)
        else:
            product = torch.addmm(bias[:, None], self.weight, columns)
        return product[:, :rows].T.contiguous().view(*input.shape[:-1], -1)


def install(model: nn.Module) -> None:
    """Make a model's linear layers `FewRows`, those in float32 on a CPU.

    Layers of a class of their own are left as they are.
    """
    for module in model.modules():
        if type(module) is nn.Linear:
            weight = module.weight
            if weight.device.type == "cpu" and weight.dtype == torch.float32:
                _become(module, FewRows)


def installed(model: nn.Module) -> bool:
    """Whether a model has such layers."""
    return any(type(module) is FewRows for module in model.modules())


def remove(model: nn.Module) -> None:
    """Make them `nn.Linear` again."""
    for module in model.modules():
        if type(module) is FewRows:
            _become(module, nn.Linear)


def _become(layer: nn.Linear, kind: type[nn.Linear]) -> None:
    layer.__class__ = kind
