"""Outrider: speculative decoding that is exact, fast and pleasant.

Importing this package loads no framework; each name below is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import missing

if TYPE_CHECKING:
    from . import certify, config, errors, runtimes
    from .config import SamplingParams, SpeculativeConfig, StatefulProcessor, StructuredOutput
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
    from .errors import (
        ContextLengthError,
        DegenerateDistributionError,
        DistributionWidthError,
        DraftError,
        DraftShapeError,
        EmptyPrefixError,
        InvalidConfigError,
        KeyReuseError,
        MissingExtraError,
        ModelError,
        OutriderError,
        TargetShapeError,
        TokenOutOfRangeError,
        VocabMismatchError,
    )
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

__version__ = "0.2.0"

_HOMES = {
    "Choice": "engine.outputs",
    "ContextLengthError": "errors",
    "DegenerateDistributionError": "errors",
    "DistributionWidthError": "errors",
    "DraftError": "errors",
    "DraftShapeError": "errors",
    "EarlyExitDrafter": "drafters.early_exit",
    "EmptyPrefixError": "errors",
    "GenerationOutput": "engine.outputs",
    "HybridDrafter": "drafters.hybrid",
    "InvalidConfigError": "errors",
    "KeyReuseError": "errors",
    "MissingExtraError": "errors",
    "ModelDrafter": "drafters.model",
    "ModelError": "errors",
    "NgramDrafter": "drafters.ngram",
    "OutriderError": "errors",
    "Pair": "engine.loading",
    "Philox4x32": "random.philox",
    "PredictionDrafter": "drafters.prediction",
    "SamplingParams": "config",
    "SpeculationMetrics": "engine.metrics",
    "SpeculativeConfig": "config",
    "SpeculativeDecoder": "engine.decoder",
    "StatefulProcessor": "config",
    "StreamEvent": "engine.outputs",
    "StructuredOutput": "config",
    "SuffixDrafter": "drafters.suffix.drafter",
    "TargetShapeError": "errors",
    "TokenOutOfRangeError": "errors",
    "TransformersModel": "runtimes.transformers.model",
    "VerificationResult": "verification.functional",
    "VocabMismatchError": "errors",
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
_PACKAGES = ("certify", "config", "errors", "runtimes")

__all__ = [
    "Choice",
    "ContextLengthError",
    "DegenerateDistributionError",
    "DistributionWidthError",
    "DraftError",
    "DraftShapeError",
    "EarlyExitDrafter",
    "EmptyPrefixError",
    "GenerationOutput",
    "HybridDrafter",
    "InvalidConfigError",
    "KeyReuseError",
    "MissingExtraError",
    "ModelDrafter",
    "ModelError",
    "NgramDrafter",
    "OutriderError",
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
    "TargetShapeError",
    "TokenOutOfRangeError",
    "TransformersModel",
    "VerificationResult",
    "VocabMismatchError",
    "VocabularyDrafter",
    "__version__",
    "accept",
    "adjusted_distribution",
    "certify",
    "compute_acceptance_probs",
    "compute_expected_tokens",
    "config",
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
        with missing():
            return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    if name in _PACKAGES:
        with missing():
            return import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
