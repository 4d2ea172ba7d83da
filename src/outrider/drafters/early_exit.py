"""Drafting with the target's own first layers: no second model, no second cache.

Method: self-speculative decoding by early exit (Elhoushi et al. 2024, "LayerSkip", arXiv
2404.16710, section 4.3; Zhang et al. 2023, "Draft & Verify", arXiv 2309.08168). It pays for models
that were trained to be left early; on others the first layers say little.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..runtimes.transformers.early_exit import EarlyExit
from ..runtimes.transformers.model import TransformersModel
from ..types.records import Prefix
from .model import ModelDrafter


class EarlyExitDrafter(ModelDrafter):
    """Drafts chains, or trees, with the first layers of the target and its head.

    The draft's distribution is that of a model like any other, so that every verification is exact.
    Keys and values of the first layers are the target's: drafting has no prefix to compute, and
    needs no memory.

    Args:
        target: the target itself.
        layers: how many of its layers draft, at least one and not all.

    Attributes:
        cost_ratio: the share of the target's layers that draft.

    Raises:
        InvalidConfigError: `target` is no `TransformersModel`, or has not more layers than that.
        ModelError: its decoder layers are not one plain list.
    """

    def __init__(self, target: TransformersModel, layers: int) -> None:
        self._first = EarlyExit(target, layers)
        super().__init__(self._first)
        self.models = (self._first, target)
        self.cost_ratio = self._first.share

    def read_ahead(self, prefixes: Sequence[Prefix]) -> tuple[int, ...]:
        """Have the target read new prompts, all but their last few tokens, in all layers.

        Raises:
            ContextLengthError: a prefix is longer than the target's context.
            ModelError: more sequences are live than there are slots.
        """
        return self._first.read_ahead(prefixes)
