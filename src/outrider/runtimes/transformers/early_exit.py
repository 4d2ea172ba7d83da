"""A target's first layers and its head as a model of their own, for the target's own slots.

The keys and values of a layer depend on the layers below it only. What the target has computed of
a prefix serves both, and what its first layers write while drafting is what its own forward writes
there again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import ModuleList

from ...errors import InvalidConfigError, ModelError
from .mixers import made_exact
from .twin import sharing, twin


@torch.inference_mode()
def first_layers(hf_model: Any, layers: int) -> Any:
    """Make a model of the first layers of another, and see that it runs.

    Raises:
        InvalidConfigError: there are not more layers than that.
        ModelError: the layers are not found, or do not run without those after them.
    """
    model = truncated(made_exact(twin(hf_model)), layers)
    try:
        model(input_ids=torch.zeros(1, 1, dtype=torch.int64, device=model.device), use_cache=False)
    except Exception as error:
        raise ModelError(
            f"the first layers of {type(hf_model).__name__} do not run without the others "
            f"({type(error).__name__}: {error}); draft with a second model, or by prompt lookup"
        ) from error
    return model


def truncated(hf_model: Any, layers: int) -> Any:
    """A model of the first layers of another, its head after them; all parameters are shared.

    Raises:
        InvalidConfigError: it has not more layers than that.
        ModelError: its decoder layers are not one plain list.
    """
    total = hf_model.config.get_text_config().num_hidden_layers
    if not isinstance(layers, int) or not 1 <= layers < total:
        raise InvalidConfigError(
            "layers", layers, f"an integer in 1..{total - 1}: some of the target's {total} layers"
        )
    stacks = [
        name
        for name, module in hf_model.named_modules()
        if isinstance(module, ModuleList) and len(module) == total
    ]
    if len(stacks) != 1:
        raise ModelError(
            f"{type(hf_model).__name__} has {len(stacks)} lists of {total} layers; expected its "
            "decoder layers in one plain list; draft with a second model, or by prompt lookup"
        )
    *path, last = stacks[0].split(".")
    model = sharing(hf_model)
    owner = model
    for name in path:
        owner._modules[name] = sharing(owner._modules[name])
        owner = owner._modules[name]
    owner._modules[last] = owner._modules[last][:layers]
    return model
