"""What a sampled round over a large vocabulary takes where models take no time at all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

import torch
from torch import Tensor

from outrider import SamplingParams, SpeculativeConfig, SpeculativeDecoder
from outrider.drafters.model import ModelDrafter
from outrider.runtimes.base import Capabilities, Cursor, Runtime
from outrider.types.records import DraftProposal, Prefix, RoundRecord, TargetScores

from .report import Say, Scope

SIZES = (151_936, 262_144)
DEPTH = 4
FILTERED = {"top_k": 20, "top_p": 0.95}


class Constant(Runtime):
    """A model with logits [N, V] at hand: one row for each number of drafted tokens."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits

    @property
    def capabilities(self) -> Capabilities:
        """A vocabulary of any size on a CPU."""
        return Capabilities(self.logits.shape[-1], torch.device("cpu"))

    def verify(self, prefixes: Sequence[Prefix], proposal: DraftProposal) -> TargetScores:
        """The first rows, for every prefix: a view."""
        return TargetScores(self.logits[: proposal.width + 1].expand(len(prefixes), -1, -1))

    def open(self, prefixes: Sequence[Prefix], depth: int) -> Cursor:
        """Begin at the first row."""
        return ConstantCursor(self.logits, len(prefixes))


class ConstantCursor(Cursor):
    """The rows of logits one after another, as views."""

    def __init__(self, logits: Tensor, count: int) -> None:
        self._rows = logits[:, None].expand(-1, count, -1)
        self._fed = 0

    @property
    def logits(self) -> Tensor:
        """After the last token, [B, V]."""
        return self._rows[self._fed]

    def step(self, tokens: Tensor) -> Tensor:
        """The next row."""
        self._fed += 1
        return self.logits

    def expand(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """No trees are drafted here."""
        raise NotImplementedError


def pair(size: int) -> tuple[Constant, Constant]:
    """A target with the entropies of language models, and a draft that resembles it."""
    noise = torch.Generator().manual_seed(0)
    ranks = torch.stack([torch.randperm(size, generator=noise) for _ in range(DEPTH + 1)])
    target = -1.4 * (ranks + 3.0).log()
    draft = target + 0.5 * torch.randn(target.shape, generator=noise)
    return Constant(target), Constant(draft)


def rounds(size: int, method: Any, batch: int, count: int, **asked: Any) -> dict[str, Any]:
    """Time rounds of `count` tokens or more, and return the medians in milliseconds."""
    target, draft = pair(size)
    records: list[RoundRecord] = []
    config = SpeculativeConfig(
        num_speculative_tokens=DEPTH, depth="fixed", verification=method, validate="never"
    )
    drafter = ModelDrafter(draft)
    decoder = SpeculativeDecoder(target, drafter, config=config, on_round=records.append)
    params = SamplingParams(max_tokens=count + 2 * DEPTH, seed=1, **asked)
    while len(records) < count:
        decoder.generate([[row + 1] for row in range(batch)], params)
    seen = [record for record in records[4:] if record.depth == (DEPTH,) * batch]
    return {
        "total_ms": 1e3 * median(one.total_s for one in seen),
        "target_ms": 1e3 * median(one.target_s for one in seen),
        "draft_ms": 1e3 * median(one.draft_s for one in seen),
        "rest_ms": 1e3 * median(one.total_s - one.target_s - one.draft_s for one in seen),
    }


def measured(scope: Scope, say: Say) -> Iterator[dict[str, Any]]:
    """Rows for the table of `overhead`."""
    for size in SIZES:
        for batch in scope.batches or (1, 4):
            for method in ("token", "block"):
                for temperature in scope.temps or (0.8,):
                    kinds = ({}, FILTERED) if method == "block" and batch == 1 else ({},)
                    for filters in kinds:
                        named = "".join(f", {name} {value:g}" for name, value in filters.items())
                        name = f"{method}, k = {DEPTH}, {size:,} tokens, {batch} rows{named}"
                        say(name)
                        asked = {"temperature": temperature, **filters}
                        found = rounds(size, method, batch, scope.rounds or 40, **asked)
                        yield {"rounds": name, "temperature": temperature} | found
