"""Models whose forward passes take no time, so that what is left of a round can be timed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outrider.errors import ModelError
from outrider.runtimes.base import Capabilities, Cursor, Runtime
from outrider.types.records import DraftProposal, Prefix, TargetScores

DEPTH = 4


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
        """Refuse: there is a row of logits for each depth of a chain alone."""
        raise ModelError("a model that takes no time has no trees; expected chains")


def pair(size: int) -> tuple[Constant, Constant]:
    """A target with the entropies of language models, and a draft that resembles it."""
    noise = torch.Generator().manual_seed(0)
    ranks = torch.stack([torch.randperm(size, generator=noise) for _ in range(DEPTH + 1)])
    target = -1.4 * (ranks + 3.0).log()
    draft = target + 0.5 * torch.randn(target.shape, generator=noise)
    return Constant(target), Constant(draft)
