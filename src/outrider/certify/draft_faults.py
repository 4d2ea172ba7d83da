"""Faults of drafts in another vocabulary, and of drafts by the target's own first layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..drafters.early_exit import EarlyExitDrafter
from ..runtimes.tabular import TabularModel
from ..runtimes.transformers.early_exit import EarlyExit
from ..runtimes.transformers.model import TransformersModel
from ..types.records import Distributions, DraftPlan, DraftProposal, Prefix
from . import toys
from .faults import FaultyDrafter

_TEXTS = ("aa", "", "a")


class OtherVocabulary(FaultyDrafter):
    """A sound drafter with a model that has a token more, and one less, than the target.

    Logits that it is given are logarithms of the draft's probabilities among all of its tokens.
    """

    def __init__(self, model: TabularModel) -> None:
        mapped: Any = toys.of_another_vocabulary(model, _TEXTS).models[0]
        super().__init__(mapped)


class NotRenormalised(OtherVocabulary):
    """Draws from the distribution over the common tokens, and reports their share of all tokens."""

    def reported(self, distribution: Tensor, logits: Tensor) -> Tensor:
        """What the draft gave them, which does not sum to one."""
        return logits.exp()


class CutAfterDrawing(OtherVocabulary):
    """Draws from all tokens, reads one that the target lacks as another, and reports the cut distribution.

    The other is the first of the target's tokens, as one that stands for unknown ones is.
    """

    def distribution(self, logits: Tensor, ctx: Any) -> Tensor:
        """The whole distribution, [B, V]."""
        whole = logits.exp()
        whole[:, 0] += 1 - whole.sum(-1)
        return whole

    def reported(self, distribution: Tensor, logits: Tensor) -> Tensor:
        """The distribution of the common tokens."""
        return logits.softmax(-1)


class DistributionOfAnotherLayer(EarlyExitDrafter):
    """Draws from the distribution after the first layer, and reports that after the second."""

    def __init__(self, target: TransformersModel) -> None:
        super().__init__(target, 1)
        self._deeper = EarlyExit(target, 2)

    def propose(self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: Any) -> DraftProposal:
        """The sound tokens, with distributions that they were not drawn from."""
        sound = super().propose(prefixes, plan, ctx)
        cursor = self._deeper.open(prefixes, plan.width)
        logits = [cursor.logits]
        logits += [cursor.step(sound.tokens[:, place]) for place in range(sound.width - 1)]
        return replace(
            sound,
            distributions=Distributions(
                probs=torch.stack([ctx.distribution(row).probs for row in logits], 1)
            ),
        )
