"""Trace a model of transformers with its cache as inputs, and name and write the result.

The graph takes the keys and values of earlier tokens, and gives those of the new ones beside the
logits. Rows, new tokens and earlier tokens are of any number.
"""

from __future__ import annotations

import hashlib
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from copy import deepcopy
from io import StringIO
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from torch.nn import Module
from transformers import AttentionInterface, Cache
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface

from ...config.sources import Weights
from ...errors import ModelError, missing
from .. import kept
from ..transformers import attention
from ..transformers.twin import twin

with missing("openvino"):
    import openvino as ov
    from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder

_LOG = logging.getLogger(__name__)

Layers = Sequence[tuple[Tensor, Tensor]]
"""Keys and values of one token in each layer, [1, heads, 1, width]."""


GRAPH = "model.xml"
"""The file of a graph; its weights stand beside it."""

_KIND = 3
"""Counts what the graphs have been."""

_SPLIT = "outrider_split"
"""The name under which transformers knows `_split_attention`."""


def _split_attention(
    module: Module,  # noqa: ARG001 - as transformers calls it
    query: Tensor,
    key: tuple[Tensor, Tensor],
    value: tuple[Tensor, Tensor],
    attention_mask: Tensor,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Compute masked attention over earlier tokens and new ones, without joining their keys.

    Joining would copy all that the cache holds, in every layer. Query heads that share a key head
    become queries of that one head.

    Args:
        module: unused.
        query: [B, g * H, q, D].
        key: [B, H, S, D] of earlier tokens and [B, H, q, D] of the new ones.
        value: likewise, of width D'.
        attention_mask: additive, [B, 1, q, S + q].
        scaling: of the products; None is 1 / sqrt(D).

    Returns:
        [B, q, g * H, D'], and None for the weights.
    """
    batch, heads, length, width = query.shape
    groups = heads // key[0].shape[1]
    query = query.reshape(batch, -1, groups * length, width) * (scaling or width**-0.5)
    scores = torch.cat([query @ each.transpose(2, 3) for each in key], 3)
    weights = (scores + attention_mask.repeat(1, 1, groups, 1)).softmax(3)
    old = key[0].shape[2]
    output = weights[..., :old] @ value[0] + weights[..., old:] @ value[1]
    return output.reshape(batch, heads, length, -1).transpose(1, 2).contiguous(), None


class _Past(Cache):
    """Keys and values of earlier tokens, and room to note those of new ones.

    Args:
        past: of each layer keys [B, heads, S, width], then values.
        split: whether the model's attention is `_split_attention`.
    """

    def __init__(self, past: Sequence[Tensor], split: bool) -> None:
        super().__init__(layers=[])
        self._past = past
        self._split = split
        self.new: dict[int, tuple[Tensor, Tensor]] = {}

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        layer_idx: int,
        *args: object,
        **kwargs: object,
    ) -> tuple[Any, Any]:
        """Return a layer's keys and values, the new ones [B, heads, q, width] last."""
        self.new[layer_idx] = key_states, value_states
        keys = self._past[2 * layer_idx], key_states
        values = self._past[2 * layer_idx + 1], value_states
        return (keys, values) if self._split else (torch.cat(keys, 2), torch.cat(values, 2))

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Zero: positions are always given explicitly."""
        return 0

    def __len__(self) -> int:
        return len(self._past) // 2


class _Traced(Module):
    """A model as the graph is to be: tensors in, tensors out.

    Args:
        model: a twin of one of transformers, in float32.
        kinds: the names of the masks that it takes, [None] for a single one.
    """

    def __init__(self, model: Any, kinds: Sequence[str | None]) -> None:
        super().__init__()
        self._model = model
        self._kinds = kinds
        self._split = model.config._attn_implementation == attention.NAME
        if self._split:
            AttentionInterface.register(_SPLIT, _split_attention)
            AttentionMaskInterface.register(_SPLIT, ALL_MASK_ATTENTION_FUNCTIONS["eager"])
            model.set_attn_implementation(_SPLIT)

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        kept: Tensor,
        masks: list[Tensor],
        past: list[Tensor],
    ) -> tuple[Tensor, ...]:
        """Return logits [B, len(kept), V], and each layer's new keys and values."""
        cache = _Past(past, self._split)
        named = dict(zip(self._kinds, masks, strict=True))
        logits = self._model(
            input_ids=input_ids,
            attention_mask=named.get(None, named),
            position_ids=position_ids,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=kept,
        ).logits
        return logits, *(each for layer in sorted(cache.new) for each in cache.new[layer])


def converted(
    model: Any, layers: Layers, kinds: Sequence[str | None], weights: Weights | None
) -> ov.Model:
    """Convert a model.

    Args:
        model: of transformers, in evaluation mode. A narrow one is traced as it is in float32.
        layers: what its cache holds.
        kinds: the names of the masks that it takes.
        weights: to what they are rounded; None leaves them.

    Raises:
        ModelError: it cannot be traced.
        MissingExtraError: weights are to be rounded and nncf is not installed.
    """
    _LOG.info("converting %s to OpenVINO, once", type(model).__name__)
    if weights is None:
        return _convert(model, layers, kinds)
    with missing("nncf"):
        import nncf
    graph = _convert(model, layers, kinds)
    _LOG.info("rounding its weights to %s", weights)
    return _rounded(graph, weights, nncf)


def write(graph: ov.Model, place: Path) -> None:
    """Write a graph to a folder."""
    ov.save_model(graph, place / GRAPH, compress_to_fp16=False)


def _convert(model: Any, layers: Layers, kinds: Sequence[str | None]) -> ov.Model:
    rows, new, old = 2, 3, 5
    inputs = (
        torch.zeros(rows, new, dtype=torch.int64),
        torch.arange(new).repeat(rows, 1),
        torch.arange(new),
        [torch.zeros(rows, 1, new, old + new) for _ in kinds],
        [each.repeat(rows, 1, old, 1).float() for layer in layers for each in layer],
    )
    try:
        # Tracing warns of each value that it takes for a constant; the kit checks what comes of it.
        with (
            torch.inference_mode(),
            warnings.catch_warnings(action="ignore"),
            _quiet("transformers"),
        ):
            wide = model if model.dtype == torch.float32 else Module.float(deepcopy(model))
            # Not traced a second time to compare: `_compare` does that on the result.
            decoder = TorchScriptPythonDecoder(
                _Traced(twin(wide), kinds),
                example_input=inputs,
                trace_kwargs={"check_trace": False},
            )
            return ov.convert_model(decoder, example_input=inputs)
    except Exception as error:
        raise ModelError(
            f"{type(model).__name__} cannot be converted to OpenVINO "
            f"({type(error).__name__}: {str(error).splitlines()[0]}); use TransformersModel"
        ) from error


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
