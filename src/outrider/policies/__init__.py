"""How far to draft."""

from __future__ import annotations

from ..config.params import SpeculativeConfig
from ..types.protocols import (
    Drafter,
    EndsEarly,
    KnowsCost,
    LooksUp,
    Policy,
    Target,
)
from .adaptive import AdaptiveDepth
from .confidence import ConfidenceDepth
from .fixed import FixedDepth
from .levels import Levels

__all__ = ["AdaptiveDepth", "ConfidenceDepth", "FixedDepth", "Levels", "policy_of"]


def policy_of(config: SpeculativeConfig, drafter: Drafter | None, target: Target) -> Policy:  # noqa: ARG001 - the engine passes it
    """The policy that a configuration asks for.

    Args:
        config: how speculation is done.
        drafter: what proposes tokens; None for nothing.
        target: what verifies them.
    """
    most = 0 if drafter is None else config.deepest
    levels = Levels(most, config.tree_shape, config.tree_budget)
    looks_up = isinstance(drafter, LooksUp)
    cost_ratio = config.cost_ratio
    if cost_ratio is None:
        cost_ratio = _cost_ratio(drafter)
    if config.depth == "fixed" or not most:
        return FixedDepth(levels, looks_up=looks_up)
    if config.depth == "confidence":
        return ConfidenceDepth(levels, cost_ratio, looks_up=looks_up)
    return AdaptiveDepth(
        levels,
        cost_ratio,
        coupled=config.verification == "coupled",
        looks_up=looks_up,
        ends_early=_ends_early(drafter),
        # Where a draft is written as text, its first step may be a part of a token.
        one_first=_ends_early(drafter),
    )


def _cost_ratio(drafter: object) -> float | None:
    return drafter.cost_ratio if isinstance(drafter, KnowsCost) else None


def _ends_early(drafter: object) -> bool:
    return isinstance(drafter, EndsEarly) and drafter.ends_early
