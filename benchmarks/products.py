"""The target's matrix products by the number of rows: `nn.Linear`'s way, and the engine's."""

from __future__ import annotations

import copy
from time import perf_counter

import torch
from torch import Tensor, nn

import outrider
from outrider.models import products

from .report import Report, Spread, columns

ROWS = (1, 2, 3, 4, 5, 6, 8, 9, 16)


def run(rounds: int) -> Report:
    """Time all linear layers of the demo target one after the other, both ways in turn."""
    model = outrider.load("demo", device="cpu", dtype="float32", max_sequences=1).target.hf_model
    own = _layers(model)
    usual = copy.deepcopy(own, {id(layer.weight): layer.weight for layer in own})
    for layer in usual:
        products.remove(layer)
    table = columns(
        "all matrix products of the demo target, milliseconds",
        *("rows", "nn.Linear", "Outrider", "ratio"),
    )
    figures = []
    for rows in ROWS:
        given = {width: torch.randn(1, rows, width) for width in {each.in_features for each in own}}
        times: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(rounds + 1):
            for mine, layers in ((False, usual), (True, own)):
                times[mine].append(_seconds(layers, given))
        before, after = Spread.of(times[False][1:]), Spread.of(times[True][1:])
        ratio = before.median / after.median
        table.add_row(str(rows), str(before), str(after), f"{ratio:.2f}x")
        figures.append(
            {"rows": rows, "linear": before.figures(), "own": after.figures(), "ratio": ratio}
        )
    return Report(
        "products",
        "rows: tokens of a forward, all sequences together; the same weights in both; medians "
        "with the quarters around them",
        table,
        {"rows": figures},
    )


def _layers(model: nn.Module) -> list[nn.Linear]:
    return [module for module in model.modules() if isinstance(module, nn.Linear)]


@torch.inference_mode()
def _seconds(layers: list[nn.Linear], given: dict[int, Tensor]) -> float:
    start = perf_counter()
    for layer in layers:
        layer(given[layer.in_features])
    return perf_counter() - start
