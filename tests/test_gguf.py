"""Models as GGUF files: read back, number by number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers as tf

from outrider.bench.gguf import paired, write
from outrider.errors import ModelError

from .families import random_model

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def small(**settings: Any) -> Any:
    torch.manual_seed(0)
    config = tf.LlamaConfig(
        **{
            "vocab_size": 40,
            "hidden_size": 24,
            "intermediate_size": 36,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 50,
            "tie_word_embeddings": False,
            **settings,
        }
    )
    return tf.LlamaForCausalLM(config).eval()


def read(path: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """What a file says, and its tensors as float32."""
    reader = gguf.GGUFReader(path)
    facts = {name: field.contents() for name, field in reader.fields.items()}
    tensors = {
        each.name: torch.from_numpy(
            gguf.quants.dequantize(each.data, each.tensor_type).reshape(each.shape[::-1]).copy()
        )
        for each in reader.tensors
    }
    return facts, tensors


def unpaired(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Row by row: where the even ones of a head come first."""
    size = len(rows) // heads
    order = [
        head * size + start + step
        for head in range(heads)
        for start in (0, 1)
        for step in range(0, size, 2)
    ]
    return rows[order]


def test_a_file_says_what_the_model_is(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write(
        small(rms_norm_eps=1e-5, rope_parameters={"rope_type": "default", "rope_theta": 7e4}),
        path,
        "f32",
    )
    facts, _ = read(path)
    told = {name: value for name, value in facts.items() if not name.startswith("GGUF.")}
    assert told.pop("llama.attention.layer_norm_rms_epsilon") == pytest.approx(1e-5)
    assert told == {
        "general.architecture": "llama",
        "general.file_type": int(gguf.LlamaFileType.ALL_F32),
        "llama.block_count": 2,
        "llama.context_length": 50,
        "llama.embedding_length": 24,
        "llama.feed_forward_length": 36,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        "llama.attention.key_length": 6,
        "llama.attention.value_length": 6,
        "llama.rope.dimension_count": 6,
        "llama.rope.freq_base": 7e4,
        "llama.vocab_size": 40,
        "tokenizer.ggml.model": "none",
    }


@pytest.mark.parametrize(
    ("number", "dtype"), [("f32", None), ("f16", "float16"), ("bf16", "bfloat16")]
)
def test_every_number_is_there(tmp_path: Path, number: Any, dtype: str | None) -> None:
    model = small(attention_bias=True, mlp_bias=True)
    path = tmp_path / "model.gguf"
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    write(model, path, number)
    _, found = read(path)
    state = model.state_dict()
    names = {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "lm_head": "output",
        "input_layernorm": "attn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "post_attention_layernorm": "ffn_norm",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    assert len(found) == len(state)
    for name, expected in state.items():
        place, _, kind = name.rpartition(".")
        block, known = "", place
        if place.startswith("model.layers."):
            _, _, index, known = place.split(".", 3)
            block = f"blk.{index}."
        written = found[f"{block}{names[known]}.{kind}"]
        if known.endswith("q_proj"):
            written = unpaired(written, 4)
        if known.endswith("k_proj"):
            written = unpaired(written, 2)
        if dtype is not None and expected.ndim == 2:
            expected = expected.to(getattr(torch, dtype)).float()
        assert torch.equal(written, expected), name


def test_rotated_pairs_score_alike() -> None:
    """A query and a key, turned as transformers does it and as llama.cpp does, are as alike."""
    torch.manual_seed(1)
    heads, size = 2, 8
    query, key = torch.randn(2, heads * size, dtype=torch.float64)
    angle = torch.rand(size // 2, dtype=torch.float64)

    def by_halves(head: torch.Tensor, position: int) -> torch.Tensor:
        turned = torch.polar(torch.ones_like(angle), position * angle)
        return torch.view_as_real(torch.complex(head[: size // 2], head[size // 2 :]) * turned)

    def by_neighbours(head: torch.Tensor, position: int) -> torch.Tensor:
        turned = torch.polar(torch.ones_like(angle), position * angle)
        return torch.view_as_real(torch.view_as_complex(head.reshape(-1, 2)) * turned)

    other_query, other_key = paired(query, heads), paired(key, heads)
    for head in range(heads):
        rows = slice(head * size, (head + 1) * size)
        expected = (by_halves(query[rows], 5) * by_halves(key[rows], 2)).sum()
        found = (by_neighbours(other_query[rows], 5) * by_neighbours(other_key[rows], 2)).sum()
        assert found == pytest.approx(expected.item())


def test_tied_embeddings_are_written_once(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write(small(tie_word_embeddings=True), path, "f32")
    _, found = read(path)
    assert "token_embd.weight" in found
    assert "output.weight" not in found


@pytest.mark.parametrize(
    "rope", [LLAMA3, {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}]
)
def test_scaled_frequencies_are_divided_by_what_is_written(
    tmp_path: Path, rope: dict[str, Any]
) -> None:
    path = tmp_path / "model.gguf"
    model = small(hidden_size=64, rope_parameters=rope)
    write(model, path, "f16")
    facts, found = read(path)
    base, size = facts["llama.rope.freq_base"], facts["llama.rope.dimension_count"]
    factors = found["rope_freqs.weight"].numpy()
    used = base ** -(np.arange(0, size, 2) / size) / factors
    assert used == pytest.approx(model.model.rotary_emb.inv_freq.numpy(), rel=1e-5)
    assert factors.max() > 1.5


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: random_model("gpt2"), "GPT2LMHeadModel .*expected a LlamaForCausalLM"),
        (lambda: small(hidden_act="gelu"), "'gelu'.*expected 'silu'"),
        (
            lambda: small(
                rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
            ),
            "'dynamic' rotary",
        ),
    ],
)
def test_what_cannot_be_written(tmp_path: Path, model: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        write(model(), tmp_path / "model.gguf", "f32")
    assert list(tmp_path.iterdir()) == []


def test_a_part_that_has_no_place_is_named(tmp_path: Path) -> None:
    model = small()
    model.model.layers[1].self_attn.register_parameter("sink", torch.nn.Parameter(torch.ones(3)))
    with pytest.raises(ModelError, match=r"model\.layers\.1\.self_attn\.sink"):
        write(model, tmp_path / "model.gguf", "f32")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", [OSError, KeyboardInterrupt])
def test_nothing_half_written_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]
) -> None:
    whole, calls = gguf.GGUFWriter.write_tensor_data, 0

    def full(self: Any, *args: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise kind("no space left")
        whole(self, *args)

    monkeypatch.setattr(gguf.GGUFWriter, "write_tensor_data", full)
    with pytest.raises(kind, match="no space"):
        write(small(), tmp_path / "model.gguf", "f32")
    assert calls == 3
    assert list(tmp_path.iterdir()) == []
