"""Grouped-query attention over a long cache: the library's packed path against transformers' own.

One layer of the shape of Llama 3 8B verifies a round's tokens at 4,096 columns. It is measured
three times: the attention function by itself on equal tensors; with each side's cache written and
read around it; and as the whole layer, projections included, which cost both sides the same.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, LlamaConfig
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding

from outrider.runtimes.transformers import attention
from outrider.runtimes.transformers.slot_cache import LayerShape, SlotCache

from .assisted import snapshot
from .report import Report, Spread, add_row, columns

QUERY_HEADS, KV_HEADS, WIDTH, HIDDEN = 32, 8, 128, 4096
SPAN, QUERIES = 4096, 5
GOAL = 8.0
_WARM_UP = 2

Run = Callable[[], Tensor]


@dataclass(frozen=True, slots=True)
class Contest:
    """Two ways to one result: transformers' and ours, each ready to be timed.

    `prepare` makes what one timed call of transformers' way uses up, outside the time.
    """

    name: str
    prepare: Callable[[], Any]
    theirs: Callable[[Any], Tensor]
    ours: Run


class _Grouped(torch.nn.Module):
    """What transformers' attention function reads of its layer."""

    is_causal = True
    num_key_value_groups = QUERY_HEADS // KV_HEADS


@torch.inference_mode()
def run(rounds: int) -> Report:
    """Time both sides alternately, `rounds` times each."""
    torch.manual_seed(0)
    table = columns(
        "one attention layer, milliseconds: median (quartiles)",
        "",
        "transformers",
        "outrider",
        "ratio",
        "goal",
        "max abs difference",
    )
    rows: list[dict[str, Any]] = []
    for contest in (_function(), _with_cache(), _layer()):
        theirs, ours, error = _compete(contest, rounds)
        ratio = theirs.median / ours.median
        goal = f">= {GOAL:.0f}x" if not rows else ""
        add_row(table, contest.name, str(theirs), str(ours), f"{ratio:.1f}x", goal, f"{error:.1e}")
        rows.append(
            {
                "measured": contest.name,
                "transformers": theirs.figures(),
                "outrider": ours.figures(),
                "ratio": round(ratio, 2),
                "max_abs_difference": error,
            }
        )
    regime = (
        f"batch 1, float32, CPU, {QUERY_HEADS} query and {KV_HEADS} KV heads of width {WIDTH}, "
        f"q = {QUERIES} at {SPAN} columns (those {QUERIES} included), 4-D additive mask, "
        f"{rounds} calls a side, alternating"
    )
    return Report("attention", regime, table, {"regime": regime, "goal_ratio": GOAL, "rows": rows})


def _compete(contest: Contest, rounds: int) -> tuple[Spread, Spread, float]:
    theirs, ours, errors = [], [], []
    for index in range(_WARM_UP + rounds):
        prepared = contest.prepare()
        start = perf_counter()
        expected = contest.theirs(prepared)
        middle = perf_counter()
        found = contest.ours()
        end = perf_counter()
        errors.append((found - expected).abs().max())
        if index >= _WARM_UP:
            theirs.append(middle - start)
            ours.append(end - middle)
    return Spread.of(theirs), Spread.of(ours), float(torch.stack(errors).max())


def _function() -> Contest:
    """The attention function alone, on the same tensors."""
    module, mask = _Grouped(), _mask()
    query = torch.randn(1, QUERY_HEADS, QUERIES, WIDTH)
    keys, values = (torch.randn(1, KV_HEADS, SPAN, WIDTH) for _ in range(2))
    return Contest(
        "attention function",
        lambda: None,
        lambda _: sdpa_attention_forward(module, query, keys, values, mask)[0],
        lambda: attention.packed_attention(module, query, keys, values, mask)[0],
    )


def _with_cache() -> Contest:
    """The function with the cache around it: new columns written, all columns read."""
    module, mask = _Grouped(), _mask()
    dynamic, slots = _caches()
    query = torch.randn(1, QUERY_HEADS, QUERIES, WIDTH)
    new_keys, new_values = (torch.randn(1, KV_HEADS, QUERIES, WIDTH) for _ in range(2))

    def theirs(cache: Any) -> Tensor:
        keys, values = cache.update(new_keys, new_values, 0)
        output: Tensor = sdpa_attention_forward(module, query, keys, values, mask)[0]
        return output

    def ours() -> Tensor:
        keys, values = slots.update(new_keys, new_values, 0)
        return attention.packed_attention(module, query, keys, values, mask)[0]

    return Contest("with cache update", lambda: snapshot(dynamic), theirs, ours)


def _layer() -> Contest:
    """The whole attention layer: projections, rotary embedding, cache and attention."""
    attention.register()
    config = LlamaConfig(
        hidden_size=HIDDEN,
        num_attention_heads=QUERY_HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=WIDTH,
        num_hidden_layers=1,
        max_position_embeddings=2 * SPAN,
    )
    config._attn_implementation = "sdpa"
    packed_config = copy(config)
    packed_config._attn_implementation = attention.NAME
    layer = LlamaAttention(config, 0).eval()
    packed = LlamaAttention(packed_config, 0).eval()
    packed.load_state_dict(layer.state_dict(), assign=True)
    dynamic, slots = _caches()
    hidden, mask = torch.randn(1, QUERIES, HIDDEN), _mask()
    positions = torch.arange(SPAN - QUERIES, SPAN)[None]
    rotary = LlamaRotaryEmbedding(config)(hidden, positions)
    return Contest(
        "whole layer, with projections",
        lambda: snapshot(dynamic),
        lambda cache: layer(hidden, rotary, mask, cache)[0],
        lambda: packed(hidden, rotary, mask, slots)[0],
    )


def _mask() -> Tensor:
    """Additive, [1, 1, QUERIES, SPAN]: each query sees the columns up to its own."""
    own = torch.arange(SPAN - QUERIES, SPAN)[:, None]
    hidden = torch.arange(SPAN) > own
    return torch.zeros(1, 1, QUERIES, SPAN).masked_fill(hidden, -torch.inf)


def _caches() -> tuple[Any, SlotCache]:
    """Both sides' caches, holding the same columns before the new ones."""
    past = SPAN - QUERIES
    keys, values = (torch.randn(1, KV_HEADS, past, WIDTH) for _ in range(2))
    dynamic = DynamicCache()
    dynamic.update(keys, values, 0)
    shape = LayerShape(KV_HEADS, WIDTH, WIDTH)
    slots = SlotCache((shape,), 1, torch.float32, torch.device("cpu"))
    slots.reserve(SPAN)
    slots.aim([0], [0], past, SPAN, torch.arange(past)[None])
    slots.update(keys, values, 0)
    slots.aim([0], [past], QUERIES, SPAN, torch.arange(past, SPAN)[None])
    return dynamic, slots
