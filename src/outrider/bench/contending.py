"""The names of Outrider's ways of drafting, and what each stands for."""

from __future__ import annotations

from typing import Any

from ..config import SpeculativeConfig
from ..drafters.early_exit import EarlyExitDrafter
from ..drafters.hybrid import HybridDrafter
from ..drafters.ngram import NgramDrafter
from ..drafters.prediction import PredictionDrafter
from ..drafters.suffix import SuffixDrafter
from ..errors import InvalidConfigError
from ..models.transformers import TransformersModel
from ..protocols import DraftModel
from .records import Contender

DRAFTERS = ("draft_model", "ngram", "suffix", "hybrid")
"""What may draft: the draft model, prompt lookup, suffix lookup, the model beside suffix lookup."""

ASKED_FOR = ("early_exit", "prediction")
"""What drafts where more is given than a pair: how many of the target's first layers; the text that
is expected."""

WITH_MODEL = ("draft_model", "hybrid")
LOOKUPS = ("ngram", "suffix")

PLAIN = Contender("outrider", "none")
"""The baseline: the same engine at depth 0."""


def config_of(contender: Contender) -> SpeculativeConfig:
    """How a contender of Outrider speculates: to a fixed depth, or an adaptive one if it has none.

    Raises:
        InvalidConfigError: it is not known, or its settings contradict each other.
    """
    known = (*DRAFTERS, *ASKED_FOR)
    if contender.drafter not in (*known, "none"):
        raise InvalidConfigError("drafters", contender.drafter, f"some of {', '.join(known)}")
    depth = contender.num_speculative_tokens
    # The record checks what the command line was given.
    verification: Any = contender.verification or "block"
    return SpeculativeConfig(
        num_speculative_tokens=depth,
        depth="adaptive" if depth is None else "fixed",
        verification=verification,
        tree_shape=contender.tree_shape,
    )


def drafter_of(name: str, model: DraftModel | None) -> DraftModel | None:
    """What a name stands for, fresh where it remembers anything; None for "none".

    The pool in which suffix lookup remembers earlier outputs is off: a prompt that comes again
    would be answered from it.

    Args:
        name: one of `DRAFTERS`, or "none".
        model: drafts with the draft model; None if there is none.

    Raises:
        InvalidConfigError: the name is not known, or wants a draft model.
    """
    match name:
        case "none":
            return None
        case "ngram":
            return NgramDrafter()
        case "suffix":
            return SuffixDrafter(max_pool_tokens=0)
        case "hybrid" if model is not None:
            return HybridDrafter.usual(model, SuffixDrafter(max_pool_tokens=0))
        case "draft_model" if model is not None:
            return model
    raise InvalidConfigError("drafters", name, f"{' or '.join(LOOKUPS)} where there is no draft")


def entered(
    contender: Contender, target: TransformersModel, model: DraftModel | None
) -> DraftModel | None:
    """What drafts for a contender of a benchmark: `drafter_of`, or what is asked for beside a pair.

    Args:
        contender: who.
        target: its target.
        model: as `drafter_of` takes it.

    Raises:
        InvalidConfigError: as `drafter_of`, or the target has no such layers.
    """
    match contender.drafter:
        case "prediction":
            return PredictionDrafter()
        case "early_exit":
            try:
                return EarlyExitDrafter(target, contender.exit_layers or 0)
            except InvalidConfigError as error:
                layers = contender.exit_layers
                raise InvalidConfigError("exit_layers", layers, error.expected) from None
    return drafter_of(contender.drafter, model)
