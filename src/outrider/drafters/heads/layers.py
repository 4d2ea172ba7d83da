"""The layers of draft heads, by the names that their checkpoints give them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Linear, Module
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding

from ...runtimes.transformers.attention import grouped_attention

Store = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]
"""Writes a layer's keys and values [B, heads, q, D], and returns all that the rows may see."""


def turns(rotary: LlamaRotaryEmbedding, positions: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cosines and sines [B, 1, q, D] that turn queries and keys by their positions.

    Args:
        rotary: of transformers, by the head's configuration.
        positions: int64 [B, q].
        like: of the type that is wanted.
    """
    cos, sin = rotary(like, positions)
    return cos[:, None], sin[:, None]


class Attention(Module):
    """Grouped-query attention over blocks.

    Args:
        config: of the decoder layers.
        width: of its input.
        normed: whether queries and keys are normed, as Qwen3's are.
    """

    def __init__(self, config: Any, width: int, *, normed: bool) -> None:
        super().__init__()
        heads, groups = config.num_attention_heads, config.num_key_value_heads
        self._size = getattr(config, "head_dim", None) or config.hidden_size // heads
        bias = bool(getattr(config, "attention_bias", False))
        self.q_proj = Linear(width, heads * self._size, bias=bias)
        self.k_proj = Linear(width, groups * self._size, bias=bias)
        self.v_proj = Linear(width, groups * self._size, bias=bias)
        self.o_proj = Linear(heads * self._size, config.hidden_size, bias=bias)
        if normed:
            self.q_norm = LlamaRMSNorm(self._size, config.rms_norm_eps)
            self.k_norm = LlamaRMSNorm(self._size, config.rms_norm_eps)
        self._normed = normed

    def forward(
        self, states: Tensor, turn: tuple[Tensor, Tensor], mask: Tensor, store: Store, layer: int
    ) -> Tensor:
        """Attend from states [B, q, width] to all that `store` returns.

        Args:
            states: of the new tokens.
            turn: see `turns`.
            mask: additive, [B, 1, q, span].
            store: keeps keys and values.
            layer: whose they are.
        """
        query = self._heads(self.q_proj(states))
        query = _turned(self.q_norm(query) if self._normed else query, turn)
        keys, values = store(*self.keys_and_values(states, turn), layer)
        found, _ = grouped_attention(self, query, keys, values, mask)
        made: Tensor = self.o_proj(found.flatten(2))
        return made

    def keys_and_values(self, states: Tensor, turn: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return keys and values [B, heads, q, D] of states [B, q, width]."""
        key, value = self._heads(self.k_proj(states)), self._heads(self.v_proj(states))
        return _turned(self.k_norm(key) if self._normed else key, turn), value

    def _heads(self, states: Tensor) -> Any:
        return states.unflatten(-1, (-1, self._size)).transpose(1, 2)


def layer_kinds(decoder: Any) -> list[str]:
    """Return the kind of each layer: "full_attention" or "sliding_attention"."""
    usual = ["full_attention"] * decoder.num_hidden_layers
    return list(getattr(decoder, "layer_types", None) or usual)


def _turned(states: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Turn states [B, heads, q, D], whose halves belong together."""
    cos, sin = turn
    one, other = states.chunk(2, -1)
    return states * cos + torch.cat([-other, one], -1) * sin
