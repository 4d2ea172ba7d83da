"""Any decoder-only model of transformers that OpenVINO converts: the fast runtime on a CPU."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, Self, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...config.sources import Weights
from ...config.validation import choice
from ...errors import ModelError, OutriderError, missing
from ..base import rounding_of
from ..transformers.cursor import Run
from ..transformers.model import TransformersModel
from ..transformers.slot_cache import SlotCache
from ..transformers.support import Architecture
from .convert import Layers, converted

with missing("openvino"):
    import openvino as ov

Precision = Literal["float32", "bfloat16"]

_PRECISIONS = {"float32": "f32", "bfloat16": "bf16"}


class OpenVinoModel(TransformersModel):
    """A causal language model of transformers that runs on OpenVINO, on the CPU.

    Its contract, its slot cache and its limits are those of `TransformersModel`. The model is
    traced once; what comes of it is kept in a folder and read the next time. It computes with the
    weights that the model had then, whatever becomes of the model.

    Args:
        hf_model: a decoder-only `PreTrainedModel` on the CPU.
        max_sequences, max_length, prefill_chunk: as for `TransformersModel`.
        precision: in which products are computed; None is "bfloat16" for a model of that type,
            where the processor has it, and "float32" for all others.
        weights: "int8" or "int4" rounds the weights of linear layers and embeddings, by nncf: less
            memory to read, and another target. None leaves them as they are.
        cache_dir: the folder for conversions; None is `$XDG_CACHE_HOME/outrider/openvino`, or
            `~/.cache/outrider/openvino`.

    Raises:
        ModelError: the model cannot be converted, or not be decoded speculatively.
        InvalidConfigError: an argument is not allowed.
        MissingExtraError: openvino is not installed, or nncf for `weights`.
    """

    run: CompiledRun

    def __init__(
        self,
        hf_model: Any,
        *,
        max_sequences: int = 8,
        max_length: int | None = None,
        prefill_chunk: int = 512,
        precision: Precision | None = None,
        weights: Weights | None = None,
        cache_dir: str | Path | None = None,
    ) -> None:
        if precision is not None:
            choice("precision", precision, get_args(Precision))
        if weights is not None:
            choice("weights", weights, get_args(Weights))
        self._precision = precision
        self._weights = weights
        self._folder = _default_folder() if cache_dir is None else Path(cache_dir)
        try:
            super().__init__(
                hf_model,
                max_sequences=max_sequences,
                max_length=max_length,
                prefill_chunk=prefill_chunk,
            )
        except OutriderError:
            raise
        except RuntimeError as error:
            first = str(error).strip().splitlines()[-1]
            raise ModelError(
                f"{type(hf_model).__name__} was converted to OpenVINO, and does not run there for "
                f"every shape of input ({first}); use TransformersModel"
            ) from error

    @property
    def precision(self) -> str:
        """The type of products, and of the weights if they were rounded."""
        rounded = f", {self._weights} weights" if self._weights else ""
        return f"{self.run.precision}{rounded}"

    @property
    def name(self) -> str:
        """What computes."""
        return "openvino"

    @property
    def rounding(self) -> float:
        """What the type of products explains; see `Runtime.rounding`."""
        kind = torch.bfloat16 if self.run.precision == "bfloat16" else torch.float32
        return rounding_of(torch.finfo(kind).eps)

    def fresh(self, max_sequences: int) -> Self:
        """Make a runtime over the same graph with `max_sequences` empty slots of its own."""
        other = super().fresh(max_sequences)
        other.run = self.run.another()
        return other

    def reset(self) -> None:
        """Forget all that was computed; the weights stay those that were converted."""
        with self.lock:
            self._forget()

    def _prepared(self, run: Run, architecture: Architecture) -> tuple[CompiledRun, Architecture]:
        """Convert the model, and compile it for this machine."""
        device = architecture.device
        if device.type != "cpu":
            raise ModelError(f"the model is on {device}; OpenVINO takes models on the CPU")
        layers = tuple((keys.float(), values.float()) for keys, values in architecture.layers)
        kinds = tuple(kind for kind, _ in architecture.windows)
        graph = converted(run, layers, kinds, self._weights, self._folder)
        usual = "bfloat16" if architecture.dtype == torch.bfloat16 else "float32"
        settings = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": _PRECISIONS[self._precision or usual],
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        }
        compiled = ov.Core().compile_model(graph, "CPU", settings)
        wide = replace(architecture, layers=layers, dtype=torch.float32)
        return CompiledRun(compiled, kinds, layers), wide


class CompiledRun:
    """A compiled graph, called as a model of transformers is, one call at a time.

    Args:
        compiled: of a graph that `converted` made.
        kinds: the names of the masks that it takes.
        layers: keys and values of one token in each layer.
    """

    def __init__(
        self, compiled: ov.CompiledModel, kinds: tuple[str | None, ...], layers: Layers
    ) -> None:
        self._compiled = compiled
        self._request = compiled.create_infer_request()
        self._kinds = kinds
        self._layers = layers
        self._bound: Sequence[Tensor] = ()

    @property
    def precision(self) -> str:
        """The type of its products, "float32" or "bfloat16"."""
        kind = self._compiled.get_property("INFERENCE_PRECISION_HINT")
        return "bfloat16" if kind == ov.Type.bf16 else "float32"

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
        kept = np.arange(width - (logits_to_keep or width), width)
        past: Sequence[Tensor]
        if past_key_values is None:
            causal = torch.full((rows, 1, width, width), -torch.inf).triu(1)
            masks = [causal] * len(self._kinds)
            past = [
                each[:, :, :0].expand(rows, -1, -1, -1) for layer in self._layers for each in layer
            ]
            position_ids = torch.arange(width).repeat(rows, 1)
        else:
            past, columns = past_key_values.held()
            given: Any = attention_mask
            each = [given if kind is None else given[kind] for kind in self._kinds]
            masks = [_beside(mask, columns, past[0].shape[2]) for mask in each]
        assert position_ids is not None
        inputs = [input_ids.numpy(), position_ids.numpy(), kept, *(mask.numpy() for mask in masks)]
        self._give(0, inputs)
        if past is not self._bound:
            self._give(len(inputs), [each.numpy() for each in past])
            self._bound = past
        self._request.infer()
        logits = self._request.get_output_tensor(0).data
        if logits.shape[:2] != (rows, len(kept)):
            raise RuntimeError(f"logits {logits.shape} of {rows} rows and {len(kept)} tokens")
        if past_key_values is not None:
            past_key_values.write([self._output(1 + place) for place in range(len(past))])
        # The next forward writes over what the request holds.
        return SimpleNamespace(logits=torch.from_numpy(logits.copy()))

    def _give(self, first: int, arrays: Sequence[NDArray[Any]]) -> None:
        """Let inputs of the graph, from the first on, be read where they are."""
        for place, array in enumerate(arrays, first):
            shared = ov.Tensor(np.ascontiguousarray(array), shared_memory=True)
            self._request.set_input_tensor(place, shared)

    def _output(self, place: int) -> Tensor:
        return torch.from_numpy(self._request.get_output_tensor(place).data)


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


def _default_folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "outrider" / "openvino"
