"""The demo target's forwards by compiled loops, and without them."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from time import perf_counter

import numpy as np
import torch

import outrider
from outrider import TransformersModel
from outrider.runtimes.transformers import products
from outrider.types.records import Distributions, DraftProposal, Prefix

from .report import Report, Spread, add_row, columns

SIZES = ((1, 1), (1, 2), (1, 3), (1, 5), (1, 9), (4, 1), (4, 2), (4, 5), (16, 1), (16, 2), (16, 5))
"""Sequences, and columns of each: the last token and what was drafted after it."""

_PREFIX = 200
"""Tokens before them, some more in each further sequence."""

_APART = 7
"""How many."""


def run(rounds: int) -> Report:
    """Time each size both ways, in turn."""
    most = max(rows for rows, _ in SIZES)
    pair = outrider.load("demo", device="cpu", dtype="float32", max_sequences=most)
    ways = products.ways_of(pair.target.hf_model)
    without = TransformersModel(deepcopy(pair.target.hf_model), max_sequences=most)
    products.remove(without.hf_model)
    products.install(without.hf_model, replace(ways, packed=0, packed_to=0))
    models = {"loops": pair.target, "without": without}
    table = columns(
        "a forward of the demo target, milliseconds",
        *("sequences", "columns each", "by loops", "without", "ratio", "over one column, by loops"),
    )
    rows, single = [], dict[int, float]()
    for sequences, width in SIZES:
        times = _times(models, sequences, width, rounds)
        loops, other = times["loops"], times["without"]
        single.setdefault(sequences, loops.median)
        ratio, over = other.median / loops.median, loops.median / single[sequences]
        add_row(
            table,
            *(str(sequences), str(width), str(loops), str(other), f"{ratio:.2f}x", f"{over:.2f}x"),
        )
        rows.append(
            {"sequences": sequences, "columns": width, "ratio": ratio, "over_one": over}
            | {name: spread.figures() for name, spread in times.items()}
        )
    taken = f"from {ways.packed} rows" if ways.packed else "for none"
    return Report(
        "loops",
        f"{_PREFIX} tokens before the columns of the first sequence, {_APART} more in each "
        "further one; one forward of each way in turn, medians with the quarters around them; "
        "without: products in those ways of torch's that are the fastest here, and its attention; "
        f"loops were found faster {taken} when the model was loaded",
        table,
        {"rows": rows, "packed": ways.packed},
    )


def _times(
    models: dict[str, TransformersModel], sequences: int, width: int, rounds: int
) -> dict[str, Spread]:
    """Of verifying width - 1 drafts for each sequence, after as many rounds as are timed."""
    rng = np.random.default_rng(0)
    texts = [rng.integers(5, 4000, _PREFIX + _APART * row).tolist() for row in range(sequences)]
    prefixes = [Prefix(row, text) for row, text in enumerate(texts)]
    found: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(rounds + 2):
        drafts = torch.from_numpy(rng.integers(5, 4000, (sequences, width - 1)))
        lengths = np.full(sequences, width - 1)
        proposal = DraftProposal(drafts, lengths, Distributions(point_masses=drafts))
        for name, model in models.items():
            start = perf_counter()
            model.verify(prefixes, proposal)
            found[name].append(perf_counter() - start)
        prefixes = [prefix.extended(rng.integers(5, 4000, 1).tolist()) for prefix in prefixes]
    for model in models.values():
        model.release(range(sequences), discard=True)
    return {name: Spread.of(times[2:]) for name, times in found.items()}
