"""Outrider: speculative decoding that is exact, fast and pleasant.

Importing this package loads no framework; each name below is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import certify, errors, models
    from .chance import Philox4x32
    from .config import SamplingParams, SpeculativeConfig
    from .drafters.early_exit import EarlyExitDrafter
    from .drafters.hybrid import HybridDrafter
    from .drafters.model import ModelDrafter
    from .drafters.ngram import NgramDrafter
    from .drafters.prediction import PredictionDrafter
    from .drafters.suffix import SuffixDrafter
    from .drafters.vocabulary import VocabularyDrafter
    from .engine import SpeculativeDecoder
    from .generation import generate_with
    from .loading import Pair, load
    from .metrics import SpeculationMetrics
    from .models.transformers import TransformersModel
    from .outputs import Choice, GenerationOutput, StreamEvent
    from .processors import StatefulProcessor
    from .settings import from_generation_config
    from .structured import StructuredOutput
    from .verification.functional import (
        VerificationResult,
        compute_acceptance_probs,
        compute_expected_tokens,
        verify_speculative_tokens,
    )
    from .verification.primitives import (
        accept,
        adjusted_distribution,
        resample_from_adjusted_target,
        sample_from_logprobs,
        sample_index,
    )

__version__ = "0.1.0"

_HOMES = {
    "Choice": "outputs",
    "EarlyExitDrafter": "drafters.early_exit",
    "GenerationOutput": "outputs",
    "HybridDrafter": "drafters.hybrid",
    "ModelDrafter": "drafters.model",
    "NgramDrafter": "drafters.ngram",
    "Pair": "loading",
    "Philox4x32": "chance",
    "PredictionDrafter": "drafters.prediction",
    "SamplingParams": "config",
    "SpeculationMetrics": "metrics",
    "SpeculativeConfig": "config",
    "SpeculativeDecoder": "engine",
    "StatefulProcessor": "processors",
    "StreamEvent": "outputs",
    "StructuredOutput": "structured",
    "SuffixDrafter": "drafters.suffix",
    "TransformersModel": "models.transformers",
    "VerificationResult": "verification.functional",
    "VocabularyDrafter": "drafters.vocabulary",
    "accept": "verification.primitives",
    "adjusted_distribution": "verification.primitives",
    "compute_acceptance_probs": "verification.functional",
    "compute_expected_tokens": "verification.functional",
    "from_generation_config": "settings",
    "generate_with": "generation",
    "load": "loading",
    "resample_from_adjusted_target": "verification.primitives",
    "sample_from_logprobs": "verification.primitives",
    "sample_index": "verification.primitives",
    "verify_speculative_tokens": "verification.functional",
}
_ROOMS = ("certify", "errors", "models")

__all__ = [
    "Choice",
    "EarlyExitDrafter",
    "GenerationOutput",
    "HybridDrafter",
    "ModelDrafter",
    "NgramDrafter",
    "Pair",
    "Philox4x32",
    "PredictionDrafter",
    "SamplingParams",
    "SpeculationMetrics",
    "SpeculativeConfig",
    "SpeculativeDecoder",
    "StatefulProcessor",
    "StreamEvent",
    "StructuredOutput",
    "SuffixDrafter",
    "TransformersModel",
    "VerificationResult",
    "VocabularyDrafter",
    "__version__",
    "accept",
    "adjusted_distribution",
    "certify",
    "compute_acceptance_probs",
    "compute_expected_tokens",
    "errors",
    "from_generation_config",
    "generate_with",
    "load",
    "models",
    "resample_from_adjusted_target",
    "sample_from_logprobs",
    "sample_index",
    "verify_speculative_tokens",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    if name in _ROOMS:
        return import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
