"""Products of one row, and of some, with a weight matrix.

A forward multiplies 1 row with every weight matrix where nothing is drafted, 2 to 9 where something
is, and a multiple of these for a batch. BLAS libraries are made for many. Some take twice as long
for a few in `x W^T` as in `(W x^T)^T`, the same products in another order, and for one, in what
they have for a matrix and a vector, two to three times as long as in what they have for several
matrices at once, given slices of the one. Elsewhere the usual way is the faster by as much. Loops
of Outrider's own, on a copy of the weights that is laid out for them, take little more than reading
it does. All of that depends on the processor, so a model's own weights are timed in each way when
it is taken into use (`python -m benchmarks products` shows them on the machine it runs on).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from math import inf
from time import perf_counter
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from .packed import Packed, counted, packable

MOST = 9
"""For up to how many rows another way than the usual one may be taken."""

_SLICES = 16
"""Into how many a matrix is cut at most: threads have one or more each."""

_FEW = (2, 4, 6, MOST)
"""How many rows are timed for 2 to 9: each for those since the one before."""

_PACKED = (1, *_FEW, 16, 64, 256)
"""And on packed weights: the last of them for all beyond."""

_FASTER = 1.25
"""How many times as fast another way has to be, for some number of rows: its rounding differs, so
that no slow moment is to decide between ways that are about as fast."""

_SLOWER = 0.95
"""As many times as fast it may be for fewer: about as fast, by a clock."""

_PACKED_FASTER = 1.1
"""How many times as fast products with packed weights have to be for some number of rows: they take
as much memory again. They are then taken as far as they are about as fast, since what they make of
a row does not depend on how many there are."""

_REPEATS = 5
"""How often each way is timed, in turn with the other. The least time counts, which other work on
the machine met least."""

_BYTES = 2**25
"""Of weights that are timed: more than a core's own cache holds, and soon done."""

_LEAST_BYTES = 2**20
"""Models with less are left alone: what they take is not in their products."""

_MOST_BYTES = 2**30
"""Models with more are not packed, which would double that."""

_TICK = 1e-9
"""What takes no time by a clock that stands still, in seconds."""


