"""Trace a model of transformers for flat batches, and name and write the result.

Each layer's attention and recurrence becomes a placeholder in the graph, since the operators that
take their place, as `PagedAttentionExtension`, cannot be written to a file; see `paged`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from copy import deepcopy
from dataclasses import asdict, dataclass
from io import StringIO
from typing import Any

import torch
import transformers
from torch import Tensor
from torch.nn import Module
from transformers import AttentionInterface
from transformers.integrations.moe import ExpertsInterface
from transformers.masking_utils import AttentionMaskInterface

from ...config.sources import Weights
from ...errors import ModelError, missing
from .. import kept
from ..transformers.twin import twin
from .operators import placeholder
from .recurrent import Recurrence, Recurrences

with missing("openvino"):
    import openvino as ov
    from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder

_LOG = logging.getLogger(__name__)

GRAPH = "model.xml"
"""The file of a graph; its weights stand beside it."""

INPUTS = ("input_ids", "position_ids", "kept")
"""Tokens and their positions, int64 [T], and the tokens whose logits are wanted, int64 [K]."""

HIDDEN = "hidden."
"""The outputs after the logits: what each layer makes of all tokens, [T, D]; 0 is the embedding."""

_KIND = 7
"""Counts what the graphs have been."""

_PAGED = "outrider_paged"
"""The name under which transformers knows `_Attention`, and that experts are refused."""

_EXPERTS = "batched_mm"
"""The way of computing experts that is the same for every text."""

_SITES = "outrider_attention"
"""What a graph's own information has of its attention."""

_RECURRENCES = "outrider_recurrences"
"""What it has of its recurrences."""


@dataclass(frozen=True, slots=True)
class Site:
    """The attention of one layer.

    Attributes:
        name: of its placeholder.
        heads, kv_heads: how many of queries, and of keys and values.
        key_width, value_width: of one head.
        scaling: of the products of queries and keys.
        window: how many of the last tokens a token sees, itself included; 0 for all.
        sinks: logits that take a part of the weights, one for each head; empty for none.
    """

    name: str
    heads: int
    kv_heads: int
    key_width: int
    value_width: int
    scaling: float
    window: int
    sinks: Sequence[float]


def sites_of(graph: ov.Model) -> list[Site]:
    """Return the attention of a graph's layers, in order."""
    return [Site(**each) for each in json.loads(graph.get_rt_info(_SITES).astype(str))]


def recurrences_of(graph: ov.Model) -> list[Recurrence]:
    """Return the recurrences and convolutions of a graph's layers, in order."""
    return [Recurrence(**each) for each in json.loads(graph.get_rt_info(_RECURRENCES).astype(str))]


class _Attention:
    """Attention as a model is traced: notes what each layer asks for.

    Attributes:
        sites: of the layers so far.
        refused: why it cannot be computed over blocks; empty if it can.
    """

    def __init__(self) -> None:
        self.sites: list[Site] = []
        self.refused = ""

    def refuse(self, why: str) -> None:
        """Say why a model cannot be computed, and end its tracing."""
        self.refused = why
        raise ValueError(why)

    def experts(self, *_: Any) -> None:
        """Compute no experts: a graph would have those of one text."""
        way = f"experts_implementation={_EXPERTS!r} can be traced"
        self.refuse(f"it computes other experts for other texts; {way}")

    def __call__(
        self,
        module: Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None = None,
        scaling: float | None = None,
        sliding_window: int | None = None,
        softcap: float | None = None,
        s_aux: Tensor | None = None,
        **more: Any,
    ) -> tuple[Tensor, None]:
        """Turn queries [1, heads, T, width], keys and values into [1, T, heads, width]."""
        if softcap is not None:
            self.refuse("its attention has soft caps")
        if attention_mask is not None:
            self.refuse("it makes attention masks of its own")
        for name, each in more.items():
            if isinstance(each, Tensor) and name != "position_ids":
                self.refuse(f"its attention takes {name}")
        heads, kv_heads, width = int(query.shape[1]), int(key.shape[1]), int(query.shape[3])
        site = Site(
            name=f"attention.{len(self.sites)}",
            heads=heads,
            kv_heads=kv_heads,
            key_width=width,
            value_width=int(value.shape[3]),
            scaling=width**-0.5 if scaling is None else float(scaling),
            window=sliding_window or 0,
            sinks=() if s_aux is None else tuple(s_aux.detach().float().tolist()),
        )
        self.sites.append(site)

        def made(one: Tensor, _: Tensor, __: Tensor) -> Tensor:
            return one.new_zeros(1, one.shape[0], heads, site.value_width)

        flat = [each.transpose(1, 2).flatten(2)[0] for each in (query, key, value)]
        return placeholder(site.name, 1, (heads, site.value_width), made, flat), None


