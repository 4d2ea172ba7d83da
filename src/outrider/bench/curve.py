"""What a forward of the target costs, by the tokens it is given: the curve t(n)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ..engine.rounds import Stopwatch
from ..runtimes.transformers.model import TransformersModel
from ..types.records import Distributions, DraftProposal, Prefix
from .records import ForwardTime

WIDTHS = tuple(range(1, 18))
"""Tokens given to each row: a round that drafts k of them gives k + 1."""


def forward_times(
    hf_model: Any,
    rows: Sequence[int],
    *,
    widths: Sequence[int] = WIDTHS,
    prompt_tokens: int = 128,
    repeats: int = 15,
) -> list[ForwardTime]:
    """Time a target's forwards over prefixes that it has computed, as they happen in rounds.

    All widths are timed in turn, in an order drawn anew each time, so that noise meets them alike.
    After a width the same prefix comes with another one: what was written beyond it is forgotten.

    Args:
        hf_model: a causal language model of transformers.
        rows: batch sizes.
        widths: tokens given to each row.
        prompt_tokens: the length of the prefixes; less where the model's context is short.
        repeats: of every width.
    """
    model = TransformersModel(hf_model, max_sequences=max(rows))
    rng = np.random.default_rng(0)
    length = max(1, min(prompt_tokens, model.max_length - max(widths)))
    found = []
    for batch in rows:
        tokens = rng.integers(1, model.vocab_size, (batch, length))
        prefixes = [Prefix(row, tokens[row].tolist()) for row in range(batch)]
        drafts = torch.from_numpy(rng.integers(1, model.vocab_size, (batch, max(widths))))
        drafts = drafts.to(model.device)
        seconds: dict[int, list[float]] = {width: [] for width in widths}
        for repeat in range(repeats + 1):
            for width in rng.permutation(widths).tolist():
                lengths = np.full(batch, width - 1)
                given = drafts[:, : width - 1].contiguous()
                watch = Stopwatch(model.device)
                model.verify(
                    prefixes, DraftProposal(given, lengths, Distributions(point_masses=given))
                )
                watch.mark()
                # The first time reads the prefixes and warms up.
                if repeat:
                    seconds[width].append(watch.spans()[-1])
        model.release(range(batch), discard=True)
        for width, times in seconds.items():
            low, median, high = np.percentile(times, (25, 50, 75)).tolist()
            found.append(ForwardTime(batch, width, median, low, high))
    return found
