"""Multi-token prediction: a layer more, which a target's own checkpoint has for drafting.

It is one of the target's decoder layers. It reads a token's embedding and the state of the token
before it, the target's last in a text, and in drafts what the layer itself made. transformers
passes these tensors over when it loads a model, so they are read from its files. Of several such
layers the first drafts all tokens.

Method: DeepSeek-AI, arXiv 2412.19437. Formats: the checkpoints of Qwen3-Next and Qwen 3.5, of
DeepSeek-V3 and GLM-4.5, and of MiMo.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Embedding, Linear, Module

from ...errors import ModelError
from ...runtimes.transformers import attention
from ...runtimes.transformers.twin import sharing
from .checkpoint import HeadConfig

_PARTS = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
"""Tensors of all experts, and what checkpoints write of each expert in their place."""
_FURTHER = re.compile(r"layers\.[1-9]")


@dataclass(frozen=True, slots=True)
class Layout:
    """How checkpoints of some models write the layer.

    Attributes:
        models: their text configurations' model_type; their layer attends to a whole text.
        begins: what the names of its tensors begin with; {} is how many layers the target has.
        parts: how they go on, and the names of `MtpNet` in their place; the first that fits counts.
            Names that fit none stay, and those of further layers are passed over.
        states_first: whether states stand before embeddings where both are joined.
        normed: whether what recurs was normed.
    """

    models: tuple[str, ...]
    begins: str
    parts: Mapping[str, str]
    states_first: bool = False
    normed: bool = True

    def tensors(self, found: Mapping[str, Tensor], layers: int) -> dict[str, Tensor]:
        """Return the layer's tensors in a target's checkpoint, by the names of `MtpNet`.

        Args:
            found: the checkpoint's.
            layers: how many the target has.

        Raises:
            ModelError: there is no such layer.
        """
        begins = self.begins.format(layers)
        named = {}
        for name, tensor in found.items():
            rest = name.removeprefix(begins)
            own = next((part for part in self.parts if rest.startswith(part)), "")
            if rest != name and not _FURTHER.match(rest):
                named[self.parts.get(own, "") + rest.removeprefix(own)] = tensor
        if not named:
            raise ModelError(
                "the target's checkpoint has no layer for multi-token prediction; expected tensors "
                f"named {begins}*"
            )
        return named


LAYOUTS = (
    Layout(
        ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"),
        "mtp.",
        {
            "pre_fc_norm_embedding.": "token_norm.",
            "pre_fc_norm_hidden.": "state_norm.",
            "fc.": "fc.",
            "norm.": "norm.",
            "layers.0.": "block.",
            "embed_tokens.": "embed_tokens.",
            "lm_head.": "lm_head.",
        },
    ),
    Layout(
        ("deepseek_v3", "glm4_moe", "glm4_moe_lite"),
        "model.layers.{}.",
        {
            "enorm.": "token_norm.",
            "hnorm.": "state_norm.",
            "eh_proj.": "fc.",
            "shared_head.norm.": "norm.",
            "shared_head.head.": "lm_head.",
            "embed_tokens.": "embed_tokens.",
            "": "block.",
        },
        normed=False,
    ),
    Layout(
        ("mimo", "qwen2"),
        "model.mtp_layers.0.",
        {
            "token_layernorm.": "token_norm.",
            "hidden_layernorm.": "state_norm.",
            "input_proj.": "fc.",
            "final_layernorm.": "norm.",
            "": "block.",
        },
        states_first=True,
    ),
)
"""Qwen3-Next and Qwen 3.5; DeepSeek-V3 and GLM-4.5; MiMo."""


_FIRST: dict[str, Any] = {
    "first_k_dense_replace": 0,
    "mlp_layer_types": ["sparse"],
    "mlp_only_layers": [],
    "decoder_sparse_step": 1,
}
"""Fields by which layers have experts, so that the first one has if any has."""


def mtp_config(model: Any) -> HeadConfig:
    """Describe the layer of a target, a model of transformers."""
    inner = deepcopy(model.config.get_text_config())
    layers, inner.num_hidden_layers = inner.num_hidden_layers, 1
    inner.layer_types = ["full_attention"]
    for name, own in _FIRST.items():
        if getattr(inner, name, None) is not None:
            setattr(inner, name, own)
    attention.register()
    inner._attn_implementation = attention.NAME
    return HeadConfig("mtp", inner, (layers,))


def layout_of(model: Any) -> Layout:
    """Find how a target's checkpoint writes the layer; the target is a model of transformers.

    Raises:
        ModelError: no layer of such models is known.
    """
    kind = model.config.get_text_config().model_type
    for layout in LAYOUTS:
        if kind in layout.models:
            return layout
    known = ", ".join(name for layout in LAYOUTS for name in layout.models)
    raise ModelError(
        f"{type(model).__name__}'s model_type is {kind}, of which no layer for multi-token "
        f"prediction is read; expected one of {known}; draft with a draft model or by lookup"
    )


def by_expert(wanted: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return views of a network's tensors by the names that a checkpoint has.

    Weights of experts are one tensor there, and one each in most checkpoints.

    Args:
        wanted: the network's.
        found: the checkpoint's.
    """
    made = {}
    for name, tensor in wanted.items():
        begins, _, kind = name.rpartition(".")
        if name in found or kind not in _PARTS:
            made[name] = tensor
            continue
        for place, expert in enumerate(tensor):
            views = zip(_PARTS[kind], expert.chunk(len(_PARTS[kind])), strict=True)
            made |= {f"{begins}.{place}.{part}.weight": each for part, each in views}
    return made


