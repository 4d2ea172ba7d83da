"""Products of one row, and of a few, with a weight matrix.

A forward multiplies 1 row with every weight matrix where nothing is drafted, and 2 to 9 where
something is. BLAS libraries are made for many. For a few, `x W^T` takes a CPU twice as long as
`(W x^T)^T`, the same products in another order. For one, what they have for a matrix and a vector
takes two to three times as long as what they have for several matrices at once, given slices of
the one (`python -m benchmarks products` times both on the machine it runs on).
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

MOST = 9
"""For up to how many rows another way than the usual one is taken."""

_SLICES = 16
"""Into how many a matrix is cut at most: threads have one or more each."""


class FewRows(nn.Linear):
    """A linear layer that multiplies one row slice by slice, and a few the other way round.

    Its state is `nn.Linear`'s. On a CPU in float32; anything else takes the usual way.

    What replaces layers by their exact type, as `torch.ao.quantization.quantize_dynamic` does, does
    not take it for an `nn.Linear`: it has to be applied before a model is wrapped. A model that is
    pickled whole, and not as its `state_dict`, names this class: it takes Outrider to load it.
    """

    def forward(self, input: Tensor) -> Tensor:
        """`input W^T + b`, for an input [..., K] and weights [N, K].

        What is compiled takes the usual way: its number of rows is a symbol.
        """
        if torch.compiler.is_compiling() or not input.is_cpu or input.dtype != torch.float32:
            return linear(input, self.weight, self.bias)
        rows = input.numel() // max(1, input.shape[-1])
        if not 1 <= rows <= MOST:
            return linear(input, self.weight, self.bias)
        product = other_way(input.reshape(rows, -1), self.weight)
        bias: Tensor | None = self.bias
        if bias is not None:
            product = product + bias
        return product.view(*input.shape[:-1], -1)


def other_way(given: Tensor, weight: Tensor) -> Tensor:
    """`x W^T` [R, N], for x [R, K] and W [N, K]: for one row slice by slice."""
    if len(given) > 1:
        return weight.mm(given.T).T.contiguous()
    return _one_row(given, weight).view(1, -1)


def _one_row(row: Tensor, weight: Tensor) -> Tensor:
    rest = len(weight) % _SLICES
    if rest:
        ends = [weight[:-rest], weight[-rest:]]
        return torch.cat(
            [_one_row(row, end) if len(end) > rest else end.mv(row[0]) for end in ends]
        )
    slices = weight.reshape(_SLICES, -1, weight.shape[1])
    return torch.bmm(slices, row.T.expand(_SLICES, -1, 1)).view(-1)


def install(model: nn.Module) -> None:
    """Make a model's linear layers `FewRows`, those in float32 on a CPU.

    Layers of a class of their own, and weights that are, are left as they are.
    """
    for module in model.modules():
        if type(module) is nn.Linear and _plain(module.weight):
            _become(module, FewRows)


def installed(model: nn.Module) -> list[FewRows]:
    """The layers of a model that are."""
    return [module for module in model.modules() if type(module) is FewRows]


def remove(model: nn.Module, but: Collection[FewRows] = ()) -> None:
    """Make them `nn.Linear` again, all but some."""
    for layer in installed(model):
        if layer not in but:
            _become(layer, nn.Linear)


def _plain(weight: Tensor) -> bool:
    return (
        type(weight) in (Tensor, nn.Parameter)
        and weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and weight.is_contiguous()
    )


def _become(layer: nn.Linear, kind: type[nn.Linear]) -> None:
    layer.__class__ = kind
