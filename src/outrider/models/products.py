"""Products of one row, and of some, with a weight matrix.

A forward multiplies 1 row with every weight matrix where nothing is drafted, 2 to 9 where something
is, and a multiple of these for a batch. BLAS libraries are made for many. Some take twice as long
for a few in `x W^T` as in `(W x^T)^T`, the same products in another order, and for one, in what
they have for a matrix and a vector, two to three times as long as in what they have for several
matrices at once, given slices of the one. For more rows oneDNN, on a copy of the weights that it
has laid out for itself, takes as little as half of what BLAS does. Elsewhere the usual way is the
faster by as much: it depends on the processor. So a model's own weights are timed in all of these
ways when it is taken into use (`python -m benchmarks products` shows them on the machine it runs
on).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

MOST = 9
"""For up to how many rows another way than the usual one may be taken."""

_SLICES = 16
"""Into how many a matrix is cut at most: threads have one or more each."""

_FEW = (2, 4, 6, MOST)
"""How many rows are timed for 2 to 9: each for those since the one before."""

_MORE = (16, 64, 256)
"""And for more, on packed weights: the last of them for all beyond."""

_FASTER = 1.25
"""How many times as fast another way has to be, for some number of rows: its rounding differs, so
that no slow moment is to decide between ways that are about as fast."""

_SLOWER = 0.95
"""As many times as fast it may be for fewer: about as fast, by a clock."""

_PACKED_FASTER = 1.1
"""How many times as fast products with packed weights have to be for the fewest and the most rows
that take them, and for none between slower: they take as much memory again."""

_REPEATS = 5
"""How often each way is timed, in turn with the other. The least time counts, which other work on
the machine met least."""

_BYTES = 2**25
"""Of weights that are timed: more than a core's own cache holds, and soon done."""

_LEAST_BYTES = 2**20
"""Models with less are left alone: what they take is not in their products."""

_MOST_BYTES = 2**30
"""Models with more are not packed, which would double that."""

_WRONG = 1e-4
"""By how much of the largest of them products with packed weights may be off."""

_TICK = 1e-9
"""What takes no time by a clock that stands still, in seconds."""


_Way = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Ways:
    """For how many rows another way than the usual one is taken.

    Attributes:
        single: whether for one, slice by slice.
        few: for 2 to how many, the other way round; 0 for none.
        packed: from how many on, with packed weights, where there are any; 0 for none.
        packed_to: up to how many; 0 for all.
    """

    single: bool
    few: int
    packed: int = 0
    packed_to: int = 0

    def covers(self, rows: int) -> bool:
        """Whether so many rows are multiplied the other way round, if not with packed weights."""
        return self.single if rows == 1 else 1 < rows <= self.few

    def packs(self, rows: int) -> bool:
        """Whether so many rows are multiplied with packed weights, where there are any."""
        return 0 < self.packed <= rows and (not self.packed_to or rows <= self.packed_to)


OTHERWISE = Ways(single=True, few=MOST)
"""Never the usual way, up to `MOST` rows."""

USUAL = Ways(single=False, few=0)
"""Always the usual way."""


class Packed:
    """A weight matrix laid out for oneDNN: a copy, which knows what it is a copy of.

    Args:
        weight: float32 [N, K] on the CPU, whose changes are counted: no tensor of inference mode.
    """

    def __init__(self, weight: Tensor) -> None:
        self._laid_out: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), _MORE[0])
        # While it is held, nothing else is found at its address.
        self._weight = weight.detach()
        self._version = weight._version

    def stands_for(self, weight: Tensor) -> bool:
        """Whether a weight is the one that was copied, and not changed since.

        A change through `weight.data` in place, or through memory that it shares, is not seen.
        """
        return (
            weight.is_cpu
            and weight.dtype == torch.float32
            and weight.is_set_to(self._weight)
            and not weight.is_inference()
            and weight._version == self._version
        )

    def product(self, given: Tensor) -> Tensor:
        """`x W^T` for x [..., K]; no gradient comes back through it."""
        found: Tensor = torch.ops.mkldnn._linear_pointwise(
            given, self._laid_out, None, "none", [], ""
        )
        return found


class FewRows(nn.Linear):
    """A linear layer that multiplies one row slice by slice, a few the other way round, or more
    with packed weights.

    Its state is `nn.Linear`'s. On a CPU in float32; anything else takes the usual way. Packed
    weights are for inference mode alone, which Outrider's forwards are in: whoever trains the model
    or changes its weights meets the weights themselves.

    What replaces layers by their exact type, as `torch.ao.quantization.quantize_dynamic` does, does
    not take it for an `nn.Linear`: it has to be applied before a model is wrapped. A model that is
    pickled whole, and not as its `state_dict`, names this class: it takes Outrider to load it.

    Attributes:
        ways: which of them; those without packed weights for a layer that was pickled without.
        packed: the packed weights, if there are any; neither copied nor pickled.
    """

    ways: Ways = OTHERWISE
    packed: Packed | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "packed"}

    def forward(self, input: Tensor) -> Tensor:
        """`input W^T + b`, for an input [..., K] and weights [N, K].

        What is compiled takes the usual way: its number of rows is a symbol.
        """
        weight, shape = self.weight, input.shape
        rows = shape[:-1].numel()
        usual = torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu")
        usual = usual or not input.is_cpu or input.dtype != torch.float32
        if usual or not shape[-1]:
            return linear(input, weight, self.bias)
        packed = self.packed if self.ways.packs(rows) else None
        if packed and torch.is_inference_mode_enabled() and packed.stands_for(weight):
            product = packed.product(input)
        elif self.ways.covers(rows):
            product = other_way(input if rows == 1 else input.reshape(rows, -1), weight)
        else:
            return linear(input, weight, self.bias)
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


