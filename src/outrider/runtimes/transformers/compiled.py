"""A model's forward compiled by `torch.compile`, over the slot cache as plain tensors.

Two graphs serve every forward of one row: one for a single token, one for several. How many tokens
there are and how many columns are read are symbols of the graphs, so that nothing is compiled again
while texts grow and drafts vary. What a graph writes to is a slot at its full capacity, which
therefore never grows.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from time import perf_counter
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch._dynamo import mark_dynamic
from transformers import Cache

from ...errors import ModelError
from .slot_cache import SlotCache
from .views import View, Views

WIDEST = 64
"""The most tokens of a compiled forward. Longer ones are prompts, where compiling gains little."""

_START = 8
"""Where tokens are computed to compile."""

_Step = Callable[[Tensor, Tensor, Any, Tensor, Sequence[Tensor], Sequence[Tensor]], Tensor]


class CompiledForward:
    """The compiled graphs of one model and its cache. All are compiled when it is made.

    Every graph is compared with the eager forward before it is used, at small sizes and large ones.

    Args:
        hf_model: the model.
        cache: its slots, all of them free, reserved to the full: compiled for its capacity.
        views: what makes the views of the model's forwards.
        vocab_size: width of the logits.
        max_length: no position reaches it.

    Attributes:
        compile_s: seconds that compiling took, comparisons included.

    Raises:
        ModelError: the model cannot be compiled; the message says why.
    """

    def __init__(
        self, hf_model: Any, cache: SlotCache, views: Views, vocab_size: int, max_length: int
    ) -> None:
        self.capacity = cache.capacity
        self._slots = [cache.whole(slot) for slot in range(cache.slots)]
        start = perf_counter()
        try:
            self._one = self._tried(hf_model, views, vocab_size, max_length, (1,))
            self._several = self._tried(hf_model, views, vocab_size, max_length, (5, 2, WIDEST))
        except Exception as error:
            raise ModelError(
                f"{type(hf_model).__name__} cannot be compiled ({type(error).__name__}: "
                f"{_first_line(error)})"
            ) from error
        finally:
            cache.clear(0)
        self.compile_s = perf_counter() - start

    def _tried(
        self, hf_model: Any, views: Views, vocab_size: int, max_length: int, widths: Sequence[int]
    ) -> _Step:
        """A graph made with the first width, compared with the eager forward at all of them."""
        device = hf_model.device
        ids = torch.arange(max(widths), device=device)[None] % vocab_size
        chain = views.chain([_START], widths[0])
        compiled, eager = _compiled(hf_model, ids[:, : widths[0]], chain, self._slots[0])
        for width in widths:
            bush = torch.eye(width + 1, dtype=torch.bool, device=device)[None]
            tokens = ids[:, :width].clone()
            for start in (0, _START, max(0, max_length - width)):
                for view in (views.chain([start], width), views.tree([start], bush, width)):
                    given = tokens, view.positions, _dense(view), view.columns
                    found = compiled(*given, *self._slots[0])
                    _compare(found, eager(*given, *self._slots[0]))
        return compiled

    def serves(self, slots: Sequence[int], width: int) -> bool:
        """Whether there is a graph for `width` tokens in each of these slots."""
        return len(slots) == 1 and width <= WIDEST

    def __call__(self, slot: int, tokens: Tensor, view: View) -> Tensor:
        """Compute columns [1, q] of a slot, and the logits [1, q, V] of all of them."""
        step = self._one if tokens.shape[1] == 1 else self._several
        return step(tokens, view.positions, _dense(view), view.columns, *self._slots[slot])


class _OneRow(Cache):
    """One slot of the cache, in the middle of a forward that is compiled."""

    def __init__(
        self, keys: Sequence[Tensor], values: Sequence[Tensor], columns: Tensor, span: int
    ) -> None:
        super().__init__(layers=[])
        self._keys = keys
        self._values = values
        self._columns = columns
        self._span = span

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        layer_idx: int,
        *args: object,
        **kwargs: object,
    ) -> tuple[Tensor, Tensor]:
        """Write a layer's keys and values [1, heads, q, width], and return the span's."""
        keys, values = self._keys[layer_idx], self._values[layer_idx]
        keys[0, :, self._columns[0]] = key_states[0]
        values[0, :, self._columns[0]] = value_states[0]
        return keys[:, :, : self._span], values[:, :, : self._span]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Zero: positions are always given explicitly."""
        return 0

    def __len__(self) -> int:
        return len(self._keys)


