"""Models whose forward passes cost nothing, so that what is left of a round can be timed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outrider.runtimes.base import Capabilities, Cursor, Runtime
from outrider.types.records import DraftProposal, Prefix, TargetScores


class FreeModel(Runtime):
    """A model with the same logits after every prefix, which it hands out without copying.

    Args:
        logits: float32 [V].
    """

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits

    @property
    def capabilities(self) -> Capabilities:
        """Any number of sequences of any length."""
        return Capabilities(len(self.logits), self.logits.device)

    def verify(self, prefixes: Sequence[Prefix], proposal: DraftProposal) -> TargetScores:
        """Return a view [B, N + 1, V] of the logits."""
        return TargetScores(self.logits.expand(len(prefixes), proposal.width + 1, -1))

    def open(self, prefixes: Sequence[Prefix], depth: int) -> FreeCursor:
        """Open a cursor at the end of the prefixes."""
        return FreeCursor(self.logits.expand(len(prefixes), -1))


class FreeCursor(Cursor):
    """A free model in the middle of drafting.

    Args:
        logits: [B, V].
    """

    def __init__(self, logits: Tensor) -> None:
        self._logits = logits

    @property
    def logits(self) -> Tensor:
        """Logits [B, V]."""
        return self._logits

    def step(self, tokens: Tensor) -> Tensor:
        """Feed one token to each row."""
        return self._logits

    def expand(self, tokens: Tensor, parents: Tensor) -> Tensor:
        """Feed nodes [B, M] of a tree."""
        return self._logits[:, None].expand(-1, tokens.shape[1], -1)


def free_pair(vocab_size: int, agreement: float = 0.8) -> tuple[FreeModel, FreeModel]:
    """Make a target with random logits, and a draft whose logits are those and some noise."""
    generator = torch.Generator().manual_seed(0)
    target, noise = torch.randn(2, vocab_size, generator=generator)
    return FreeModel(3 * target), FreeModel(3 * target + (1 - agreement) * 3 * noise)
