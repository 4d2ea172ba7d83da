"""What drafts, by the name of a method."""

from __future__ import annotations

from typing import Any

from ..errors import InvalidConfigError
from .hybrid import HybridDrafter
from .prediction import PredictionDrafter


def make_drafter(
    method: str, target: Any, model: Any, ngram: Any, suffix: Any, exit_layers: int | None
) -> Any:
    """Make what drafts, by the name of the method; None for "none".

    Raises:
        InvalidConfigError: the method wants a draft model, and `model` is None; or the target has
            not so many layers.
    """
    if method == "early_exit":
        from .early_exit import EarlyExitDrafter  # it loads transformers

        try:
            return EarlyExitDrafter(target, exit_layers or 0)
        except InvalidConfigError as error:
            raise InvalidConfigError("exit_layers", exit_layers, error.expected) from error
    if method in ("draft_model", "hybrid"):
        if model is None:
            raise InvalidConfigError("drafters", method, "suffix or ngram without a draft")
        return HybridDrafter.usual(model, suffix) if method == "hybrid" else model
    lookups = {"none": None, "ngram": ngram, "suffix": suffix, "prediction": PredictionDrafter()}
    return lookups[method]