def joined(wanted: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a checkpoint's tensors with those of experts joined; see `by_expert`."""
    made = dict(found)
    for name in wanted.keys() - found.keys():
        parts = [made.pop(part) for part in by_expert({name: wanted[name]}, found)]
        made[name] = torch.cat(parts).view(wanted[name].shape)
    return made


class MtpNet(Module):
    """The network of a layer for multi-token prediction; see `HeadNet` for its methods.

    Args:
        config: as `mtp_config` makes it.
        model: the target, of transformers, whose rotary embedding is used.
        layout: of the checkpoint.
    """

    tokens = None

    def __init__(self, config: HeadConfig, model: Any, layout: Layout) -> None:
        super().__init__()
        inner, base = config.decoder, model.get_decoder()
        width, norm = inner.hidden_size, type(base.norm)
        self.config, self._layout = config, layout
        self.token_norm = norm(width, eps=inner.rms_norm_eps)
        self.state_norm = norm(width, eps=inner.rms_norm_eps)
        self.fc = Linear(2 * width, width, bias=False)
        self.block: Any = type(base.layers[-1])(inner, 0)
        self.norm = norm(width, eps=inner.rms_norm_eps)
        self.embed_tokens = Embedding(inner.vocab_size, width)
        self.lm_head = Linear(width, inner.vocab_size, bias=False)
        self.rotary = sharing(base.rotary_emb)

    def fused(self, states: Tensor) -> Tensor:
        """Return the states [n, H] of the target's last layer, [n, 1, H]."""
        return states[:, 0]

    def forward(
        self,
        tokens: Tensor,
        before: Tensor,
        positions: Tensor,
        masks: Mapping[Any, Tensor],
        cache: Any = None,
    ) -> Tensor:
        """Compute the states of tokens, [B, q, H]; see `HeadNet.forward`."""
        parts = [self.token_norm(self.embed_tokens(tokens)), self.state_norm(before)]
        joined = self.fc(torch.cat(parts[::-1] if self._layout.states_first else parts, -1))
        made: Tensor = self.block(
            joined,
            attention_mask=masks["full_attention"],
            position_embeddings=self.rotary(joined, positions),
            position_ids=positions,
            past_key_values=cache,
        )
        return made

    def finished(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits, and what recurs; see `HeadNet.finished`."""
        normed = self.norm(states)
        return self.lm_head(normed), normed if self._layout.normed else states
