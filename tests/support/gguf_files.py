"""Small GGUF files: random models of transformers, written in float32 for llama.cpp."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .families import VOCAB, random_model
from .hybrids import random_hybrid

ARCHITECTURES = {
    "falcon": "falcon",
    "gemma2": "gemma2",
    "gemma3": "gemma3",
    "gpt2": "gpt2",
    "gpt_neox": "gptneox",
    "llama": "llama",
    "mistral": "llama",
    "phi": "phi2",
    "phi3": "phi3",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
}
"""llama.cpp's name of each family that is written."""

HYBRIDS = {"lfm2": "lfm2", "bamba": "granitehybrid", "qwen3_5": "qwen35"}
"""The same of families with recurrent layers: convolutions, Mamba 2, the gated delta rule."""

_CHANGES: dict[str, dict[str, Any]] = {
    # llama.cpp scales attention by the width of a head, ties Gemma 2's embeddings, and has no
    # windows for Mistral.
    "gemma2": {"query_pre_attn_scalar": 16, "tie_word_embeddings": True},
    "gemma3": {"query_pre_attn_scalar": 16},
    "mistral": {"sliding_window": None},
    "bamba": {
        "rope_parameters": {"rope_theta": 10000.0, "partial_rotary_factor": 1.0},
        "mamba_n_groups": 1,
    },
    # Of several heads of values to one of keys llama.cpp has another order.
    "qwen3_5": {"linear_num_key_heads": 4},
}


def gguf_model(family: str, seed: int = 0, **changes: Any) -> Any:
    """A random model, float32, of a kind that llama.cpp computes alike."""
    if family in HYBRIDS:
        return random_hybrid(family, seed, torch.float32, **_CHANGES.get(family, {}) | changes)
    return random_model(family, seed, **_CHANGES.get(family, {}) | changes).float()


def byte_level(tokenizer: Any, template: str | None = None) -> Callable[[gguf.GGUFWriter], None]:
    """What writes the fields of a byte-level tokenizer of transformers, and a chat template."""
    model = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    tokens = [token for token, _ in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])]
    special = {index for index, token in tokenizer.added_tokens_decoder.items() if token.special}
    kinds = [
        gguf.TokenType.CONTROL if index in special else gguf.TokenType.NORMAL
        for index in range(len(tokens))
    ]

    def write(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list(tokens)
        writer.add_token_types(kinds)
        writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
        writer.add_bos_token_id(tokenizer.bos_token_id)
        writer.add_eos_token_id(tokenizer.eos_token_id)
        writer.add_add_bos_token(False)
        if template is not None:
            writer.add_chat_template(template)

    return write


def write_gguf(
    model: Any,
    path: Path,
    tokenizer: Callable[[gguf.GGUFWriter], None] | None = None,
    *,
    tensors: int = 0,
    matrices: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
) -> Path:
    """Write a model of `gguf_model` with its weights in float32.

    Args:
        model: of one of the families above.
        path: of the file.
        tokenizer: writes the tokenizer's fields; None writes a file without one.
        tensors: the most in one file, the others in further ones; 0 writes one file.
        matrices: the type of matrices, such as F16 or Q4_0.
    """
    config = model.config
    architecture = (ARCHITECTURES | HYBRIDS)[config.model_type.removesuffix("_text")]
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=tensors)
    _write_shape(writer, config)
    if tokenizer is None:
        writer.add_tokenizer_model("no_vocab")
        writer.add_vocab_size(config.vocab_size)
    else:
        tokenizer(writer)
    single = matrices == gguf.GGMLQuantizationType.F32
    file_type = "ALL_F32" if single else f"MOSTLY_{matrices.name}"
    writer.add_file_type(gguf.LlamaFileType[file_type])
    for name, tensor in _tensors(model, architecture):
        if single or tensor.ndim == 1:
            writer.add_tensor(name, tensor)
        else:
            writer.add_tensor(name, gguf.quantize(tensor, matrices), raw_dtype=matrices)
    _finish(writer)
    return path


