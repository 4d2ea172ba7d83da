"""Drafting with the target's own first layers: no second model, no second cache.

Method: self-speculative decoding by early exit (Elhoushi et al. 2024, "LayerSkip", arXiv
2404.16710, section 4.3; Zhang et al. 2023, "Draft & Verify", arXiv 2309.08168). It pays for models
that were trained to be left early; on others the first layers say little.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import InvalidConfigError
from ..runtimes.base import Cursor
from ..runtimes.transformers.model import TransformersModel
from ..types.records import Prefix
from .model import ModelDrafter


class EarlyExitDrafter(ModelDrafter):
    """Drafts chains, or trees, with the first layers of the target and its head.

    The draft's distribution is that of a model like any other, so that every verification is exact.
    Keys and values of the first layers are the target's: drafting has no prefix to compute, and
    needs no memory. Make it anew after submodules of the target were exchanged.

    Args:
        target: the target itself.
        layers: how many of its layers draft, at least one and not all.

    Attributes:
        cost_ratio: the share of the target's layers that draft.

    Raises:
        InvalidConfigError: `target` is no `TransformersModel`, or has not more layers than that.
        ModelError: its decoder layers are not one plain list, or do not run without the others.
    """

    follows = True

    def __init__(self, target: TransformersModel, layers: int) -> None:
        if not isinstance(target, TransformersModel):
            raise InvalidConfigError(
                "target", type(target).__name__, "a TransformersModel (--runtime transformers)"
            )
        super().__init__(target)
        self._target = target
        self._run = target.first_layers(layers)
        self.cost_ratio = layers / target.hf_model.config.get_text_config().num_hidden_layers

    def _open(self, prefixes: Sequence[Prefix], depth: int) -> Cursor:
        """Open the first layers at the end of the prefixes."""
        return self._target.open(prefixes, depth, self._run)
