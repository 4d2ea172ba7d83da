"""How far to draft."""

from __future__ import annotations

import logging
from typing import Protocol

from ..config.params import SpeculativeConfig
from .adaptive import AdaptiveDepth
from .base import Policy
from .confidence import ConfidenceDepth
from .costs import COST_RATIO, TOKEN_RATIO
from .fixed import FixedDepth, Shape

__all__ = ["AdaptiveDepth", "ConfidenceDepth", "FixedDepth", "Policy", "Shape", "policy_of"]

_LOG = logging.getLogger(__name__)


class DrafterTraits(Protocol):
    """What a policy has to know of a drafter; see `outrider.drafters.base.Drafter`."""

    @property
    def cost_ratio(self) -> float | None:
        """A draft step beside a plain round of the target; None if that is unknown."""

    @property
    def looks_up(self) -> bool:
        """Whether some of its tokens take no step of a model."""

    @property
    def vocab_size(self) -> int | None:
        """None if none of its tokens takes a step of a model."""

    @property
    def branches(self) -> bool:
        """Whether it drafts trees."""

    def steps(self, depth: int) -> int:
        """Return how many forwards its model takes to draft so many tokens in a row."""


def policy_of(
    config: SpeculativeConfig,
    drafter: DrafterTraits | None,
    *,
    coupled: bool = False,
    token_ratio: float = TOKEN_RATIO,
) -> Policy:
    """Return the policy that a configuration asks for.

    Args:
        config: how speculation is done.
        drafter: what proposes tokens; None for nothing.
        coupled: whether a seed's text does not depend on what is drafted.
        token_ratio: the target's; see `Runtime.token_ratio`.
    """
    shape = Shape.of(config)
    if drafter is None or not shape.deepest:
        return FixedDepth(Shape(0))
    if shape.tree is not None and not drafter.branches:
        _LOG.warning("the draft model drafts chains in place of trees: each level would cost more")
        shape = Shape(shape.deepest)
    if config.depth == "fixed":
        return FixedDepth(shape)
    ratios = (config.cost_ratio, drafter.cost_ratio, COST_RATIO)
    cost_ratio = next(ratio for ratio in ratios if ratio is not None)
    if config.depth == "confidence":
        return ConfidenceDepth(shape, cost_ratio, looks_up=drafter.looks_up)
    return AdaptiveDepth(
        shape,
        cost_ratio,
        looks_up=drafter.looks_up,
        has_model=drafter.vocab_size is not None,
        steps=drafter.steps,
        coupled=coupled,
        token_ratio=token_ratio,
    )