_Way = Callable[[Tensor, Sequence[Tensor]], Any]


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
        joined: those of this layer and others that are given the same input, laid out as one, in
            the place of each layer's own; the same holds for them. Where one of them gets a hook or
            is exchanged later, the others take no packed weights, until the model is wrapped anew.
    """

    ways: Ways = OTHERWISE
    packed: Packed | None = None
    joined: Packed | None = None

    def __getstate__(self) -> dict[str, Any]:
        kept = self.__dict__.items()
        return {name: value for name, value in kept if name not in ("packed", "joined")}

    def forward(self, input: Tensor) -> Tensor:
        """`input W^T + b`, for an input [..., K] and weights [N, K].

        What is compiled takes the usual way: its number of rows is a symbol.
        """
        weight, shape = self.weight, input.shape
        rows = shape[:-1].numel()
        if _as_usual(input) or not shape[-1]:
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


def together(given: Tensor, *layers: nn.Module) -> Sequence[Tensor]:
    """What layers make of the same input [..., K], in one product where their weights are joined.

    Returns:
        [..., N] of each, which may be parts of one tensor.
    """
    first = layers[0]
    # Another thread may give the layers back.
    joined = first.joined if isinstance(first, FewRows) else None
    if (
        isinstance(first, FewRows)
        and joined
        and first.ways.packs(given.shape[:-1].numel())
        and torch.is_inference_mode_enabled()
        and not _as_usual(given)
        and _bare(layers)
        and joined.stands_for(*(layer.weight for layer in layers))
    ):
        return torch.split(joined.product(given), joined.sizes, -1)
    return apart(given, *layers)


def apart(given: Tensor, *layers: nn.Module) -> Sequence[Tensor]:
    """What layers make of the same input, each by itself: [..., N] of each."""
    return [layer(given) for layer in layers]


def loops_are_faster(layer: nn.Module) -> bool:
    """Whether a layer was found to be multiplied faster by loops, and has packed weights."""
    return isinstance(layer, FewRows) and bool(layer.packed or layer.joined)


def _as_usual(given: Tensor) -> bool:
    """Whether an input is multiplied in the usual way, whatever is faster."""
    usual = torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu")
    return usual or not given.is_cpu or given.dtype != torch.float32


def _bare(layers: Sequence[nn.Module]) -> TypeGuard[Sequence[FewRows]]:
    """Whether layers are products and no more: without a bias, hooks or a forward of their own."""
    for layer in layers:
        own = vars(layer)
        if (
            type(layer) is not FewRows
            or own["_parameters"].get("bias") is not None
            or own["_forward_hooks"]
            or own["_forward_pre_hooks"]
            or "forward" in own
        ):
            return False
    return True


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


def faster(groups: Iterable[Sequence[Tensor]], packs: bool = True) -> Ways:
    """Which ways are faster on this machine, by a clock: for matrices like these.

    Of a few rows as many take the other way as are no slower in it, from 2 on, so that a slow
    moment at 9 does not cost 2 theirs. Packed weights take those around the number that gains most
    by them, as far as none is slower.

    Args:
        groups: weights of a model's layers, float32 [N, K] on the CPU, of which the first are
            timed; those that are packed as one beside each other.
        packs: whether they may be packed.
    """
    timed, size = list[Sequence[Tensor]](), 0
    for group in groups:
        if size < _BYTES and all(weight.numel() for weight in group):
            timed.append(group)
            size += sum(weight.nbytes for weight in group)
    if size < _LEAST_BYTES:
        return USUAL

    other, few, best = _one_by_one(other_way), 0, 0.0
    for rows in _FEW:
        gain = _gain(timed, rows, other)
        if gain < _SLOWER:
            break
        best = max(best, gain)
        few = rows if best >= _FASTER else 0
    ways = Ways(_gain(timed, 1, other) >= _FASTER, few)
    packs = packs and all(counted(weight) for group in timed for weight in group)
    return _with_packed(ways, timed) if packs and packable(timed[0][0]) else ways


def _with_packed(ways: Ways, groups: list[Sequence[Tensor]]) -> Ways:
    """These ways, and for which numbers of rows packed weights take their place."""
    packed = {id(group): Packed(*group) for group in groups}

    def with_packed(given: Tensor, group: Sequence[Tensor]) -> Tensor:
        return packed[id(group)].product(given)

    gains = [
        _gain(
            groups,
            rows,
            with_packed,
            _one_by_one(other_way if ways.covers(rows) else _usual_way),
        )
        for rows in _PACKED
    ]
    most = max(range(len(_PACKED)), key=gains.__getitem__)
    if gains[most] < _PACKED_FASTER:
        return ways
    low = _last_as_fast(gains, range(most, -1, -1))
    high = _last_as_fast(gains, range(most, len(_PACKED)))
    last = high == len(_PACKED) - 1
    return replace(ways, packed=_PACKED[low], packed_to=0 if last else _PACKED[high])


def _last_as_fast(gains: Sequence[float], places: Iterable[int]) -> int:
    """The last of the places before one that is slower; the first gains."""
    return list(takewhile(lambda place: gains[place] >= _SLOWER, places))[-1]


@torch.inference_mode()
def _gain(groups: list[Sequence[Tensor]], rows: int, way: _Way, usual: _Way | None = None) -> float:
    """How many times as fast a way is for all weights as the usual one, in the least times of both.

    Args:
        groups: of weights, [N, K] each, K the same in a group.
        rows: of what they are multiplied with.
        way: products of [R, K] and of each [N, K] in a group.
        usual: what it is compared with; None for the usual way.
    """
    weights = [group[0] for group in groups]
    given = {weight.shape[1]: weight.new_ones(rows, weight.shape[1]) for weight in weights}
    ways = (usual or _one_by_one(_usual_way), way)
    least = [inf, inf]
    with torch.autocast("cpu", enabled=False):
        for _ in range(_REPEATS):
            for place, taken in enumerate(ways):
                start = perf_counter()
                for group in groups:
                    taken(given[group[0].shape[1]], group)
                least[place] = min(least[place], perf_counter() - start)
    return least[0] / max(least[1], _TICK)


def _one_by_one(way: Callable[[Tensor, Tensor], Tensor]) -> _Way:
    """A product of one weight, for each of a group."""
    return lambda given, group: [way(given, weight) for weight in group]


def _usual_way(given: Tensor, weight: Tensor) -> Tensor:
    return linear(given, weight)


def install(
    model: nn.Module,
    ways: Ways | None = None,
    *,
    packs: bool = True,
    groups: Sequence[Sequence[nn.Module]] = (),
) -> Ways:
    """Make a model's linear layers `FewRows`, those in float32 on a CPU, where that is faster.

    Layers of a class of their own, and weights that are, are left as they are. Of layers that have
    been made `FewRows` before, weights that are packed are packed anew.

    Args:
        model: the model.
        ways: which ways to take; None for those that are faster: as timed, or as they were for
            layers of the model that have been made `FewRows` before.
        packs: whether other weights may be packed: it takes as long as a few forwards.
        groups: layers of it that are given the same input, by `together`: what of them is packed is
            packed as one.

    Returns:
        The ways.
    """
    layers = [each for each in model.modules() if type(each) is nn.Linear and _plain(each.weight)]
    before = installed(model)
    small = sum(layer.weight.nbytes for layer in (*layers, *before)) <= _MOST_BYTES
    for old in before:
        if packs or old.packed:
            old.packed = _packed(old.weight, old.ways) if small else None
        if old.joined:
            old.joined = None if packs or not small else old.joined.anew()
    packs = packs and small
    if ways is None:
        ways = before[0].ways if before else faster(_grouped(layers, groups), packs=packs)
    for layer in layers if ways != USUAL else ():
        # First what it needs, since a forward in another thread may be under way.
        packed = _packed(layer.weight, ways) if packs else None
        layer.__dict__.update(ways=ways, packed=packed)
        layer.__class__ = FewRows
    for group in groups if packs else ():
        if _bare(group) and all(layer.packed for layer in group):
            group[0].joined = Packed(*(layer.weight for layer in group))
            for layer in group:
                layer.packed = None
    return ways


def _grouped(
    layers: Sequence[nn.Linear], groups: Sequence[Sequence[nn.Module]]
) -> list[list[Tensor]]:
    """The weights of layers, in their order, those of a group in the place of its first."""
    known = {id(layer) for layer in layers}
    joined: dict[int, list[Tensor]] = {}
    for group in groups:
        if all(id(layer) in known and layer.bias is None for layer in group):
            joined |= {id(layer): [] for layer in group}
            joined[id(group[0])] = [layer.get_parameter("weight") for layer in group]
    found = [joined.get(id(layer), [layer.weight]) for layer in layers]
    return [weights for weights in found if weights]


def _packed(weight: Tensor, ways: Ways) -> Packed | None:
    """A weight packed, if that is a way it is multiplied in, and one can tell that it changes."""
    return Packed(weight) if ways.packed and _plain(weight) and counted(weight) else None


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
        layer.__dict__.update(packed=None, joined=None)
        layer.__class__ = nn.Linear


def _plain(weight: Tensor) -> bool:
    return (
        type(weight) in (Tensor, nn.Parameter)
        and weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and weight.is_contiguous()
    )
