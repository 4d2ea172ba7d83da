"""Whether a target, a drafter and a policy fit each other."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..config.params import LOSSY, SpeculativeConfig
from ..drafters.base import Drafter
from ..errors import InvalidConfigError, VocabMismatchError
from ..policies.base import Policy
from ..runtimes.base import Runtime


def check_parts(target: object, drafter: object, config: object, policy: object) -> None:
    """Raise InvalidConfigError unless these are a target, a drafter, its config, and a policy.

    There may be no drafter, and no policy, None.
    """
    if not isinstance(config, SpeculativeConfig):
        raise InvalidConfigError("config", config, "a SpeculativeConfig")
    for name, part in (("target", target), ("drafter", drafter), ("policy", policy)):
        if isinstance(part, type):
            raise InvalidConfigError(name, part.__name__, f"an instance: {part.__name__}(...)")
    if not isinstance(target, Runtime):
        raise InvalidConfigError(
            "target",
            type(target).__name__,
            "an outrider.runtimes.Runtime (wrap transformers models in TransformersModel)",
        )
    if drafter is not None and not isinstance(drafter, Drafter):
        raise InvalidConfigError(
            "drafter",
            type(drafter).__name__,
            "an outrider.drafters.Drafter, or a Runtime (wrap transformers models in "
            "TransformersModel)",
        )
    if policy is not None and not isinstance(policy, Policy):
        raise InvalidConfigError(
            "policy",
            policy if isinstance(policy, str) else type(policy).__name__,
            "an outrider.policies.Policy; those that come with the library are named by "
            'SpeculativeConfig(depth="adaptive")',
        )
    mixes = drafter is not None and drafter.looks_up and drafter.models
    if mixes and config.verification in LOSSY:
        raise InvalidConfigError(
            "verification",
            config.verification,
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
