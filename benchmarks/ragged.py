"""Verification of rows of different lengths, without what would pad them and with it."""

from __future__ import annotations

from time import perf_counter
from unittest.mock import PropertyMock, patch

import numpy as np
import torch

import outrider
from outrider import TransformersModel
from outrider.types.records import Distributions, DraftProposal, Prefix

from .report import Report, Spread, add_row, columns

LENGTHS = (
    (1, 0),
    (3, 0),
    (1, 0, 2, 1),
    (0, 0, 8, 0),
    (0, 0, 16, 0),
    (2, 10, 2, 16),
    (1,) * 8 + (0,) * 8,
    (16, 1, 1, 1, 16, 16, 1, 1, 1, 1, 16, 1, 12, 1, 6, 1),
)
"""Drafted tokens of each row, as rounds with looked-up tokens have them."""

_PREFIX = 300
"""Tokens before them, some more in some rows."""


def run(rounds: int) -> Report:
    """Time each set of lengths both ways, in turn."""
    most = max(map(len, LENGTHS))
    target = outrider.load("demo", device="cpu", dtype="float32", max_sequences=most).target
    assert isinstance(target, TransformersModel)
    table = columns(
        "verifying rows of different lengths, milliseconds",
        *("rows", "drafted, in all", "longest", "ragged", "padded", "ratio"),
    )
    figures = []
    for lengths in LENGTHS:
        found: dict[bool, list[float]] = {True: [], False: []}
        for seed in range(rounds + 1):
            for ragged, times in found.items():
                with patch.object(TransformersModel, "ragged", PropertyMock(return_value=ragged)):
                    times.append(_seconds(target, lengths, seed))
        without, padded = (Spread.of(found[ragged][1:]) for ragged in (True, False))
        ratio = padded.median / without.median
        drafted, longest = sum(lengths), max(lengths)
        shown = (len(lengths), drafted, longest, without, padded, f"{ratio:.2f}x")
        add_row(table, *map(str, shown))
        figures.append(
            {"lengths": lengths, "ratio": ratio}
            | {"ragged": without.figures(), "padded": padded.figures()}
        )
    return Report(
        "ragged",
        f"verify of the demo target after {_PREFIX} tokens and some more; medians with the "
        "quarters around them; ratio: padded over ragged; both compute the same logits",
        table,
        {"rows": figures, "ragged": target.ragged},
    )


def _seconds(target: TransformersModel, lengths: tuple[int, ...], seed: int) -> float:
    """Of one forward; the prefixes are there, but for their last tokens, which are others."""
    rng = np.random.default_rng(0)
    texts = [rng.integers(target.vocab_size, size=_PREFIX + 7 * row % 13) for row in range(16)]
    last = np.random.default_rng(seed).integers(target.vocab_size, size=(len(lengths), 17))
    prefixes = [Prefix(row, np.append(texts[row], last[row, 16])) for row, _ in enumerate(lengths)]
    drafts = torch.from_numpy(last[:, : max(lengths)])
    proposal = DraftProposal(drafts, np.array(lengths), Distributions(point_masses=drafts))
    start = perf_counter()
    target.verify(prefixes, proposal)
    return perf_counter() - start
