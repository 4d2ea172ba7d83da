"""Outrider: speculative decoding that is exact, fast and pleasant.

Importing this package loads no framework; each name below is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import certify, errors, models
    from .config import SamplingParams, SpeculativeConfig
    from .drafters.model import ModelDrafter
    from .drafters.ngram import NgramDrafter
    from .engine import SpeculativeDecoder
    from .loading import Pair, load
    from .metrics import SpeculationMetrics
    from .models.transformers import TransformersModel
    from .outputs import Choice, GenerationOutput, StreamEvent

__version__ = "0.1.0"

_HOMES = {
    "Choice": "outputs",
    "GenerationOutput": "outputs",
    "ModelDrafter": "drafters.model",
    "NgramDrafter": "drafters.ngram",
    "Pair": "loading",
    "SamplingParams": "config",
    "SpeculationMetrics": "metrics",
    "SpeculativeConfig": "config",
    "SpeculativeDecoder": "engine",
    "StreamEvent": "outputs",
    "TransformersModel": "models.transformers",
    "load": "loading",
}
_ROOMS = ("certify", "errors", "models")

__all__ = [
    "Choice",
    "GenerationOutput",
    "ModelDrafter",
    "NgramDrafter",
    "Pair",
    "SamplingParams",
    "SpeculationMetrics",
    "SpeculativeConfig",
    "SpeculativeDecoder",
    "StreamEvent",
    "TransformersModel",
    "__version__",
    "certify",
    "errors",
    "load",
    "models",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    if name in _ROOMS:
        return import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
