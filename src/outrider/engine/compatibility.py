"""Whether a target, a drafter and a policy fit each other; the policy that is asked for."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch

from ..config.params import SpeculativeConfig
from ..drafters.base import Drafter
from ..errors import InvalidConfigError, VocabMismatchError
from ..policies import AdaptiveDepth, ConfidenceDepth, FixedDepth, Policy, Shape
from ..policies.costs import COST_RATIO, TOKEN_RATIO
from ..runtimes.base import Runtime
from ..verification import Verifier

_LOG = logging.getLogger(__name__)


def check_parts(
    target: object, drafter: object, config: object, policy: object, verifier: object
) -> None:
    """Raise InvalidConfigError unless these are parts of a decoder; all but target may be None."""
    kinds: dict[str, tuple[object, type, str]] = {
        "target": (target, Runtime, "an outrider.runtimes.Runtime"),
        "drafter": (drafter, Drafter, "an outrider.drafters.Drafter, or a Runtime"),
        "config": (config, SpeculativeConfig, "a SpeculativeConfig"),
        "policy": (policy, Policy, "an outrider.policies.Policy"),
        "verifier": (verifier, Verifier, "an outrider.verification.Verifier"),
    }
    hints = {
        "target": " (of outrider.load's pair it is pair.target; wrap transformers models in "
        "TransformersModel)",
        "drafter": " (wrap transformers models in TransformersModel)",
        "policy": "; those that come with the library are named by "
        'SpeculativeConfig(depth="adaptive")',
        "verifier": "; it takes a Method: Verifier(method)",
    }
    for name, (part, kind, expected) in kinds.items():
        if isinstance(part, type):
            raise InvalidConfigError(name, part.__name__, f"an instance: {part.__name__}(...)")
        if not isinstance(part, kind) and (part is not None or name == "target"):
            given = part if isinstance(part, str) else type(part).__name__
            raise InvalidConfigError(name, given, expected + hints.get(name, ""))


def check_lossy(verifier: Verifier, drafter: Drafter | None) -> None:
    """Raise InvalidConfigError if a lossy method is to verify a mix of drawn and other tokens."""
    if drafter is not None and drafter.looks_up and drafter.models and verifier.lossy:
        raise InvalidConfigError(
            "verification",
            type(verifier.method).__name__,
            "a lossless method with a drafter that mixes looked-up tokens and a model's; lossy "
            "ones take the model alone: pair.model_drafter of outrider.load",
        )


def check_vocabularies(target: Runtime, drafter: Drafter | None) -> None:
    """Raise VocabMismatchError if the drafter's distributions are not as wide as the target's."""
    if drafter is None or drafter.vocab_size in (None, target.vocab_size):
        return
    raise VocabMismatchError(
        f"the draft's vocabulary has {drafter.vocab_size} tokens and the target's "
        f"{target.vocab_size}; use a draft with the target's tokenizer (where only the padding of "
        "the width differs, outrider.load or ModelDrafter(model, vocab_size=...) aligns them), or "
        "put a VocabularyDrafter between two tokenizers"
    )


def common_device(runtimes: Sequence[Runtime]) -> torch.device:
    """Return the device that all models are on.

    Raises:
        InvalidConfigError: they are on several.
    """
    devices = list(dict.fromkeys(runtime.device for runtime in runtimes))
    if len(devices) > 1:
        raise InvalidConfigError(
            "drafter", f"a model on {devices[1]}", f"a model on {devices[0]}, the target's device"
        )
    return devices[0]


def parts_of(target: Runtime, drafter: Drafter | None) -> list[object]:
    """Return the target, the drafter, and the models and drafters behind it, each once."""
    parts: list[object] = [target]
    waiting: list[object] = [] if drafter is None else [drafter]
    while waiting:
        part = waiting.pop(0)
        if any(part is known for known in parts):
            continue
        parts.append(part)
        if isinstance(part, Drafter):
            waiting += part.models
    return parts


def policy_of(
    config: SpeculativeConfig,
    drafter: Drafter | None,
    *,
    coupled: bool = False,
    token_ratio: float = TOKEN_RATIO,
) -> Policy:
    """Return the policy that a configuration asks for.

    Args:
        config: how speculation is done.
        drafter: what proposes tokens; None for nothing.
        coupled: whether a seed's text does not depend on what is drafted.
        token_ratio: the target's; see `Runtime.token_ratio`.
    """
    shape = Shape.of(config)
    if drafter is None or not shape.deepest:
        return FixedDepth(Shape(0))
    if shape.tree is not None and not drafter.branches:
        name = type(drafter).__name__
        _LOG.warning("chains are drafted in place of trees: %s drafts none with this model", name)
        shape = Shape(shape.deepest)
    if config.depth == "fixed":
        return FixedDepth(shape)
    ratios = (config.cost_ratio, drafter.cost_ratio, COST_RATIO)
    cost_ratio = next(ratio for ratio in ratios if ratio is not None)
    if config.depth == "confidence":
        return ConfidenceDepth(shape, cost_ratio, looks_up=drafter.looks_up)
    return AdaptiveDepth(
        shape,
        cost_ratio,
        looks_up=drafter.looks_up,
        has_model=drafter.vocab_size is not None,
        steps=drafter.steps,
        coupled=coupled,
        token_ratio=token_ratio,
    )
