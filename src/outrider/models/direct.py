"""Forwards of models shaped like Llama with fewer calls, and the same numbers.

Of a forward of one token through a model of some ten million parameters most is not the products of
matrices. Here its layers are run in one loop: the model's own embedding, projections, activation
and head, called as modules, attention straight into the slot cache, a norm in one call, and a
rotation without halves being put together again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import rms_norm
from transformers import DynamicCache

from . import attention

_SHAPED = ("LlamaForCausalLM", "MistralForCausalLM")
"""Classes of transformers whose layers are as `_run` has them."""

_PROBE = 5
"""How many tokens both ways are compared on."""


def forward_of(hf_model: Any) -> DirectForward | ModuleForward:
    """What computes a model's logits over a cache: directly where that gives the same.

    Args:
        hf_model: a causal language model in evaluation mode, whose attention is Outrider's or not.

    Returns:
        A function of `input_ids` [B, q], `attention_mask`, `position_ids` [B or 1, q],
        `past_key_values` and `logits_to_keep`, all by name, for logits [B, keep, V].
    """
    direct = DirectForward(hf_model) if _is_shaped(hf_model) else None
    return direct if direct is not None and direct.agrees() else ModuleForward(hf_model)


class ModuleForward:
    """The model's own forward.

    Args:
        hf_model: the model.
    """

    def __init__(self, hf_model: Any) -> None:
        self.hf_model = hf_model

    def __call__(self, **inputs: Any) -> Tensor:
        """Logits [B, keep, V]; see `forward_of`."""
        logits: Tensor = self.hf_model(use_cache=True, **inputs).logits
        return logits


class DirectForward:
    """The forward of a model shaped like Llama, run here; what it cannot see is left to the model.

    That is: a hook or a patch on a module that is not called here, or another module in the place
    of one, an attention implementation other than Outrider's, masks by kind of layer, and training.

    Args:
        hf_model: of a class in `_SHAPED`.
    """

    def __init__(self, hf_model: Any) -> None:
        self.hf_model = hf_model
        self._own = ModuleForward(hf_model)
        passed_over = _passed_over(hf_model)
        self._hooks = [
            hooks
            for module in passed_over
            for hooks in (module._forward_hooks, module._forward_pre_hooks)
        ]
        self._attributes = [vars(module) for module in passed_over]
        stacks = [hf_model.model, hf_model.model.layers, *hf_model.model.layers]
        self._parts = [(module._modules, list(module._modules.values())) for module in stacks]

    def __call__(self, *, attention_mask: Any, **inputs: Any) -> Tensor:
        """Logits [B, keep, V]; see `forward_of`."""
        model = self.hf_model
        if (
            isinstance(attention_mask, dict)
            or model.training
            or any(self._hooks)
            or any("forward" in own for own in self._attributes)
            or any(list(parts.values()) != before for parts, before in self._parts)
            or model.config._attn_implementation != attention.NAME
        ):
            return self._own(attention_mask=attention_mask, **inputs)
        return self._run(attention_mask=attention_mask, **inputs)

    @torch.inference_mode()
    def agrees(self) -> bool:
        """Whether a few tokens get the logits that the model gives them, but for rounding."""
        model = self.hf_model
        ids = torch.arange(1, _PROBE + 1, device=model.device)[None] % model.vocab_size
        future = torch.ones(_PROBE, _PROBE, dtype=torch.bool, device=ids.device).triu(1)
        mask = torch.zeros(future.shape, dtype=model.dtype, device=ids.device)
        asked = {
            "input_ids": ids,
            "attention_mask": mask.masked_fill(future, -torch.inf)[None, None],
            "position_ids": torch.arange(_PROBE, device=ids.device)[None],
            "logits_to_keep": _PROBE,
        }
        found = self(past_key_values=DynamicCache(), **asked).double()
        expected = self._own(past_key_values=DynamicCache(), **asked).double()
        scale = expected.abs().max().clamp(min=1e-9)
        eps = torch.finfo(model.dtype).eps
        return bool((found - expected).abs().max() / scale <= 8 * eps)

    def _run(
        self,
        *,
        input_ids: Tensor,
        attention_mask: Tensor,
        position_ids: Tensor,
        past_key_values: Any,
        logits_to_keep: int,
    ) -> Tensor:
        base = self.hf_model.model
        hidden = base.embed_tokens(input_ids)
        cos, sin = base.rotary_emb(hidden, position_ids=position_ids)
        half = cos.shape[-1] // 2
        cos, sin = cos[:, None], torch.cat([-sin[..., :half], sin[..., half:]], -1)[:, None]
        rows = *input_ids.shape, -1
        for layer in base.layers:
            heads, mlp = layer.self_attn, layer.mlp
            shape = *input_ids.shape, -1, heads.head_dim
            inner = _norm(layer.input_layernorm, hidden)
            query = heads.q_proj(inner).view(shape).transpose(1, 2)
            key = heads.k_proj(inner).view(shape).transpose(1, 2)
            value = heads.v_proj(inner).view(shape).transpose(1, 2)
            query = query * cos + query.roll(half, -1) * sin
            key = key * cos + key.roll(half, -1) * sin
            key, value = past_key_values.update(key, value, heads.layer_idx)
            mixed, _ = attention.packed_attention(
                heads, query, key, value, attention_mask, scaling=heads.scaling
            )
            hidden = hidden + heads.o_proj(mixed.view(rows))
            inner = _norm(layer.post_attention_layernorm, hidden)
            hidden = hidden + mlp.down_proj(mlp.act_fn(mlp.gate_proj(inner)) * mlp.up_proj(inner))
        logits: Tensor = self.hf_model.lm_head(_norm(base.norm, hidden)[:, -logits_to_keep:])
        return logits


def _norm(module: Any, hidden: Tensor) -> Tensor:
    """Root mean square layer norm (Zhang and Sennrich 2019); the module's own if not float32.

    Narrower dtypes are widened for it, and rounded before the weight: another result in one go.
    """
    if hidden.dtype != torch.float32:
        own: Tensor = module(hidden)
        return own
    return rms_norm(hidden, hidden.shape[-1:], module.weight, module.variance_epsilon)


def _passed_over(hf_model: Any) -> list[Any]:
    """The modules that are not called here: those of layers that hold others, and norms."""
    base = hf_model.model
    found = [hf_model, base, base.norm]
    for layer in base.layers:
        norms = layer.input_layernorm, layer.post_attention_layernorm
        found += [layer, layer.self_attn, layer.mlp, *norms]
    return found


def _is_shaped(hf_model: Any) -> bool:
    """Whether a model is one of those of transformers, as they are made."""
    kind = type(hf_model)
    if kind.__name__ not in _SHAPED or not kind.__module__.startswith("transformers.models."):
        return False
    # A forward of an instance's own is a patch, or moves its weights.
    return not any("forward" in vars(module) for module in hf_model.modules())
