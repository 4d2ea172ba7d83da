"""The target's matrix products by the number of rows: `nn.Linear`'s way, and the other one."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

import outrider
from outrider.models import products

from .report import Report, Spread, add_row, columns

ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16)

Way = Callable[[Tensor, Tensor], Tensor]


def run(rounds: int) -> Report:
    """Time all linear layers of the demo target one after the other, both ways in turn."""
    model = outrider.load("demo", device="cpu", dtype="float32", max_sequences=1).target.hf_model
    ways = products.ways_of(model)
    weights = [module.weight for module in model.modules() if isinstance(module, nn.Linear)]
    table = columns(
        "all matrix products of the demo target, milliseconds",
        *("rows", "nn.Linear's way", "the other", "ratio"),
    )
    figures = []
    for rows in ROWS:
        given = {width: torch.randn(rows, width) for width in {each.shape[1] for each in weights}}
        times: list[list[float]] = [[], []]
        for _ in range(rounds + 1):
            for found, way in zip(times, (_usual, products.other_way), strict=True):
                found.append(_seconds(way, weights, given))
        before, after = (Spread.of(found[1:]) for found in times)
        ratio = before.median / after.median
        add_row(table, str(rows), str(before), str(after), f"{ratio:.2f}x")
        figures.append(
            {"rows": rows, "linear": before.figures(), "other": after.figures(), "ratio": ratio}
        )
    return Report(
        "products",
        "rows: tokens of a forward, all sequences together; medians with the quarters around them; "
        f"the demo target takes the other way for one row: {'yes' if ways.single else 'no'}, "
        f"for 2 to {products.MOST}: {f'to {ways.few}' if ways.few else 'no'}",
        table,
        {"rows": figures, "single": ways.single, "few": ways.few},
    )


def _usual(given: Tensor, weight: Tensor) -> Tensor:
    return linear(given, weight)


@torch.inference_mode()
def _seconds(way: Way, weights: list[Tensor], given: dict[int, Tensor]) -> float:
    start = perf_counter()
    for weight in weights:
        way(given[weight.shape[1]], weight)
    return perf_counter() - start
