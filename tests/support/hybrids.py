"""Small random models with recurrent layers, and their recurrences written down token by token."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
import transformers as tf
from torch import Tensor
from torch.nn.functional import silu, softplus

from .families import CONTEXT, VOCAB

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "bos_token_id": 0,
    "eos_token_id": None,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}
_ATTENTION: dict[str, Any] = {
    **_COMMON,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
}
_DELTA: dict[str, Any] = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
}
_MAMBA: dict[str, Any] = {
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_n_groups": 2,
    "mamba_d_state": 8,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_chunk_size": 8,
}
_EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "experts_implementation": "eager",
}
_THREE = ["linear_attention", "full_attention", "linear_attention"]
_ROPE = {
    "rope_type": "default",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.5,
    "mrope_section": [2, 1, 1],
}

_CONFIGS: dict[str, tuple[Any, dict[str, Any]]] = {
    "qwen3_next": (
        tf.Qwen3NextConfig,
        _ATTENTION
        | _DELTA
        | _EXPERTS
        | {"num_hidden_layers": 3, "layer_types": _THREE, "head_dim": 16, "intermediate_size": 48}
        | {"moe_intermediate_size": 16, "shared_expert_intermediate_size": 16},
    ),
    "qwen3_5": (
        tf.Qwen3_5TextConfig,
        _ATTENTION
        | _DELTA
        | {"num_hidden_layers": 3, "layer_types": _THREE, "head_dim": 16, "intermediate_size": 48}
        | {"rope_parameters": _ROPE},
    ),
    "qwen3_5_moe": (
        tf.Qwen3_5MoeTextConfig,
        _ATTENTION
        | _DELTA
        | _EXPERTS
        | {"num_hidden_layers": 3, "layer_types": _THREE, "head_dim": 16}
        | {"moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}
        | {"rope_parameters": _ROPE},
    ),
    "olmo_hybrid": (
        tf.OlmoHybridConfig,
        _ATTENTION
        | _DELTA
        | {"num_hidden_layers": 3, "layer_types": _THREE, "intermediate_size": 48},
    ),
    "kimi_linear": (
        tf.KimiLinearConfig,
        _ATTENTION
        | {"num_key_value_heads": 4, "num_hidden_layers": 3, "layer_types": _THREE}
        | {"linear_head_dim": 8, "linear_num_heads": 4, "linear_conv_kernel_dim": 4}
        | {"kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 8}
        | {"intermediate_size": 48, "moe_intermediate_size": 16, "num_local_experts": 4}
        | {"num_experts_per_tok": 2, "n_shared_experts": 1, "experts_implementation": "eager"},
    ),
    "lfm2": (
        tf.Lfm2Config,
        _ATTENTION
        | {"num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"]}
        | {"intermediate_size": 48, "block_auto_adjust_ff_dim": False, "conv_L_cache": 3},
    ),
    "bamba": (
        tf.BambaConfig,
        _ATTENTION
        | _MAMBA
        | {"num_hidden_layers": 3, "intermediate_size": 48, "attn_layer_indices": [1]},
    ),
    "granitemoehybrid": (
        tf.GraniteMoeHybridConfig,
        _ATTENTION
        | _MAMBA
        | {"num_hidden_layers": 3, "intermediate_size": 48, "layer_types": _THREE}
        | {"num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 48}
        | {"experts_implementation": "eager"},
    ),
    "falcon_h1": (
        tf.FalconH1Config,
        _ATTENTION | _MAMBA | {"num_hidden_layers": 3, "intermediate_size": 48, "mamba_d_ssm": 64},
    ),
    "nemotron_h": (
        tf.NemotronHConfig,
        _ATTENTION
        | {"head_dim": 16, "layers_block_type": ["mamba", "moe", "attention", "mamba"]}
        | {"intermediate_size": 48, "ssm_state_size": 8, "mamba_num_heads": 8}
        | {"mamba_head_dim": 8, "n_groups": 2, "chunk_size": 8, "n_routed_experts": 4}
        | {"moe_intermediate_size": 16, "moe_shared_expert_intermediate_size": 16}
        | {"num_experts_per_tok": 2, "experts_implementation": "eager"},
    ),
    "zamba2": (
        tf.Zamba2Config,
        _ATTENTION
        | {"num_key_value_heads": 4, "num_hidden_layers": 4, "mamba_d_state": 8}
        | {"n_mamba_heads": 8, "mamba_ngroups": 2, "chunk_size": 8, "intermediate_size": 48}
        | {"layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"], "num_mem_blocks": 1}
        | {"use_mem_rope": True},
    ),
    "mamba2": (
        tf.Mamba2Config,
        _COMMON
        | {"num_hidden_layers": 3, "state_size": 8, "num_heads": 8, "head_dim": 8}
        | {"n_groups": 2, "chunk_size": 8, "expand": 2},
    ),
    "jamba": (
        tf.JambaConfig,
        _ATTENTION
        | {"num_hidden_layers": 3, "intermediate_size": 48, "attn_layer_period": 3}
        | {"attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1}
        | {"num_experts": 4, "num_experts_per_tok": 2, "mamba_d_state": 8, "mamba_dt_rank": 4}
        | {"experts_implementation": "eager"},
    ),
}

FAMILIES = tuple(_CONFIGS)


def random_hybrid(
    family: str, seed: int = 0, dtype: torch.dtype = torch.float64, **changes: Any
) -> Any:
    """A random model of a family, whose decays forget neither at once nor never."""
    torch.manual_seed(seed)
    kind, settings = _CONFIGS[family]
    model = tf.AutoModelForCausalLM.from_config(kind(**settings | changes)).to(dtype).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("A_log"):
                parameter.uniform_(-2.0, 0.7)
            elif name.endswith("dt_bias"):
                parameter.normal_(-1.0, 1.0)
            elif parameter.ndim >= 2:
                parameter.normal_(0, 0.3)
    model.generation_config.eos_token_id = None
    return model


def exact(patch: pytest.MonkeyPatch) -> None:
    """Let transformers' models compute their recurrences token by token, in their own dtype.

    Its own functions compute in float32 whatever a model's dtype, in chunks.
    """
    prefix = tf.__name__ + ".models."
    for name, module in list(sys.modules.items()):
        for function, naive in _NAIVE.items():
            if name.startswith(prefix) and function in vars(module):
                patch.setattr(module, function, naive)


def _delta(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    kind = query.dtype
    query, key, value, g, beta = (each.double() for each in (query, key, value, g, beta))
    if use_qk_l2norm_in_kernel:
        query, key = (
            each / (each.square().sum(-1, keepdim=True) + 1e-6).sqrt() for each in (query, key)
        )
    heads = value.shape[2] // key.shape[2]
    query, key = (each.repeat_interleave(heads, 2) for each in (query, key))
    g = g if g.ndim == 4 else g[..., None]
    state = initial_state
    if state is None:
        state = value.new_zeros(len(value), value.shape[2], key.shape[3], value.shape[3])
    made = []
    for place in range(value.shape[1]):
        state = state * g[:, place].exp()[..., None]
        recalled = torch.einsum("bhk,bhkv->bhv", key[:, place], state)
        new = beta[:, place, :, None] * (value[:, place] - recalled)
        state = state + key[:, place, :, :, None] * new[:, :, None]
        made.append(torch.einsum("bhk,bhkv->bhv", query[:, place], state))
    return (torch.stack(made, 1) * query.shape[-1] ** -0.5).to(kind), state


def _mamba2(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    dt_bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    return_final_states: bool = False,
    **_: Any,
) -> Any:
    size = dt if dt_bias is None else dt + dt_bias
    size = (softplus(size) if dt_softplus else size).clamp(*dt_limit)
    B, C = (each.repeat_interleave(x.shape[2] // B.shape[2], 2) for each in (B, C))
    state = initial_states
    if state is None:
        state = x.new_zeros(len(x), x.shape[2], x.shape[3], B.shape[3])
    made = []
    for place in range(x.shape[1]):
        new = (size[:, place, :, None] * x[:, place])[..., None] * B[:, place, :, None]
        state = state * torch.exp(A * size[:, place])[..., None, None] + new
        made.append(torch.einsum("bhpn,bhn->bhp", state, C[:, place]))
    out = torch.stack(made, 1)
    out = out if D is None else out + D[:, None] * x
    return (out, state) if return_final_states else out


def _mamba1(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
    **_: Any,
) -> Any:
    size = dt if delta_bias is None else dt + delta_bias[:, None]
    size = softplus(size) if delta_softplus else size
    state, made = x.new_zeros(*x.shape[:2], A.shape[1]), []
    for place in range(x.shape[2]):
        new = (size[:, :, place] * x[:, :, place])[..., None] * B[:, None, :, place]
        state = state * torch.exp(A * size[:, :, place, None]) + new
        made.append(torch.einsum("bdn,bn->bd", state, C[:, :, place]))
    out = torch.stack(made, 2)
    out = out if D is None else out + x * D[:, None]
    out = out if z is None else out * silu(z)
    return (out, state) if return_last_state else out


_NAIVE = {
    "torch_chunk_gated_delta_rule": _delta,
    "chunk_kimi_delta_attention": _delta,
    "mamba2_chunk_scan": _mamba2,
    "mamba_selective_scan": _mamba1,
}
