"""What drafts, by the name of a method."""

from __future__ import annotations

from typing import Any

from ..config.params import WITH_MODEL
from ..drafters.base import Drafter
from ..drafters.hybrid import HybridDrafter
from ..drafters.ngram import NgramDrafter
from ..drafters.prediction import PredictionDrafter
from ..drafters.suffix.drafter import SuffixDrafter
from ..errors import InvalidConfigError
from ..runtimes.base import Runtime


def make_drafter(
    method: str,
    target: Runtime,
    model: Drafter | None,
    *,
    ngram: NgramDrafter | None = None,
    suffix: SuffixDrafter | None = None,
    exit_layers: int | None = None,
) -> Drafter | None:
    """Make what drafts; None for "none".

    Args:
        method: "draft_model", "hybrid", "ngram", "suffix", "prediction", "early_exit" or "none".
        target: the target; early exits are its own layers.
        model: drafts with a model; None if there is none.
        ngram, suffix: look tokens up; None takes their usual settings.
        exit_layers: for "early_exit": how many of the target's first layers draft.

    Raises:
        InvalidConfigError: there is no such method, it needs a draft model and there is none, or
            the target has not so many layers.
    """
    if method in WITH_MODEL and model is None:
        raise InvalidConfigError("method", method, "suffix or ngram without a draft model")
    match method:
        case "none":
            return None
        case "draft_model":
            return model
        case "hybrid":
            assert model is not None
            return HybridDrafter.usual(model, suffix)
        case "ngram":
            return ngram or NgramDrafter()
        case "suffix":
            return suffix or SuffixDrafter()
        case "prediction":
            return PredictionDrafter()
        case "early_exit":
            return _early_exit(target, exit_layers)
    raise InvalidConfigError("method", method, "one of those that outrider generate --help lists")


def _early_exit(target: Any, layers: int | None) -> Drafter:
    """Draft with some of the target's own layers."""
    from ..drafters.early_exit import EarlyExitDrafter  # it loads transformers

    if layers is None:
        raise InvalidConfigError("exit_layers", layers, "the number of layers that draft")
    try:
        return EarlyExitDrafter(target, layers)
    except InvalidConfigError as error:
        if error.field != "layers":
            expected = f"another method: a {target.name} model has no layers to draft with"
            raise InvalidConfigError("method", "early_exit", expected) from None
        raise InvalidConfigError("exit_layers", layers, error.expected) from None
