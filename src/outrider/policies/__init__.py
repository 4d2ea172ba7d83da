"""How far to draft."""

from .adaptive import AdaptiveDepth
from .base import Policy
from .confidence import ConfidenceDepth
from .fixed import FixedDepth, Shape

__all__ = ["AdaptiveDepth", "ConfidenceDepth", "FixedDepth", "Policy", "Shape"]
