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
        weight, shape = self.weight, input.shape
        rows = shape[:-1].numel()
        usual = torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu")
        usual = usual or not input.is_cpu or input.dtype != torch.float32
        if usual or not 1 <= rows <= MOST or not shape[-1]:
            return linear(input, weight, self.bias)
        product = other_way(input if rows == 1 else input.reshape(rows, -1), weight)
        bias: Tensor | None = self.bias
        if bias is not None:
            product = product.view(rows, -1) + bias
        return product.view(*shape[:-1], -1)


def other_way(given: Tensor, weight: Tensor) -> Tensor:
    """`x W^T` in the order of [R, N], for W [N, K] and x [R, K].

    One row, [..., K], is multiplied slice by slice, and what it gives has a shape of its own.
    """
    width = given.shape[-1]
    if given.numel() != width:
        return weight.mm(given.T).T.contiguous()
    whole = weight.shape[0] // _SLICES * _SLICES
    # Laid out as a column of each slice, which decides what BLAS is asked.
    column = given.as_strided((_SLICES, width, 1), (0, given.stride(-1), width))
    if whole == weight.shape[0]:
        return torch.bmm(weight.reshape(_SLICES, -1, width), column)
    rest = weight[whole:].mm(column[0])
    if not whole:
        return rest
    slices = weight[:whole].reshape(_SLICES, -1, width)
    return torch.cat([torch.bmm(slices, column).view(-1, 1), rest])


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
