"""A model's twin: the same parameters and hooks, with a configuration and a mode of its own.

What a runtime needs of a model, evaluation mode and an attention implementation, is set on the
twin. The user's model is never written to, not even while a forward runs, and may be used
meanwhile by others.
"""

from __future__ import annotations

from copy import copy, deepcopy
from typing import Any

from torch.nn import Module
from transformers import PreTrainedConfig

from . import attention

_HOOKS = ("_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called")


def twin(hf_model: Any, *, records: bool = False) -> Any:
    """Make a model that computes as another does, in evaluation mode, by `grouped_attention`.

    One for which there is no "sdpa", for its soft caps or sinks, keeps its own "eager" attention.
    Parameters, buffers and hooks are shared, and so need no memory and follow the other's, those
    that are added later included. Submodules that are exchanged later are not followed.

    Args:
        hf_model: a `PreTrainedModel`, which is left as it is.
        records: whether it is to be asked for hidden states. Transformers adds hooks for that,
            which then are its own: those that are added to the other later are not followed.
    """
    copies: dict[int, Module] = {}
    configs: dict[int, Any] = {}

    def copied(module: Module) -> Module:
        if id(module) not in copies:
            copies[id(module)] = other = sharing(module)
            children = other._modules
            for name, child in children.items():
                children[name] = None if child is None else copied(child)
            for name, value in vars(module).items():
                if isinstance(value, PreTrainedConfig):
                    vars(other)[name] = deepcopy(value, configs)
            other.training = False
            for name in _HOOKS if records else ():
                vars(other)[name] = copy(vars(other)[name])
        return copies[id(module)]

    model: Any = copied(hf_model)
    attention.register()
    known = attention.NAME if hf_model._supports_attention_backend else "sdpa"
    model.set_attn_implementation(known if hf_model._supports_sdpa else "eager")
    return model


def sharing(module: Module) -> Any:
    """A module with the same parameters and submodules, whose submodules can be replaced."""
    other = type(module).__new__(type(module))
    # Not by `copy`, which loses that a module was compiled.
    vars(other).update(vars(module), _modules=dict(module._modules))
    return other