class _Traced(Module):
    """A model as the graph is to be: flat tokens in, logits of some of them and all states out."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self._model = model

    def forward(self, input_ids: Tensor, position_ids: Tensor, kept: Tensor) -> tuple[Tensor, ...]:
        """Return logits [K, V], and hidden states [T, D] of each layer, the embedding first."""
        found = self._model(
            input_ids=input_ids[None],
            position_ids=position_ids[None],
            use_cache=False,
            logits_to_keep=kept,
            output_hidden_states=True,
        )
        return found.logits[0], *(states[0] for states in found.hidden_states)


def converted(model: Any, weights: Weights | None, layers: int) -> ov.Model:
    """Convert a model.

    Args:
        model: of transformers, in evaluation mode. A narrow one is traced as it is in float32.
        weights: to what they are rounded; None leaves them.
        layers: how many it has.

    Raises:
        ModelError: it cannot be traced, or attention over blocks cannot compute it.
        MissingExtraError: weights are to be rounded and nncf is not installed.
    """
    _LOG.info("converting %s to OpenVINO, once", type(model).__name__)
    if weights is None:
        return _convert(model, layers)
    with missing("nncf"):
        import nncf
    graph = _convert(model, layers)
    _LOG.info("rounding its weights to %s", weights)
    return _rounded(graph, weights, nncf)


def _convert(model: Any, layers: int) -> ov.Model:
    example = torch.arange(6) % 3, torch.arange(6), torch.arange(6)
    attention, recurrences = _Attention(), Recurrences()
    AttentionInterface.register(_PAGED, attention)
    AttentionMaskInterface.register(_PAGED, lambda *_, **__: None)
    ExpertsInterface.register(_PAGED, attention.experts)
    try:
        # Tracing warns of each value that it takes for a constant; the kit checks what comes of it.
        with (
            torch.inference_mode(),
            warnings.catch_warnings(action="ignore"),
            _quiet("transformers"),
        ):
            wide = model if model.dtype == torch.float32 else Module.float(deepcopy(model))
            wide = twin(wide, records=True)
            wide.set_attn_implementation(_PAGED)
            recurrences.enter(wide)
            if wide.config._experts_implementation != _EXPERTS:
                wide.set_experts_implementation(_PAGED)
            # Not traced a second time to compare: `_compare` does that on the result.
            decoder = TorchScriptPythonDecoder(
                _Traced(wide), example_input=example, trace_kwargs={"check_trace": False}
            )
            graph = ov.convert_model(decoder, example_input=example)
        if len(attention.sites) != layers:
            attention.refuse(f"{len(attention.sites)} of its {layers} layers call for attention")
    except Exception as error:
        # What tracing raises need not say why.
        why = attention.refused or f"{type(error).__name__}: {str(error).splitlines()[0]}"
        raise ModelError(
            f"{type(model).__name__} cannot be converted to OpenVINO ({why}); use TransformersModel"
        ) from error
    for name, port in zip(INPUTS, graph.inputs, strict=True):
        port.get_tensor().set_names({name})
        port.get_node().set_friendly_name(name)
        port.get_node().set_partial_shape(ov.PartialShape([-1]))
    for layer, port in enumerate(graph.outputs[1:]):
        port.get_tensor().set_names({f"{HIDDEN}{layer}"})
    graph.validate_nodes_and_infer_types()
    for key, sites in ((_SITES, attention.sites), (_RECURRENCES, recurrences.sites)):
        graph.set_rt_info(json.dumps([asdict(site) for site in sites]), key)
    return graph


def _rounded(graph: ov.Model, weights: Weights, nncf: Any) -> ov.Model:
    settings: dict[str, Any] = {"mode": nncf.CompressWeightsMode.INT8_ASYM}
    if weights == "int4":
        # Groups as near to nncf's 128 columns as each layer's width allows.
        narrower = nncf.AdvancedCompressionParameters(
            group_size_fallback_mode=nncf.GroupSizeFallbackMode.ADJUST
        )
        settings = {"mode": nncf.CompressWeightsMode.INT4_ASYM, "advanced_parameters": narrower}
    # Its progress bars go to standard output.
    with _quiet("nncf"), redirect_stdout(StringIO()):
        return nncf.compress_weights(graph, **settings)


@contextmanager
def _quiet(library: str) -> Iterator[None]:
    """Keep what a library logs meanwhile to errors, and the root logger as it is."""
    root, log = logging.getLogger(), logging.getLogger(library)
    levels, filters = (root.level, log.level), list(root.filters)
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        # OpenVINO's converter sets it up for itself.
        root.setLevel(levels[0])
        root.filters[:] = filters
        log.setLevel(levels[1])


def key_of(model: Any, weights: Weights | None, fingerprint: str | None) -> str:
    """Name a conversion by all that it depends on; without a fingerprint all weights are hashed."""
    versions = ov.__version__, torch.__version__, transformers.__version__, _KIND
    kind = f"{type(model).__module__}.{type(model).__qualname__}"
    config = {name: each for name, each in model.config.to_dict().items() if name[0] != "_"}
    return kept.key_of(
        versions, kind, str(model.dtype), weights, config, fingerprint or _hashed(model)
    )


def _hashed(model: Any) -> str:
    """Hash all weights of a model."""
    digest = hashlib.blake2b(digest_size=20)
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
