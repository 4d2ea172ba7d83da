"""The target's matrix products by the number of rows: `nn.Linear`'s way, and the other ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

import outrider
from outrider.runtimes.transformers import products
from outrider.runtimes.transformers.direct import same_inputs
from outrider.runtimes.transformers.packed import Packed, packable

from .report import Report, Spread, add_row, columns

ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16, 32, 64)

Product = Callable[[Tensor], Tensor]
"""Of [R, K] with a weight or several."""


def run(rounds: int) -> Report:
    """Time all linear layers of the demo target one after the other, each way in turn."""
    model = outrider.load("demo", device="cpu", dtype="float32", max_sequences=1).target.hf_model
    ways = products.ways_of(model)
    weights = [module.weight for module in model.modules() if isinstance(module, nn.Linear)]
    taken: list[list[tuple[int, Product]]] = [
        [(weight.shape[1], partial(linear, weight=weight)) for weight in weights],
        [(weight.shape[1], partial(products.other_way, weight=weight)) for weight in weights],
    ]
    if all(map(packable, weights)):
        alike = [[layer.get_parameter("weight") for layer in each] for each in same_inputs(model)]
        joined = {id(weight) for group in alike for weight in group}
        alone = [[weight] for weight in weights]
        rest = [group for group in alone if id(group[0]) not in joined]
        taken += [
            [(group[0].shape[1], Packed(*group).product) for group in groups]
            for groups in (alone, alike + rest)
        ]
    table = columns(
        "all matrix products of the demo target, milliseconds",
        *("rows", "nn.Linear's way", "operands exchanged", "ratio", "packed weights", "ratio"),
        *("same inputs packed as one", "ratio"),
    )
    figures = []
    for rows in ROWS:
        given = {width: torch.randn(rows, width) for width in {each.shape[1] for each in weights}}
        times: list[list[float]] = [[] for _ in taken]
        for _ in range(rounds + 1):
            for found, way in zip(times, taken, strict=True):
                found.append(_seconds(way, given))
        usual, *others = (Spread.of(found[1:]) for found in times)
        ratios = [usual.median / other.median for other in others]
        shown = [
            text
            for other, ratio in zip(others, ratios, strict=True)
            for text in (str(other), f"{ratio:.2f}x")
        ]
        add_row(table, str(rows), str(usual), *shown, *["-"] * (6 - len(shown)))
        named = zip(("other", "packed", "joined"), others, strict=False)
        figures.append(
            {"rows": rows, "linear": usual.figures(), "ratios": ratios}
            | {name: other.figures() for name, other in named}
        )
    return Report(
        "products",
        "rows: tokens of a forward, all sequences together; medians with the quarters around them; "
        "ratios: to nn.Linear's way; the demo target is multiplied with operands exchanged for "
        f"one row: {'yes' if ways.single else 'no'}, for 2 to {products.MOST}: "
        f"{f'to {ways.few}' if ways.few else 'no'}; with packed weights, which come first: "
        f"{f'from {ways.packed} rows' if ways.packed else 'no'}"
        f"{f' to {ways.packed_to}' if ways.packed_to else ''}",
        table,
        {"rows": figures, **asdict(ways)},
    )


@torch.inference_mode()
def _seconds(way: Sequence[tuple[int, Product]], given: dict[int, Tensor]) -> float:
    start = perf_counter()
    for width, product in way:
        product(given[width])
    return perf_counter() - start
