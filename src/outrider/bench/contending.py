"""The names of Outrider's ways of drafting, and what each stands for."""

from __future__ import annotations

from typing import Any

from ..config import SpeculativeConfig
from ..drafters.hybrid import HybridDrafter
from ..drafters.ngram import NgramDrafter
from ..drafters.suffix import SuffixDrafter
from ..errors import InvalidConfigError
from ..protocols import DraftModel
from .records import Contender

DRAFTERS = ("draft_model", "ngram", "suffix", "hybrid")
"""What may draft: the draft model, prompt lookup, suffix lookup, the model beside suffix lookup."""

WITH_MODEL = ("draft_model", "hybrid")
LOOKUPS = ("ngram", "suffix")

PLAIN = Contender("outrider", "none")
"""The baseline: the same engine at depth 0."""


def config_of(contender: Contender) -> SpeculativeConfig:
    """How a contender of Outrider speculates: to a fixed depth, or an adaptive one if it has none.

    Raises:
        InvalidConfigError: it is not known, or its settings contradict each other.
    """
    if contender.drafter not in (*DRAFTERS, "none"):
        raise InvalidConfigError("drafters", contender.drafter, f"some of {', '.join(DRAFTERS)}")
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
