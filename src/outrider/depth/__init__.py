"""How far to draft."""

from __future__ import annotations

from ..config import SpeculativeConfig
from ..protocols import DepthPolicy
from .adaptive import AdaptiveDepth
from .fixed import FixedDepth
from .levels import Levels

__all__ = ["AdaptiveDepth", "FixedDepth", "Levels", "policy_of"]


def policy_of(config: SpeculativeConfig, *, drafts: bool) -> DepthPolicy:
    """The policy that a configuration asks for.

    Args:
        config: how speculation is done.
        drafts: whether there is a drafter.
    """
    most = config.deepest if drafts else 0
    levels = Levels(most, config.tree_shape, config.tree_budget)
    if config.depth == "fixed":
        return FixedDepth(levels)
    coupled = config.verification == "coupled"
    return AdaptiveDepth(levels, config.cost_ratio, coupled=coupled)