def _write_shape(writer: gguf.GGUFWriter, config: Any) -> None:
    width = config.hidden_size
    heads = config.num_attention_heads
    head = getattr(config, "head_dim", None) or width // heads
    groups = (
        1
        if getattr(config, "multi_query", False)
        else getattr(config, "num_key_value_heads", heads)
    )
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(width)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(
        getattr(config, "intermediate_size", None) or getattr(config, "ffn_hidden_size", 4 * width)
    )
    writer.add_head_count(heads)
    if config.model_type.removesuffix("_text") not in HYBRIDS:
        writer.add_head_count_kv(groups or heads)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_layer_norm_rms_eps(
        getattr(config, "rms_norm_eps", None) or getattr(config, "norm_eps", 1e-6)
    )
    writer.add_layer_norm_eps(
        getattr(config, "layer_norm_eps", None) or getattr(config, "layer_norm_epsilon", 1e-5)
    )
    rope = getattr(config, "rope_parameters", None) or {}
    full = rope.get("full_attention", rope)
    writer.add_rope_freq_base(float(full.get("rope_theta", 10000.0)))
    writer.add_rope_dimension_count(int(head * full.get("partial_rotary_factor", 1.0)))
    writer.add_bool(
        f"{writer.arch}.use_parallel_residual", getattr(config, "use_parallel_residual", True)
    )
    if config.model_type in ("gemma2", "gemma3_text"):
        writer.add_sliding_window(config.sliding_window)
        writer.add_uint32(f"{writer.arch}.attention.sliding_window_pattern", 2)
    if config.model_type == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if config.model_type.removesuffix("_text") in HYBRIDS:
        _write_recurrences(writer, config)


def _write_recurrences(writer: gguf.GGUFWriter, config: Any) -> None:
    groups, shape = config.num_key_value_heads, dict[str, Any]()
    by_layer = [groups * (kind == "full_attention") for kind in config.layer_types]
    if writer.arch == "lfm2":
        shape = {"attention.head_count_kv": by_layer, "shortconv.l_cache": config.conv_L_cache}
    elif writer.arch == "granitehybrid":
        shape = {
            "attention.head_count_kv": by_layer,
            "ssm.conv_kernel": config.mamba_d_conv,
            "ssm.inner_size": config.mamba_n_heads * config.mamba_d_head,
            "ssm.state_size": config.mamba_d_state,
            "ssm.time_step_rank": config.mamba_n_heads,
            "ssm.group_count": config.mamba_n_groups,
            "rope.scaling.finetuned": True,
            "attention.scale": config.hidden_size**-0.5 * config.num_attention_heads**0.5,
            **dict.fromkeys(("embedding_scale", "residual_scale", "logit_scale"), 1.0),
        }
    else:
        shape = {
            "attention.head_count_kv": groups,
            "full_attention_interval": 2,
            "rope.dimension_sections": [*config.rope_parameters["mrope_section"], 0],
            "ssm.conv_kernel": config.linear_conv_kernel_dim,
            "ssm.inner_size": config.linear_num_value_heads * config.linear_value_head_dim,
            "ssm.state_size": config.linear_key_head_dim,
            "ssm.time_step_rank": config.linear_num_value_heads,
            "ssm.group_count": config.linear_num_key_heads,
        }
    for name, value in shape.items():
        kind = {bool: "bool", int: "uint32", float: "float32", list: "array"}[type(value)]
        getattr(writer, f"add_{kind}")(f"{writer.arch}.{name}", value)


def _tensors(model: Any, architecture: str) -> list[tuple[str, NDArray[np.float32]]]:
    """Name and arrange weights as llama.cpp reads them."""
    config = model.config
    kind = next(each for each, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(kind, config.num_hidden_layers)
    found = []
    for name, tensor in model.state_dict().items():
        if name.endswith((".attn.bias", ".masked_bias", "rotary_emb.inv_freq")):
            continue
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        named = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if name.endswith("dt_bias"):
            named = f"blk.{name.split('.')[2]}.ssm_dt.bias"
        assert named is not None, name
        arranged = _arranged(config, name, tensor.float())
        found.append((named, np.ascontiguousarray(arranged.numpy())))
    return found


def _arranged(config: Any, name: str, tensor: Tensor) -> Any:
    kind, heads = config.model_type, config.num_attention_heads
    if name.endswith("A_log"):
        tensor = -tensor.exp()
    if ".conv" in name and name.endswith("weight"):
        tensor = tensor.squeeze(1)
    if kind == "bamba" and name.endswith(("A_log", ".D")):
        return tensor[:, None]
    if kind == "bamba" and name.endswith("mamba.norm.weight"):
        return tensor[None]
    if kind == "qwen3_5_text" and name.endswith("norm.weight") and "linear_attn" not in name:
        return tensor + 1
    if kind in ("llama", "mistral", "bamba") and ("q_proj" in name or "k_proj" in name):
        count = heads if "q_proj" in name else config.num_key_value_heads
        return _interleaved(tensor, count)
    if kind.startswith("gemma") and name.endswith("norm.weight"):
        return tensor + 1
    if (
        kind == "gpt2"
        and tensor.ndim == 2
        and any(part in name for part in ("c_attn", "c_proj", "c_fc"))
    ):
        return tensor.T
    if kind == "gpt_neox" and "query_key_value" in name:
        # [heads, 3, width] becomes [3, heads, width].
        return tensor.unflatten(0, (heads, 3, -1)).transpose(0, 1).flatten(0, 2)
    return tensor


def _interleaved(tensor: Any, heads: int) -> Any:
    """Bring pairs that are rotated together side by side: (i, i + d / 2) to (2 i, 2 i + 1)."""
    return tensor.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)


