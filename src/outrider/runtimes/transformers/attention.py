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
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface

from . import team
from .ragged import Ragged
from .slot_cache import Span

if team.AVAILABLE:
    from . import host_attention

NAME = "outrider"


def packed_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Masked attention, in the form transformers' attention interface asks for.

    Args:
        module: the attention layer.
        query: [B, g * H, q, D].
        key: [B, H, span, D].
        value: [B, H, span, D'].
        attention_mask: additive, [B or 1, 1, q, span], or [B or 1, 1, g * q, span] if it has been
            repeated for the groups already. Without one attention is causal, as when the model is
            called without a slot cache.
        scaling: multiplies the products; 1 / sqrt(D) if None.
        dropout: must be 0; inference only.
        softcap: bounds the scores to (-softcap, softcap) by tanh, as Gemma 2 does.
        s_aux: [g * H] logits of a sink that takes attention and gives nothing, as in GPT-OSS.

    Returns:
        [B, q, g * H, D'] contiguous, and None for the weights.
    """
    plain = softcap is None and s_aux is None
    if attention_mask is None and plain:
        output: Tensor = sdpa_attention_forward(
            module, query, key, value, None, scaling=scaling, dropout=dropout, **kwargs
        )[0]
        return output, None
    batch, heads, length, width = query.shape
    if attention_mask is None:
        future = torch.ones(length, key.shape[2], dtype=torch.bool, device=query.device)
        future = future.triu(key.shape[2] - length + 1)
        attention_mask = query.new_zeros(future.shape).masked_fill(future, -torch.inf)[None, None]
    groups = heads // key.shape[1]
    if groups > 1:
        query = query.reshape(batch, key.shape[1], groups * length, width)
        if length > 1 and attention_mask.shape[2] == length:
            attention_mask = attention_mask.repeat(1, 1, groups, 1)
    if plain:
        output = scaled_dot_product_attention(
            query, key, value, attn_mask=attention_mask, scale=scaling
        )
    else:
        output = _explicit_attention(query, key, value, attention_mask, scaling, softcap, s_aux)
    return output.reshape(batch, heads, length, -1).transpose(1, 2).contiguous(), None


def of_any_rows(
    module: torch.nn.Module,
    query: Tensor,
    span: Span,
    attention_mask: Tensor,
    scaling: float,
    ragged: Ragged | None,
    *,
    loops: bool,
) -> Tensor:
    """Masked attention of whole or ragged rows, by compiled loops where they are made for it.

    Args:
        module, query, attention_mask, scaling: see `packed_attention`.
        span: the keys and values that are read.
        ragged: which columns are computed; None for all.
        loops: whether loops can be run and are faster on this machine.

    Returns:
        [B, q, g * H, D'] or [B, q, g * H * D'], of ragged rows [1, n, g * H * D'].
    """
    if loops and host_attention.fits(query, span, attention_mask):
        return host_attention.attention(query, span, attention_mask, scaling, ragged)
    key, value = span.gathered()
    if ragged is not None:
        return ragged_attention(module, query, key, value, attention_mask, ragged, scaling)
    return packed_attention(module, query, key, value, attention_mask, scaling)[0]


def ragged_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    ragged: Ragged,
    scaling: float,
) -> Tensor:
    """`packed_attention` of ragged rows: of the columns that all have at once, then of the others.

    Args:
        module, key, value, scaling: see there.
        query: [B, g * H, W, D], of which what is not computed is left alone.
        attention_mask: additive, [B, 1, W or g * W, span].
        ragged: which columns are computed.

    Returns:
        Of these alone, [1, n, g * H * D'].
    """
    first, (batch, heads, length, _) = ragged.together, query.shape
    mixed = query.new_empty(batch, length, heads, value.shape[3])
    parts = [(slice(batch), slice(first))]
    parts += [(slice(row, row + 1), slice(first, own)) for row, own in ragged.longer]
    for rows, columns in parts:
        mixed[rows, columns], _ = packed_attention(
            module,
            query[rows, :, columns],
            key[rows],
            value[rows],
            attention_mask[rows, :, columns],
            scaling,
        )
    return ragged.packed(mixed.flatten(2))


def _explicit_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    scaling: float | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Attention written out, for what the fused kernel has no argument for."""
    scores = query @ key.transpose(-1, -2) * (scaling or query.shape[-1] ** -0.5)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, -torch.inf)
    scores = scores + mask
    wide = torch.promote_types(torch.float32, query.dtype)
    if sinks is None:
        return scores.softmax(-1, dtype=wide).to(query.dtype) @ value
    batch, kv_heads, packed, _ = scores.shape
    per_query = sinks.view(kv_heads, -1, 1).expand(-1, -1, packed * kv_heads // sinks.numel())
    sink = per_query.reshape(1, kv_heads, packed, 1).expand(batch, -1, -1, -1).to(scores.dtype)
    weights = torch.cat([scores, sink], -1).softmax(-1, dtype=wide)
    return weights[..., :-1].to(query.dtype) @ value


def register() -> None:
    """Make the attention known to transformers under `NAME`, with sdpa's masks beside it."""
    AttentionInterface.register(NAME, packed_attention)
    AttentionMaskInterface.register(NAME, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
