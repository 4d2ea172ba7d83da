"""A model of transformers as a GGUF file, the format that llama.cpp reads.

The format is described in docs/gguf.md of https://github.com/ggml-org/ggml; tensors are named by
the tables of the `gguf` package. Token ids go in and out, so that the file has a vocabulary's size
and no tokenizer ("none", as llama.cpp calls it), whatever tokenizer the model has.

Rotary embeddings turn pairs of numbers. transformers pairs number i of a head with i + half the
head, llama.cpp's Llama number 2i with 2i + 1: rows of the query and key projections change places.
Frequencies that a model scales (Llama 3's) are written as the factors by which it divides them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from ..errors import ModelError

Number = Literal["f32", "f16", "bf16"]
"""How the numbers of matrices are written; vectors are always float32, as llama.cpp wants them."""

_DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
_ROPES = ("default", "linear", "llama3")
"""Rotary embeddings whose frequencies do not depend on the length of the text."""


def write(hf_model: Any, path: Path, number: Number) -> None:
    """Write a model to a file; if that fails nothing is left of it.

    Args:
        hf_model: a causal language model of transformers. Tied embeddings are written once.
        path: of the file; one that is there is replaced.
        number: of the matrices.

    Raises:
        ModelError: there is no telling llama.cpp of a part of the model.
        ImportError: the gguf package is not installed.
        OSError: the file cannot be written.
    """
    import gguf

    check(hf_model)
    tensors = list(_tensors(hf_model, gguf))
    writer = gguf.GGUFWriter(path, "llama")
    try:
        _describe(writer, hf_model, gguf.LlamaFileType, number)
        for name, tensor in tensors:
            written = _written(tensor, number)
            kind = gguf.GGMLQuantizationType[number.upper() if tensor.ndim > 1 else "F32"]
            shape = tuple(tensor.shape)
            writer.add_tensor_info(name, shape, written.dtype, written.nbytes, kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for _, tensor in tensors:
            writer.write_tensor_data(_written(tensor, number))
        writer.close()
    except BaseException:
        writer.close()
        path.unlink(missing_ok=True)
        raise


def check(hf_model: Any) -> None:
    """Refuse models that would be written as something else than they are.

    Raises:
        ModelError: another architecture than Llama's, or settings that llama.cpp's has not.
    """
    name = type(hf_model).__name__
    if not isinstance(hf_model, LlamaForCausalLM):
        raise ModelError(f"no GGUF of {name} can be written here; expected a LlamaForCausalLM")
    config = hf_model.config
    rope = config.rope_parameters["rope_type"]
    if rope not in _ROPES:
        raise ModelError(
            f"no GGUF of {name} with {rope!r} rotary embeddings can be written here; expected "
            f"{', '.join(_ROPES)}"
        )
    if config.hidden_act not in ("silu", "swish"):
        raise ModelError(
            f"no GGUF of {name} with {config.hidden_act!r} can be written; expected 'silu', the "
            "only activation llama.cpp has there"
        )


def paired(rows: Tensor, heads: int) -> Tensor:
    """Rows of a query or key projection, in the order that llama.cpp's rotary embedding wants.

    Args:
        rows: `[heads * size, ...]`, or `[heads * size]` of a bias; a head's numbers i and
            i + size / 2 are turned together.
        heads: how many.

    Returns:
        The same rows, those that are turned together beside each other.
    """
    size = rows.shape[0] // heads
    halves = rows.reshape(heads, 2, size // 2, *rows.shape[1:])
    return halves.transpose(1, 2).reshape(rows.shape)


def _tensors(hf_model: Any, gguf: Any) -> Iterator[tuple[str, Tensor]]:
    """Every parameter by llama.cpp's name, once, and what scales the rotary embedding."""
    config = hf_model.config
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, parameter in hf_model.named_parameters():
        known = names.get_name(name, (".weight", ".bias"))
        if known is None:
            raise ModelError(
                f"no GGUF of {type(hf_model).__name__} can be written: llama.cpp has no place for "
                f"{name}"
            )
        tensor = parameter.detach().cpu()
        if ".q_proj." in name:
            tensor = paired(tensor, config.num_attention_heads)
        elif ".k_proj." in name:
            tensor = paired(tensor, config.num_key_value_heads)
        yield known, tensor
    if config.rope_parameters["rope_type"] != "default":
        scaled = hf_model.model.rotary_emb.inv_freq.cpu().double()
        steps = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
        yield "rope_freqs.weight", config.rope_parameters["rope_theta"] ** -steps / scaled


def _written(tensor: Tensor, number: Number) -> Any:
    """The numbers of a tensor as they stand in the file; bfloat16 as integers of its bits."""
    if tensor.ndim == 1:
        return tensor.float().numpy()
    found = tensor.to(_DTYPES[number]).contiguous()
    return (found.view(torch.int16) if number == "bf16" else found).numpy()


def _describe(writer: Any, hf_model: Any, kinds: Any, number: Number) -> None:
    config = hf_model.config
    writer.add_file_type(kinds[f"{'ALL' if number == 'f32' else 'MOSTLY'}_{number.upper()}"])
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(hf_model.get_input_embeddings().num_embeddings)
    writer.add_tokenizer_model("none")
