"""Products of one row, and of a few, with a weight matrix.

A forward multiplies 1 row with every weight matrix where nothing is drafted, and 2 to 9 where
something is. BLAS libraries are made for many. Some take twice as long for a few in `x W^T` as in
`(W x^T)^T`, the same products in another order, and for one, in what they have for a matrix and a
vector, two to three times as long as in what they have for several matrices at once, given slices
of the one. Others are the faster in their usual way, by as much: it depends on the processor. So a
model's own weights are timed both ways when it is taken into use (`python -m benchmarks products`
shows both on the machine it runs on).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from math import inf
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

MOST = 9
"""For up to how many rows another way than the usual one may be taken."""

_SLICES = 16
"""Into how many a matrix is cut at most: threads have one or more each."""

_FEW = (2, 4, 6, MOST)
"""How many rows are timed for 2 to 9: each for those since the one before."""

_FASTER = 1.25
"""How many times as fast another way has to be, for some number of rows: its rounding differs, so
that no slow moment is to decide between ways that are about as fast."""

_SLOWER = 0.95
"""As many times as fast it may be for fewer: about as fast, by a clock."""

_REPEATS = 5
"""How often each way is timed, in turn with the other. The least time counts, which other work on
the machine met least."""

_BYTES = 2**25
"""Of weights that are timed: more than a core's own cache holds, and soon done."""

_LEAST_BYTES = 2**20
"""Models with less are left alone: what they take is not in their products."""

_TICK = 1e-9
"""What takes no time by a clock that stands still, in seconds."""


@dataclass(frozen=True, slots=True)
class Ways:
    """For how many rows another way than the usual one is taken.

    Attributes:
        single: whether for one, slice by slice.
        few: for 2 to how many, the other way round; 0 for none.
    """

    single: bool
    few: int

    def covers(self, rows: int) -> bool:
        """Whether so many rows are not multiplied in the usual way."""
        return self.single if rows == 1 else 1 < rows <= self.few


OTHERWISE = Ways(single=True, few=MOST)
"""Never the usual way, up to `MOST` rows."""

USUAL = Ways(single=False, few=0)
"""Always the usual way."""


class FewRows(nn.Linear):
    """A linear layer that multiplies one row slice by slice, or a few the other way round, or both.

    Its state is `nn.Linear`'s. On a CPU in float32; anything else takes the usual way.

    What replaces layers by their exact type, as `torch.ao.quantization.quantize_dynamic` does, does
    not take it for an `nn.Linear`: it has to be applied before a model is wrapped. A model that is
    pickled whole, and not as its `state_dict`, names this class: it takes Outrider to load it.

    Attributes:
        ways: which of them; both for a layer that was pickled without.
    """

    ways: Ways = OTHERWISE

    def forward(self, input: Tensor) -> Tensor:
        """`input W^T + b`, for an input [..., K] and weights [N, K].

        What is compiled takes the usual way: its number of rows is a symbol.
        """
        weight, shape = self.weight, input.shape
        rows = shape[:-1].numel()
        usual = torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu")
        usual = usual or not input.is_cpu or input.dtype != torch.float32
        if usual or not self.ways.covers(rows) or not shape[-1]:
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


def faster(weights: Iterable[Tensor]) -> Ways:
    """Which ways are faster on this machine, by a clock: for matrices like these.

    Of a few rows as many take the other way as are no slower in it, from 2 on, so that a slow
    moment at 9 does not cost 2 theirs.

    Args:
        weights: of a model's layers, float32 [N, K] on the CPU, of which the first are timed.
    """
    timed, size = list[Tensor](), 0
    for weight in weights:
        if size < _BYTES and weight.numel():
            timed.append(weight)
            size += weight.nbytes
    if size < _LEAST_BYTES:
        return USUAL

    few, best = 0, 0.0
    for rows in _FEW:
        gain = _gain(timed, rows)
        if gain < _SLOWER:
            break
        best = max(best, gain)
        few = rows if best >= _FASTER else 0
    return Ways(_gain(timed, 1) >= _FASTER, few)


@torch.inference_mode()
def _gain(weights: list[Tensor], rows: int) -> float:
    """How many times as fast the other way is for all weights, in the least times of both."""
    given = {weight.shape[1]: weight.new_ones(rows, weight.shape[1]) for weight in weights}
    ways = (_usual_way, other_way)
    least = [inf, inf]
    with torch.autocast("cpu", enabled=False):
        for _ in range(_REPEATS):
            for place, way in enumerate(ways):
                start = perf_counter()
                for weight in weights:
                    way(given[weight.shape[1]], weight)
                least[place] = min(least[place], perf_counter() - start)
    return least[0] / max(least[1], _TICK)


def _usual_way(given: Tensor, weight: Tensor) -> Tensor:
    return linear(given, weight)


def install(model: nn.Module, ways: Ways | None = None) -> Ways:
    """Make a model's linear layers `FewRows`, those in float32 on a CPU, where that is faster.

    Layers of a class of their own, and weights that are, are left as they are, and so are layers
    that have been made `FewRows` before.

    Args:
        model: the model.
        ways: which ways to take; None for those that are faster: as timed, or as they were for
            layers of the model that have been made `FewRows` before.

    Returns:
        The ways.
    """
    layers = [each for each in model.modules() if type(each) is nn.Linear and _plain(each.weight)]
    if ways is None:
        before = installed(model)
        ways = before[0].ways if before else faster(layer.weight for layer in layers)
    if ways != USUAL:
        for layer in layers:
            # First what it needs, since a forward in another thread may be under way.
            layer.__dict__["ways"] = ways
            layer.__class__ = FewRows
    return ways


def ways_of(model: nn.Module) -> Ways:
    """Which ways the layers of a model take."""
    found = installed(model)
    return found[0].ways if found else USUAL


def installed(model: nn.Module) -> list[FewRows]:
    """The layers of a model that are."""
    return [module for module in model.modules() if type(module) is FewRows]


def remove(model: nn.Module, but: Collection[FewRows] = ()) -> None:
    """Make them `nn.Linear` again, all but some."""
    layers: list[nn.Linear] = [layer for layer in installed(model) if layer not in but]
    for layer in layers:
        # Its ways stay: a forward in another thread may be under way.
        layer.__class__ = nn.Linear


def _plain(weight: Tensor) -> bool:
    return (
        type(weight) in (Tensor, nn.Parameter)
        and weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and weight.is_contiguous()
    )