def faster(weights: Iterable[Tensor], packs: bool = True) -> Ways:
    """Which ways are faster on this machine, by a clock: for matrices like these.

    Of a few rows as many take the other way as are no slower in it, from 2 on, so that a slow
    moment at 9 does not cost 2 theirs. Packed weights take those around the number that gains most
    by them.

    Args:
        weights: of a model's layers, float32 [N, K] on the CPU, of which the first are timed.
        packs: whether they may be packed.
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
        gain = _gain(timed, rows, other_way)
        if gain < _SLOWER:
            break
        best = max(best, gain)
        few = rows if best >= _FASTER else 0
    ways = Ways(_gain(timed, 1, other_way) >= _FASTER, few)
    return (
        _with_packed(ways, timed)
        if packs and all(map(_counted, timed)) and packable(timed[0])
        else ways
    )


def _with_packed(ways: Ways, weights: list[Tensor]) -> Ways:
    """These ways, and for which numbers of rows packed weights take their place."""
    packed = {id(weight): Packed(weight) for weight in weights}

    def with_packed(given: Tensor, weight: Tensor) -> Tensor:
        return packed[id(weight)].product(given)

    sizes = (*_FEW, *_MORE)
    gains = [
        _gain(weights, rows, with_packed, other_way if ways.covers(rows) else _usual_way)
        for rows in sizes
    ]
    most = max(range(len(sizes)), key=gains.__getitem__)
    if gains[most] < _PACKED_FASTER:
        return ways
    low = _last_gaining(gains, range(most, -1, -1))
    high = _last_gaining(gains, range(most, len(sizes)))
    last = high == len(sizes) - 1
    return replace(ways, packed=sizes[low], packed_to=0 if last else sizes[high])


def _last_gaining(gains: Sequence[float], places: Iterable[int]) -> int:
    """The last of the places that gains, before one that is slower: of those the first gains."""
    last = -1
    for place in places:
        if gains[place] < _SLOWER:
            break
        last = place if gains[place] >= _PACKED_FASTER else last
    return last


@torch.inference_mode()
def packable(weight: Tensor) -> bool:
    """Whether this torch packs a weight [N, K], and gets the products with it right."""
    if not (torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled):  # type: ignore[no-untyped-call]
        return False
    if not _counted(weight):
        return False
    size = _MORE[0], weight.shape[1]
    given = torch.linspace(-1, 1, size[0] * size[1], dtype=weight.dtype, device=weight.device)
    with torch.autocast("cpu", enabled=False):
        try:
            found = Packed(weight).product(given.view(size))
        except (AttributeError, RuntimeError):
            # These are operators that torch keeps for its own compiler.
            return False
        expected = linear(given.view(size), weight)
    return bool((found - expected).abs().max() <= _WRONG * expected.abs().max())


def _counted(weight: Tensor) -> bool:
    """Whether a weight stays the same tensor, whose changes torch counts."""
    return type(weight) is nn.Parameter and not weight.is_inference() and weight.numel() > 0


@torch.inference_mode()
def _gain(weights: list[Tensor], rows: int, way: _Way, usual: _Way | None = None) -> float:
    """How many times as fast a way is for all weights as the usual one, in the least times of both.

    Args:
        weights: [N, K] each.
        rows: of what they are multiplied with.
        way: a product of [R, K] and [N, K].
        usual: what it is compared with; None for the usual way.
    """
    given = {weight.shape[1]: weight.new_ones(rows, weight.shape[1]) for weight in weights}
    ways = (usual or _usual_way, way)
    least = [inf, inf]
    with torch.autocast("cpu", enabled=False):
        for _ in range(_REPEATS):
            for place, taken in enumerate(ways):
                start = perf_counter()
                for weight in weights:
                    taken(given[weight.shape[1]], weight)
                least[place] = min(least[place], perf_counter() - start)
    return least[0] / max(least[1], _TICK)


def _usual_way(given: Tensor, weight: Tensor) -> Tensor:
    return linear(given, weight)


def install(model: nn.Module, ways: Ways | None = None, *, packs: bool = True) -> Ways:
    """Make a model's linear layers `FewRows`, those in float32 on a CPU, where that is faster.

    Layers of a class of their own, and weights that are, are left as they are. Of layers that have
    been made `FewRows` before, weights that are packed are packed anew.

    Args:
        model: the model.
        ways: which ways to take; None for those that are faster: as timed, or as they were for
            layers of the model that have been made `FewRows` before.
        packs: whether other weights may be packed: it takes as long as a few forwards.

    Returns:
        The ways.
    """
    layers = [each for each in model.modules() if type(each) is nn.Linear and _plain(each.weight)]
    before = installed(model)
    small = sum(layer.weight.nbytes for layer in (*layers, *before)) <= _MOST_BYTES
    for old in before:
        if packs or old.packed:
            old.packed = _packed(old.weight, old.ways) if small else None
    packs = packs and small
    if ways is None:
        ways = before[0].ways if before else faster((layer.weight for layer in layers), packs=packs)
    for layer in layers if ways != USUAL else ():
        # First what it needs, since a forward in another thread may be under way.
        packed = _packed(layer.weight, ways) if packs else None
        layer.__dict__.update(ways=ways, packed=packed)
        layer.__class__ = FewRows
    return ways


def _packed(weight: Tensor, ways: Ways) -> Packed | None:
    """A weight packed, if that is a way it is multiplied in, and one can tell that it changes."""
    return Packed(weight) if ways.packed and _plain(weight) and _counted(weight) else None


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
        layer.__dict__["packed"] = None
        layer.__class__ = nn.Linear


def _plain(weight: Tensor) -> bool:
    return (
        type(weight) in (Tensor, nn.Parameter)
        and weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and weight.is_contiguous()
    )
