"""The names of Outrider's ways of drafting, and what each stands for."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any

from ..config.params import SpeculativeConfig
from ..drafters.hybrid import HybridDrafter
from ..drafters.ngram import NgramDrafter
from ..drafters.prediction import PredictionDrafter
from ..drafters.suffix.drafter import SuffixDrafter
from ..errors import InvalidConfigError
from ..types.protocols import Drafter
from .records import Contender

DRAFTERS = ("draft_model", "ngram", "suffix", "hybrid")
"""What may draft: the draft model, prompt lookup, suffix lookup, the model beside suffix lookup."""

ASKED_FOR = ("early_exit", "prediction")
"""What drafts where more is given than a pair: how many of the target's first layers; the text that
is expected."""

KNOWN = (*DRAFTERS, *ASKED_FOR)
WITH_MODEL = ("draft_model", "hybrid")
LOOKUPS = ("ngram", "suffix")

PLAIN = Contender("outrider", "none")
"""The baseline: the same engine at depth 0."""


def contenders(
    drafters: Iterable[str],
    exits: Iterable[int],
    verifications: Iterable[str],
    depths: Iterable[int | None],
    trees: Iterable[tuple[int, ...]],
) -> tuple[Contender, ...]:
    """Every drafter with every verification, at every depth, and in every tree that it can draft.

    Args:
        drafters: some of `KNOWN`.
        exits: how many of the target's first layers draft, for "early_exit".
        verifications: methods, by name.
        depths: of chains; None is an adaptive one.
        trees: children by depth.
    """
    drafting = [
        (drafter, layers)
        for drafter in drafters
        for layers in (exits if drafter == "early_exit" else (None,))
    ]
    pairs = list(product(drafting, verifications))
    chains = [
        Contender("outrider", drafter, verification, depth, exit_layers=layers)
        for ((drafter, layers), verification), depth in product(pairs, depths)
    ]
    # Prompt lookup and predictions find one continuation: they have no trees.
    branching = [
        Contender("outrider", drafter, verification, len(shape), shape, layers)
        for ((drafter, layers), verification), shape in product(pairs, trees)
        if drafter not in ("ngram", "prediction")
    ]
    return (*chains, *branching)


def config_of(contender: Contender) -> SpeculativeConfig:
    """How a contender of Outrider speculates: to a fixed depth, or an adaptive one if it has none.

    Raises:
        InvalidConfigError: it is not known, or its settings contradict each other.
    """
    if contender.drafter not in (*KNOWN, "none"):
        raise InvalidConfigError("drafters", contender.drafter, f"some of {', '.join(KNOWN)}")
    depth = contender.num_speculative_tokens
    # The record checks what the command line was given.
    verification: Any = contender.verification or "block"
    return SpeculativeConfig(
        num_speculative_tokens=depth,
        depth="adaptive" if depth is None else "fixed",
        verification=verification,
        tree_shape=contender.tree_shape,
    )


def drafter_of(name: str, model: Drafter | None) -> Drafter | None:
    """What a name stands for, fresh where it remembers anything; None for "none".

    The pool in which suffix lookup remembers earlier outputs is off: a prompt that comes again
    would be answered from it.

    Args:
        name: one of `KNOWN`, or "none".
        model: drafts with the draft model, or the target's first layers; None if there is none.

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
        case "prediction":
            return PredictionDrafter()
        case "draft_model" | "early_exit" if model is not None:
            return model
    raise InvalidConfigError("drafters", name, f"{' or '.join(LOOKUPS)} where there is no draft")
