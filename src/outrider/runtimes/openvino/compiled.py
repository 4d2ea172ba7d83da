"""A converted graph, compiled for this machine, and called as a model of transformers is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from ...errors import missing
from .. import kept
from ..transformers.slot_cache import SlotCache
from .convert import Layers

with missing("openvino"):
    import openvino as ov

Precision = Literal["float32", "bfloat16"]

_NAMES = {"float32": "f32", "bfloat16": "bf16"}

_SMALL = 2**30
"""Bytes of weights up to which a graph is compiled twice."""

_STEP = 8
"""The second graph computes a token and multiples of so many drafts."""


def compile_graph(source: ov.Model | Path, precision: Precision) -> tuple[ov.CompiledModel, ...]:
    """Compile a graph that `converted` made, once or twice.

    OpenVINO lays a graph out anew whenever a shape of its inputs changes. In small models that
    takes as long as the forward itself. These are compiled for single tokens, and for several.

    Args:
        source: the graph; or its file, beside which OpenVINO keeps what it compiles twice.
        precision: of products, where the processor has it.
    """
    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": _NAMES[precision],
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
    }
    core = ov.Core()
    graph = core.read_model(source) if isinstance(source, Path) else source
    constants = (node for node in graph.get_ops() if node.get_type_name() == "Constant")
    small = sum(node.get_byte_size() for node in constants) <= _SMALL
    if small and isinstance(source, Path):
        settings["CACHE_DIR"] = str(source.parent / kept.DERIVED / precision)
    return tuple(core.compile_model(source, "CPU", settings) for _ in range(1 + small))


class CompiledRun:
    """A compiled graph, called as a model of transformers is, one call at a time.

    Args:
        compiled: for single tokens and for several; or once, for both.
        kinds: the names of the masks that it takes.
        layers: keys and values of one token in each layer.
    """

    def __init__(
        self,
        compiled: Sequence[ov.CompiledModel],
        kinds: tuple[str | None, ...],
        layers: Layers,
    ) -> None:
        self._compiled = compiled
        self._requests = [_Request(each) for each in compiled]
        self._kinds = kinds
        self._layers = layers

    @property
    def precision(self) -> Precision:
        """The type of its products, as compiled: not every processor has each."""
        kind = self._compiled[0].get_property("INFERENCE_PRECISION_HINT")
        return "bfloat16" if kind == ov.Type.bf16 else "float32"

    @property
    def quantises(self) -> bool:
        """Whether activations are rounded to 8 bits where they meet rounded weights."""
        return int(self._compiled[0].get_property("DYNAMIC_QUANTIZATION_GROUP_SIZE")) > 0

    def another(self) -> CompiledRun:
        """The same graph, called independently of this one."""
        return CompiledRun(self._compiled, self._kinds, self._layers)

    def __call__(
        self,
        *,
        input_ids: Tensor,
        attention_mask: Tensor | dict[str | None, Tensor] | None = None,
        position_ids: Tensor | None = None,
        past_key_values: SlotCache | None = None,
        use_cache: bool = True,
        logits_to_keep: int = 0,
    ) -> Any:
        """Compute logits, and write the new keys and values to the cache if there is one."""
        rows, width = input_ids.shape
        several = width > 1 and len(self._requests) > 1
        more = (1 - width) % _STEP if several else 0
        kept = np.arange(width - (logits_to_keep or width), width)
        past: Sequence[Tensor]
        if past_key_values is None:
            causal = torch.full((rows, 1, width, width), -torch.inf).triu(1)
            masks = [_padded(causal, more)] * len(self._kinds)
            past = [
                each[:, :, :0].expand(rows, -1, -1, -1) for layer in self._layers for each in layer
            ]
            position_ids = torch.arange(width).repeat(rows, 1)
        else:
            past, columns = past_key_values.gather()
            given: Any = attention_mask
            each = [given if kind is None else given[kind] for kind in self._kinds]
            masks = [_padded(_beside(mask, columns, past[0].shape[2]), more) for mask in each]
        assert position_ids is not None
        ids, positions = pad(input_ids, (0, more)), pad(position_ids, (0, more))
        request = self._requests[several]
        request.infer([ids.numpy(), positions.numpy(), kept, *map(Tensor.numpy, masks)], past)
        logits = request.output(0)
        if logits.shape[:2] != (rows, len(kept)):
            raise RuntimeError(f"logits {logits.shape} of {rows} rows and {len(kept)} tokens")
        if past_key_values is not None:
            new = (request.output(1 + place) for place in range(len(past)))
            past_key_values.write([states[:, :, :width] for states in new])
        # The next forward writes over what the request holds.
        return SimpleNamespace(logits=logits.clone())


class _Request:
    """A compiled graph with the inputs of its last call."""

    def __init__(self, compiled: ov.CompiledModel) -> None:
        self._request = compiled.create_infer_request()
        self._past: Sequence[Tensor] = ()

    def infer(self, inputs: Sequence[NDArray[Any]], past: Sequence[Tensor]) -> None:
        """Compute the graph; all inputs are read where they are."""
        self._give(0, inputs)
        if past is not self._past:
            self._give(len(inputs), [each.numpy() for each in past])
            self._past = past
        self._request.infer()

    def output(self, place: int) -> Tensor:
        """Return an output of the last call, as it is until the next one."""
        return torch.from_numpy(self._request.get_output_tensor(place).data)

    def _give(self, first: int, arrays: Sequence[NDArray[Any]]) -> None:
        for place, array in enumerate(arrays, first):
            shared = ov.Tensor(np.ascontiguousarray(array), shared_memory=True)
            self._request.set_input_tensor(place, shared)


def _beside(mask: Tensor, columns: Tensor, held: int) -> Tensor:
    """Turn a mask over cache columns into one over earlier columns and then the new tokens.

    Args:
        mask: additive, [B, 1, q, span]; the new tokens stand in their columns.
        columns: of the new tokens, int64 [B, q].
        held: how many columns are handed over, at least span.

    Returns:
        [B, 1, q, held + q].
    """
    rows, _, width, span = mask.shape
    index = columns[:, None, None].expand(rows, 1, width, width)
    made = mask.new_full((rows, 1, width, held + width), -torch.inf)
    made[..., :span] = mask
    made[..., held:] = mask.gather(-1, index)
    made.scatter_(-1, index, -torch.inf)
    return made


def _padded(mask: Tensor, more: int) -> Tensor:
    """Add tokens to a mask [B, 1, q, n] that others do not see, and that see themselves."""
    if not more:
        return mask
    made = pad(mask, (0, more, 0, more), value=-torch.inf)
    made[..., -more:, -more:].diagonal(dim1=2, dim2=3).zero_()
    return made
