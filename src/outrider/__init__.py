"""Outrider: speculative decoding that is exact, fast and pleasant.

Importing this package loads no framework; each name below is loaded when it is first used.
"""

# ruff: noqa: I001  (it wants a statement for each of the names below)
from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import errors
from .errors import missing

if TYPE_CHECKING:
    from . import certify as certify, config as config, runtimes as runtimes
    from .config import (
        SamplingParams as SamplingParams,
        SpeculativeConfig as SpeculativeConfig,
        StatefulProcessor as StatefulProcessor,
        StructuredOutput as StructuredOutput,
    )
    from .drafters.early_exit import EarlyExitDrafter as EarlyExitDrafter
    from .drafters.heads.drafter import BlockDrafter as BlockDrafter
    from .drafters.heads.drafter import EagleDrafter as EagleDrafter
    from .drafters.heads.loading import load_head as load_head
    from .drafters.hybrid import HybridDrafter as HybridDrafter
    from .drafters.model import ModelDrafter as ModelDrafter
    from .drafters.ngram import NgramDrafter as NgramDrafter
    from .drafters.prediction import PredictionDrafter as PredictionDrafter
    from .drafters.suffix.drafter import SuffixDrafter as SuffixDrafter
    from .drafters.vocabulary.drafter import VocabularyDrafter as VocabularyDrafter
    from .engine.decoder import SpeculativeDecoder as SpeculativeDecoder
    from .engine.loading import Pair as Pair, load as load
    from .engine.metrics import SpeculationMetrics as SpeculationMetrics
    from .engine.outputs import (
        Choice as Choice,
        GenerationOutput as GenerationOutput,
        StreamEvent as StreamEvent,
    )
    from .errors import (
        ContextLengthError as ContextLengthError,
        DegenerateDistributionError as DegenerateDistributionError,
        DistributionWidthError as DistributionWidthError,
        DraftError as DraftError,
        DraftShapeError as DraftShapeError,
        EmptyPrefixError as EmptyPrefixError,
        InvalidConfigError as InvalidConfigError,
        KeyReuseError as KeyReuseError,
        MissingExtraError as MissingExtraError,
        ModelError as ModelError,
        OutriderError as OutriderError,
        TargetShapeError as TargetShapeError,
        TokenOutOfRangeError as TokenOutOfRangeError,
        UserCodeError as UserCodeError,
        VocabMismatchError as VocabMismatchError,
    )
    from .integrations.generation_config import from_generation_config as from_generation_config
    from .integrations.transformers_generate import generate_with as generate_with
    from .random import Philox4x32 as Philox4x32
    from .runtimes.llama_cpp.model import LlamaCppModel as LlamaCppModel
    from .runtimes.llama_cpp.tokenizer import LlamaCppTokenizer as LlamaCppTokenizer
    from .runtimes.openvino.model import OpenVinoModel as OpenVinoModel
    from .runtimes.transformers.model import TransformersModel as TransformersModel
    from .verification.functional import (
        VerificationResult as VerificationResult,
        compute_acceptance_probs as compute_acceptance_probs,
        compute_expected_tokens as compute_expected_tokens,
        verify_speculative_tokens as verify_speculative_tokens,
    )
    from .verification.primitives import (
        accept as accept,
        adjusted_distribution as adjusted_distribution,
        resample_from_adjusted_target as resample_from_adjusted_target,
        sample_from_logprobs as sample_from_logprobs,
        sample_index as sample_index,
    )

__version__ = "0.2.0"

_HOMES = {
    name: home
    for home, names in {
        "config": "SamplingParams SpeculativeConfig StatefulProcessor StructuredOutput",
        "drafters.early_exit": "EarlyExitDrafter",
        "drafters.heads.drafter": "BlockDrafter EagleDrafter",
        "drafters.heads.loading": "load_head",
        "drafters.hybrid": "HybridDrafter",
        "drafters.model": "ModelDrafter",
        "drafters.ngram": "NgramDrafter",
        "drafters.prediction": "PredictionDrafter",
        "drafters.suffix.drafter": "SuffixDrafter",
        "drafters.vocabulary.drafter": "VocabularyDrafter",
        "engine.decoder": "SpeculativeDecoder",
        "engine.loading": "Pair load",
        "engine.metrics": "SpeculationMetrics",
        "engine.outputs": "Choice GenerationOutput StreamEvent",
        "integrations.generation_config": "from_generation_config",
        "integrations.transformers_generate": "generate_with",
        "random": "Philox4x32",
        "runtimes.llama_cpp.model": "LlamaCppModel",
        "runtimes.llama_cpp.tokenizer": "LlamaCppTokenizer",
        "runtimes.openvino.model": "OpenVinoModel",
        "runtimes.transformers.model": "TransformersModel",
        "verification.functional": "VerificationResult compute_acceptance_probs "
        "compute_expected_tokens verify_speculative_tokens",
        "verification.primitives": "accept adjusted_distribution resample_from_adjusted_target "
        "sample_from_logprobs sample_index",
    }.items()
    for name in names.split()
} | {name: "errors" for name in vars(errors) if name.endswith("Error")}
"""The module of each public name."""

_PACKAGES = ("certify", "config", "errors", "runtimes")

__all__ = sorted([*_HOMES, *_PACKAGES, "__version__"])


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