Shapes = dict[str, tuple[int, ...]]

_WIDE, _INNER = 16, 32


def _layer(prefix: str, attention: tuple[str, ...], norms: tuple[str, ...]) -> Shapes:
    """Name the square weights of attention, those of the feed-forward, and vectors."""
    shapes: Shapes = {f"{prefix}{name}.weight": (_WIDE, _WIDE) for name in attention}
    shapes |= {
        f"{prefix}ffn_up.weight": (_INNER, _WIDE),
        f"{prefix}ffn_down.weight": (_WIDE, _INNER),
    }
    return shapes | {f"{prefix}{name}": (_WIDE,) for name in norms}


_QKV = ("attn_q", "attn_k", "attn_v")
_ENCODER = (*_QKV, "attn_o")
_DECODER = (*_ENCODER, *(f"cross_{name}" for name in _ENCODER))
_BOTH = ("weight", "bias")

UNFIT: dict[str, tuple[dict[str, int], Shapes]] = {
    "mamba": (
        {
            "ssm.conv_kernel": 4,
            "ssm.inner_size": _INNER,
            "ssm.state_size": 4,
            "ssm.time_step_rank": 2,
        },
        {
            "output_norm.weight": (_WIDE,),
            "blk.0.attn_norm.weight": (_WIDE,),
            "blk.0.ssm_in.weight": (2 * _INNER, _WIDE),
            "blk.0.ssm_conv1d.weight": (_INNER, 4),
            "blk.0.ssm_conv1d.bias": (_INNER,),
            "blk.0.ssm_x.weight": (2 + 2 * 4, _INNER),
            "blk.0.ssm_dt.weight": (_INNER, 2),
            "blk.0.ssm_dt.bias": (_INNER,),
            "blk.0.ssm_a": (_INNER, 4),
            "blk.0.ssm_d": (_INNER,),
            "blk.0.ssm_out.weight": (_WIDE, _INNER),
        },
    ),
    "t5": (
        {"attention.relative_buckets_count": 8},
        {"enc.output_norm.weight": (_WIDE,), "dec.output_norm.weight": (_WIDE,)}
        | _layer("enc.blk.0.", _ENCODER, ("attn_norm.weight", "ffn_norm.weight"))
        | _layer(
            "dec.blk.0.",
            _DECODER,
            ("attn_norm.weight", "cross_attn_norm.weight", "ffn_norm.weight"),
        ),
    ),
    "bert": (
        {},
        {"position_embd.weight": (64, _WIDE), "token_types.weight": (2, _WIDE)}
        | {f"token_embd_norm.{part}": (_WIDE,) for part in _BOTH}
        | _layer(
            "blk.0.",
            (*_QKV, "attn_output"),
            tuple(f"{n}_output_norm.{part}" for n in ("attn", "layer") for part in _BOTH),
        ),
    ),
}
"""Of kinds that cannot be decoded speculatively: their fields, and the shapes of their weights."""


def write_unfit(kind: str, path: Path) -> Path:
    """Write a model of one layer, all zeros, of a kind that is refused."""
    fields, shapes = UNFIT[kind]
    writer = gguf.GGUFWriter(path, kind)
    writer.add_context_length(64)
    writer.add_embedding_length(_WIDE)
    writer.add_block_count(1)
    writer.add_feed_forward_length(_INNER)
    writer.add_head_count(2)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_layer_norm_eps(1e-6)
    for name, value in fields.items():
        writer.add_uint32(f"{kind}.{name}", value)
    writer.add_tokenizer_model("no_vocab")
    writer.add_token_type_count(2)
    writer.add_vocab_size(VOCAB)
    for name, shape in {"token_embd.weight": (VOCAB, _WIDE), **shapes}.items():
        writer.add_tensor(name, np.zeros(shape, np.float32))
    _finish(writer)
    return path


def _finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
