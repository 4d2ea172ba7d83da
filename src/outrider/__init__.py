"""Outrider: speculative decoding that is exact, fast and pleasant.

Importing this package loads no framework; each name below is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import certify, errors, runtimes
    from .config.params import SamplingParams, SpeculativeConfig
    from .config.processors import StatefulProcessor
    from .config.structured import StructuredOutput
    from .drafters.early_exit import EarlyExitDrafter
    from .drafters.hybrid import HybridDrafter
    from .drafters.model import ModelDrafter
    from .drafters.ngram import NgramDrafter
    from .drafters.prediction import PredictionDrafter
    from .drafters.suffix.drafter import SuffixDrafter
    from .drafters.vocabulary.drafter import VocabularyDrafter
    from .engine.decoder import SpeculativeDecoder
    from .engine.loading import Pair, load
    from .engine.metrics import SpeculationMetrics
    from .engine.outputs import Choice, GenerationOutput, StreamEvent
    from .integrations.generation_config import from_generation_config
    from .integrations.transformers_generate import generate_with
    from .random import Philox4x32
    from .runtimes.transformers.model import TransformersModel
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
    "Choice": "engine.outputs",
    "EarlyExitDrafter": "drafters.early_exit",
    "GenerationOutput": "engine.outputs",
    "HybridDrafter": "drafters.hybrid",
    "ModelDrafter": "drafters.model",
    "NgramDrafter": "drafters.ngram",
    "Pair": "engine.loading",
    "Philox4x32": "random.philox",
    "PredictionDrafter": "drafters.prediction",
    "SamplingParams": "config.params",
    "SpeculationMetrics": "engine.metrics",
    "SpeculativeConfig": "config.params",
    "SpeculativeDecoder": "engine.decoder",
    "StatefulProcessor": "config.processors",
    "StreamEvent": "engine.outputs",
    "StructuredOutput": "config.structured",
    "SuffixDrafter": "drafters.suffix.drafter",
    "TransformersModel": "runtimes.transformers.model",
    "VerificationResult": "verification.functional",
    "VocabularyDrafter": "drafters.vocabulary.drafter",
    "accept": "verification.primitives",
    "adjusted_distribution": "verification.primitives",
    "compute_acceptance_probs": "verification.functional",
    "compute_expected_tokens": "verification.functional",
    "from_generation_config": "integrations.generation_config",
    "generate_with": "integrations.transformers_generate",
    "load": "engine.loading",
    "resample_from_adjusted_target": "verification.primitives",
    "sample_from_logprobs": "verification.primitives",
    "sample_index": "verification.primitives",
    "verify_speculative_tokens": "verification.functional",
}
_PACKAGES = ("certify", "errors", "runtimes")

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
    "resample_from_adjusted_target",
    "runtimes",
    "sample_from_logprobs",
    "sample_index",
    "verify_speculative_tokens",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    if name in _PACKAGES:
        return import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