def _compiled(
    hf_model: Any, tokens: Tensor, view: View, slot: tuple[Sequence[Tensor], Sequence[Tensor]]
) -> tuple[_Step, _Step]:
    """The forward compiled for as many tokens as these, or for any number if they are several.

    And the forward itself.
    """

    def step(
        tokens: Tensor,
        positions: Tensor,
        masks: Any,
        columns: Tensor,
        keys: Sequence[Tensor],
        values: Sequence[Tensor],
    ) -> Tensor:
        mask = next(iter(masks.values())) if isinstance(masks, dict) else masks
        logits: Tensor = hf_model(
            input_ids=tokens,
            attention_mask=masks,
            position_ids=positions,
            past_key_values=_OneRow(keys, values, columns, mask.shape[-1]),
            use_cache=True,
        ).logits
        return logits

    # Compiled code is kept by code object: one of its own, for what no guard tells apart.
    own = FunctionType(step.__code__.replace(), step.__globals__, "step", None, step.__closure__)
    graph: _Step = torch.compile(
        own, fullgraph=True, dynamic=False, options={"guard_filter_fn": _none}
    )
    # Tensors of their own: the graph of a chain, where both are one, would hold for chains alone.
    tokens, positions, columns = tokens.clone(), view.positions.clone(), view.columns.clone()
    masks = _dense(view)
    if tokens.shape[1] > 1:
        for tensor in (tokens, positions, columns):
            mark_dynamic(tensor, 1)
    for mask in masks.values() if isinstance(masks, dict) else (masks,):
        mark_dynamic(mask, 3)
        if tokens.shape[1] > 1:
            mark_dynamic(mask, 2)
    graph(tokens, positions, masks, columns, *slot)
    return graph, step


def _compare(found: Tensor, expected: Tensor) -> None:
    """Raise ModelError if logits are not those of the eager forward but for rounding."""
    scale = expected.abs().max().clamp(min=1e-9)
    error = float((found - expected).abs().max() / scale)
    # Models of wider dtypes normalise in float32 too, and a compiled sum is made in another order.
    allowed = max(torch.finfo(expected.dtype).eps, torch.finfo(torch.float32).eps) ** 0.75
    if not error <= allowed:
        raise ModelError(
            f"its logits have a relative error of {error:.2g}, where {allowed:.2g} is allowed"
        )


def _dense(view: View) -> Tensor | dict[str, Tensor]:
    """A view's masks [1, 1, q, span], not repeated for query groups, strides as sizes tell."""
    masks, length = view.masks, view.positions.shape[1]
    if isinstance(masks, Tensor):
        return masks[:, :, :length].contiguous()
    return {kind: mask[:, :, :length].contiguous() for kind, mask in masks.items()}


def _none(guards: Sequence[Any]) -> list[bool]:
    """Which conditions are looked at before each call: looking would take longer than a layer.

    What is given to a graph differs in nothing but sizes, and those were tried.
    """
    return [False] * len(guards)


def require_compiler(device: torch.device) -> None:
    """Raise ModelError if graphs for the device are made by a C++ compiler and there is none."""
    usual = {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")
    wanted = os.environ.get("CXX", usual)
    if device.type == "cpu" and shutil.which(wanted) is None:
        raise ModelError(
            f"compile=True needs a C++ compiler, and {wanted!r} was not found; install one (such "
            "as g++), name it in the environment variable CXX, or do not compile"
        )


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0]
