"""Attention that folds the query groups of grouped-query attention into the query axis.

With an explicit mask the usual path repeats every key and value head for each query head of its
group, which copies the whole cache at every layer of every forward. Here the g query heads that
share a key head become g * q queries of that one head: the same products, and nothing is copied.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface

NAME = "outrider"


def grouped_attention(
    module: torch.nn.Module,  # noqa: ARG001 - as transformers calls it
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Compute masked attention, in the form that transformers' attention interface asks for.

    Queries [B, g * H, q, D], keys [B, H, span, D], values [B, H, span, D'] and an additive mask [B
    or 1, 1, q, span] give [B, q, g * H, D'], and None for the weights. Nothing is dropped out.
    """
    batch, heads, length, width = query.shape
    groups = heads // key.shape[1]
    if groups > 1:
        query = query.reshape(batch, key.shape[1], groups * length, width)
        if length > 1:
            attention_mask = attention_mask.repeat(1, 1, groups, 1)
    output = scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, scale=scaling
    )
    return output.reshape(batch, heads, length, -1).transpose(1, 2).contiguous(), None


def register() -> None:
    """Make the attention known to transformers under `NAME`, with additive masks beside it."""
    AttentionInterface.register(NAME, grouped_attention)
    AttentionMaskInterface.register(NAME, ALL_MASK_ATTENTION_FUNCTIONS["eager"])
