"""Whether a target and a drafter fit each other."""

from __future__ import annotations

import torch

from ..config.params import LOSSY, SpeculativeConfig
from ..errors import InvalidConfigError, VocabMismatchError
from ..types.protocols import (
    CachedModel,
    Drafter,
    LooksUp,
    ModelBacked,
    Policy,
    Target,
)


def check_models(target: object, drafter: object, config: object, policy: object) -> None:
    """Raise InvalidConfigError unless these are a target, a drafter, its config, and a policy.

    There may be no drafter, and no policy, None.
    """
    if not isinstance(config, SpeculativeConfig):
        raise InvalidConfigError("config", config, "a SpeculativeConfig")
    for name, part in (("target", target), ("drafter", drafter)):
        if isinstance(part, type):
            raise InvalidConfigError(name, part.__name__, f"an instance: {part.__name__}(...)")
    if not isinstance(target, Target):
        raise InvalidConfigError(
            "target",
            type(target).__name__,
            "a model with vocab_size and verify (wrap transformers models in TransformersModel)",
        )
    if drafter is not None and not isinstance(drafter, Drafter):
        raise InvalidConfigError(
            "drafter",
            type(drafter).__name__,
            "a drafter with vocab_size and propose, or a model with open (wrap transformers models "
            "in TransformersModel)",
        )
    if policy is not None and (isinstance(policy, type) or not isinstance(policy, Policy)):
        raise InvalidConfigError(
            "policy",
            policy if isinstance(policy, str | type) else type(policy).__name__,
            "a depth policy with learns, plan and observe; those that come with the library are "
            'named by SpeculativeConfig(depth="adaptive")',
        )
    mixes = all(isinstance(drafter, kind) for kind in (LooksUp, ModelBacked))
    if mixes and config.verification in LOSSY:
        raise InvalidConfigError(
            "verification",
            config.verification,
            "a lossless method with a drafter that mixes looked-up tokens and a model's; lossy "
            "ones take the model alone: pair.model_drafter of outrider.load, or the drafter that "
            "the hybrid was made with",
        )


def check_vocabularies(target: Target, drafter: Drafter | None) -> None:
    """Raise VocabMismatchError if the drafter's distributions are not as wide as the target's."""
    if drafter is None or drafter.vocab_size in (None, target.vocab_size):
        return
    raise VocabMismatchError(
        f"the draft's vocabulary has {drafter.vocab_size} tokens and the target's "
        f"{target.vocab_size}; use a draft with the target's tokenizer (where only the padding of "
        "the width differs, outrider.load or ModelDrafter(model, vocab_size=...) aligns them), or "
        "put a VocabularyDrafter between two tokenizers"
    )


def common_device(models: list[CachedModel]) -> torch.device:
    """The device that all models are on, the CPU if there is none.

    Raises:
        InvalidConfigError: they are on several.
    """
    devices = list(dict.fromkeys(model.device for model in models))
    if len(devices) > 1:
        raise InvalidConfigError(
            "drafter", f"a model on {devices[1]}", f"a model on {devices[0]}, the target's device"
        )
    return devices[0] if devices else torch.device("cpu")


def parts_of(target: Target, drafter: Drafter | None) -> list[object]:
    """The target, the drafter, and the models that the drafter asks, each once."""
    parts: list[object] = [target]
    waiting: list[object] = [] if drafter is None else [drafter]
    while waiting:
        part = waiting.pop(0)
        if any(part is known for known in parts):
            continue
        parts.append(part)
        if isinstance(part, ModelBacked):
            waiting += part.models
    return parts
