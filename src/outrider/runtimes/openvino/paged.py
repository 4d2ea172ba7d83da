"""Attention over blocks and recurrences in a graph, compiled for this machine, and its calls."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from ...errors import missing
from ..blocks import SIZE, BlockCopy
from ..flat import FlatBatch, Outputs, rows_of
from .convert import HIDDEN, INPUTS, Site, recurrences_of, sites_of
from .recurrent import ROWS, operator
from .state_rows import StateRows

with missing("openvino"):
    import openvino as ov
    import openvino.opset13 as ops
    from openvino.op import _PagedAttentionExtension

Precision = Literal["float32", "bfloat16"]
Array = NDArray[Any]

KvType = Literal["uint8"]

_TYPES = {"float32": ov.Type.f32, "bfloat16": ov.Type.bf16, "uint8": ov.Type.u8}

_SMALL = 2**30
"""Bytes of weights up to which a graph is compiled twice."""

_TABLES = (
    "past_lens",
    "subsequence_begins",
    "block_indices",
    "block_indices_begins",
    "max_context_len",
    "qq_bias",
    "qq_bias_begins",
)
"""What attention has to know of a flat batch."""

_NO_TREES = np.zeros(0, np.uint8), np.zeros(0, np.int32)


def page(graph: ov.Model, layers: Sequence[int] = ()) -> ov.Model:
    """Put operators in the place of a graph's placeholders, and add their inputs.

    Of hidden states those of some layers stay.
    """
    wanted = {f"{HIDDEN}{layer}" for layer in layers}
    for result in graph.get_results():
        names = result.input_value(0).get_names()
        if any(name.startswith(HIDDEN) for name in names) and not wanted & names:
            graph.remove_result(result)
    shared = {name: _table(name) for name in _TABLES}
    added = list(shared.values())
    holes = {node.get_friendly_name(): node for node in graph.get_ops()}
    for layer, site in enumerate(sites_of(graph)):
        caches = [
            _parameter(f"{what}.{layer}", ov.Type.dynamic, [-1] * 4) for what in ("key", "value")
        ]
        added += caches
        given = [holes[site.name].input_value(place) for place in range(3)]
        node = _attention(site, given, caches, shared)
        holes[site.name].output(0).replace(node.output(0))
    recurrences = recurrences_of(graph)
    if recurrences:
        rows = [_parameter(name, ov.Type.i32, [-1]) for name in ROWS]
        added += rows
        tables = [each.output(0) for each in (shared["subsequence_begins"], *rows)]
        for number, recurrence in enumerate(recurrences):
            states = _parameter(f"state.{number}", ov.Type.f32, [-1, *recurrence.table])
            added.append(states)
            hole = holes[recurrence.name]
            hole.output(0).replace(operator(recurrence, hole, states, tables).output(0))
    graph.add_parameters(added)
    graph.validate_nodes_and_infer_types()
    return graph


def _attention(
    site: Site, given: Sequence[ov.Output], caches: Sequence[ov.Node], shared: dict[str, ov.Node]
) -> ov.Node:
    """Make the operator of one layer, whose 28 inputs go by their places."""

    def number(value: float, kind: type = np.int32) -> ov.Output:
        return ops.constant(np.array(value, kind)).output(0)

    def empty(*shape: int, kind: type = np.int32) -> ov.Output:
        return ops.constant(np.zeros(shape or (0,), kind)).output(0)

    floats = empty(kind=np.float32)
    tables = {name: node.output(0) for name, node in shared.items()}
    sinks = np.array(site.sinks, np.float32).reshape(1, -1, 1, 1)
    node = _PagedAttentionExtension(
        [
            *given,
            *(cache.output(0) for cache in caches),
            *(tables[name] for name in _TABLES[:4]),
            number(site.scaling, np.float32),
            number(site.window),
            floats,  # slopes of ALiBi
            tables["max_context_len"],
            empty(),  # a window of scores
            *(empty(), empty(0, 0), empty(0, 0, kind=np.float32)),  # rotation of keys
            *(floats, number(0), number(0)),  # sparse attention
            ops.constant(sinks).output(0) if site.sinks else floats,
            *(number(0), empty(), empty(), empty()),  # eviction
            empty(),  # types of tokens
            tables["qq_bias"],
            tables["qq_bias_begins"],
        ]
    )
    info = node.get_rt_info()
    info["num_k_heads"], info["k_head_size"] = site.kv_heads, site.key_width
    info["num_v_heads"], info["v_head_size"] = site.kv_heads, site.value_width
    return node


def _table(name: str) -> ov.Node:
    kind = ov.Type.u8 if name == "qq_bias" else ov.Type.i32
    return _parameter(name, kind, [] if name == "max_context_len" else [-1])


def _parameter(name: str, kind: ov.Type, shape: Sequence[int]) -> ov.Node:
    made = ops.parameter(ov.PartialShape(list(shape)), kind, name=name)
    made.output(0).get_tensor().set_names({name})
    return made


class PagedGraph:
    """A graph with attention over blocks, compiled for this machine.

    OpenVINO lays a graph out anew whenever a shape of its inputs changes. In small models that
    takes as long as the forward itself. These are compiled for single tokens, and for several.

    Args:
        graph: with placeholders, as `converted` made it or as it was read.
        precision: of products, where the processor has it.
        kv_dtype: of keys and values; None is that of the products. In 8 bits each token's have a
            scale of their own, so that what a rejected draft leaves does not change the others'.
        layers: whose hidden states it gives; 0 is the embedding.

    Attributes:
        window: the fewest tokens that a layer sees; 0 where all layers see all.
        caches: the inputs for keys and values of the layers in turn.
        states: those for states of recurrent layers in turn.
    """

    def __init__(
        self,
        graph: ov.Model,
        precision: Precision,
        kv_dtype: KvType | None = None,
        layers: Sequence[int] = (),
    ) -> None:
        windows = [site.window for site in sites_of(graph) if site.window]
        self.window = min(windows, default=0)
        settings = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": _TYPES[precision].get_type_name(),
            "KV_CACHE_PRECISION": _TYPES[kv_dtype or precision].get_type_name(),
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        }
        if kv_dtype == "uint8":
            settings["KEY_CACHE_QUANT_MODE"] = "BY_TOKEN"
        constants = (node for node in graph.get_ops() if node.get_type_name() == "Constant")
        small = sum(node.get_byte_size() for node in constants) <= _SMALL
        paged, core = page(graph.clone(), layers), ov.Core()
        with ThreadPoolExecutor() as pool:
            made = [
                pool.submit(core.compile_model, paged, "CPU", settings) for _ in range(1 + small)
            ]
        self.compiled = [each.result() for each in made]
        ports = {port.get_any_name(): port for port in self.compiled[0].inputs}
        self.states = [port for name, port in ports.items() if name.startswith("state.")]
        self.caches = [port for name, port in ports.items() if name.startswith(("key.", "value."))]

    @property
    def precision(self) -> Precision:
        """The type of its products, as compiled: not every processor has each."""
        kind = self.compiled[0].get_property("INFERENCE_PRECISION_HINT")
        return "bfloat16" if kind == ov.Type.bf16 else "float32"

    @property
    def quantises(self) -> bool:
        """Whether activations are rounded to 8 bits where they meet rounded weights."""
        return int(self.compiled[0].get_property("DYNAMIC_QUANTIZATION_GROUP_SIZE")) > 0

    @property
    def block_bytes(self) -> int:
        """Bytes of one block in all layers."""
        return _bytes(self.caches)

    @property
    def state_bytes(self) -> int:
        """Bytes of one row of the states of all layers."""
        return _bytes(self.states)


class PagedRun:
    """Calls of a compiled graph, with blocks of their own, one at a time.

    Args:
        graph: what is called.
        blocks: how many blocks there are.
        rows: of the states of recurrent layers; None for a model that has none.
        other: whose blocks and states these are; None for new ones.
    """

    def __init__(
        self,
        graph: PagedGraph,
        blocks: int,
        rows: StateRows | None = None,
        other: PagedRun | None = None,
    ) -> None:
        self._requests = [compiled.create_infer_request() for compiled in graph.compiled]
        self._places = {p.get_any_name(): i for i, p in enumerate(graph.compiled[0].inputs)}
        self._blocks, self._rows = blocks, rows
        self._held: dict[tuple[int, str], Array] = {}
        if other is None:
            self._stored = _zeros(graph.caches, blocks)
            self._states = _zeros(graph.states, rows.count if rows else 0)
        else:
            self._stored = other._stored[: len(graph.caches)]
            self._states = other._states[: len(graph.states)]
        ports = zip((*graph.caches, *graph.states), (*self._stored, *self._states), strict=True)
        for port, array in ports:
            tensor = ov.Tensor(array, ov.Shape(array.shape), port.element_type)
            for request in self._requests:
                request.set_input_tensor(self._places[port.get_any_name()], tensor)

    def beside(self, graph: PagedGraph) -> PagedRun:
        """Make calls of a graph of the first layers, over the same blocks."""
        return PagedRun(graph, self._blocks, self._rows, self)

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """Copy the first tokens of blocks."""
        for copy in copies:
            for stored in self._stored:
                stored[copy.target, :, : copy.tokens] = stored[copy.source, :, : copy.tokens]

    def __call__(self, batch: FlatBatch) -> Outputs:
        """Compute a batch; see `PagedModel.forward`."""
        counts, begins = batch.missing + batch.drafted, batch.begins
        ends = batch.past + counts
        tables = [
            table[: -(-end // SIZE)] for table, end in zip(batch.tables, ends.tolist(), strict=True)
        ]
        nodes = batch.drafted + 1 - batch.first
        first = begins[:-1] + batch.missing - 1 + batch.first
        row, node = rows_of(nodes)
        bias = _NO_TREES if batch.ancestors is None else _trees(batch, counts)
        given = {
            **dict(zip(INPUTS, (batch.tokens.numpy(), batch.positions.numpy()), strict=False)),
            "kept": first[row] + node,
            "past_lens": batch.past.astype(np.int32),
            "subsequence_begins": begins.astype(np.int32),
            "block_indices": np.concatenate(tables).astype(np.int32),
            "block_indices_begins": np.cumsum([0, *map(len, tables)]).astype(np.int32),
            "max_context_len": np.array(ends.max(), np.int32),
            "qq_bias": bias[0],
            "qq_bias_begins": bias[1],
        }
        if self._rows is not None:
            given |= zip(ROWS, self._rows.placed(batch), strict=True)
        which = min(int(counts.max() > 1), len(self._requests) - 1)
        request = self._requests[which]
        for name, array in given.items():
            self._held[which, name] = held = np.asarray(array, order="C")
            request.set_input_tensor(self._places[name], ov.Tensor(held, shared_memory=True))
        request.infer()
        # By NumPy: torch would wake threads of its own beside OpenVINO's.
        found, width = request.get_output_tensor(0).data, batch.width + 1 - batch.first
        if len(found) != len(row):
            raise RuntimeError(f"logits of {len(found)} tokens in place of {len(row)}")
        states = [request.get_tensor(f"{HIDDEN}{layer}").data for layer in batch.layers]
        hidden = torch.from_numpy(np.stack(states, 1)) if states else None
        if (nodes == width).all():
            return Outputs(torch.from_numpy(found.copy()).view(len(nodes), width, -1), hidden)
        made = np.zeros((len(nodes), width, found.shape[1]), found.dtype)
        made[row, node] = found
        return Outputs(torch.from_numpy(made), hidden)


def _trees(batch: FlatBatch, counts: NDArray[np.int64]) -> tuple[Array, Array]:
    """Say which new tokens each sees, of each row [n, n] and flat: itself and its ancestors."""
    assert batch.ancestors is not None
    masks = []
    pairs = zip(batch.missing.tolist(), counts.tolist(), strict=True)
    for own, (known, count) in zip(batch.ancestors.numpy(), pairs, strict=True):
        mask = np.tri(count, dtype=np.uint8)
        mask[known:, known:] = own[: count - known, : count - known]
        masks.append(mask.ravel())
    begins = np.cumsum([0, *(len(mask) for mask in masks)]).astype(np.int32)
    return np.concatenate(masks), begins


def _bytes(ports: Sequence[ov.Output]) -> int:
    return sum(int(np.prod(_shape(port, 1))) * port.element_type.size for port in ports)


def _zeros(ports: Sequence[ov.Output], count: int) -> list[Array]:
    """Make tables of so many blocks or rows, whose memory is taken as it is written to."""
    kinds = [np.dtype(f"u{port.element_type.size}") for port in ports]
    return [np.zeros(_shape(port, count), kind) for port, kind in zip(ports, kinds, strict=True)]


def _shape(port: ov.Output, blocks: int) -> list[int]:
    """The shape of a cache of so many blocks."""
    return [blocks, *(each.get_length() for each in list(port.partial_shape)[1:])]
