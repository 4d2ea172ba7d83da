"""Any decoder-only model of transformers that OpenVINO converts: the fast runtime on a CPU."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self, get_args

import torch

from ...config.sources import Weights
from ...config.validation import choice
from ...errors import ModelError, OutriderError, missing
from .. import kept
from ..base import rounding_of, tolerated
from ..transformers.cursor import Run
from ..transformers.model import TransformersModel
from ..transformers.support import Architecture
from .compiled import CompiledRun, Precision, compile_graph
from .convert import GRAPH, converted, key_of, write

with missing("openvino"):
    import openvino as ov

_EIGHT_BITS = 2.0**-7
"""Eps of numbers in 8 bits that share a scale: their step is 1/127 of the largest of a group.

What another order of sums moved across the middle of a step, if only by a last bit, comes out a
whole step apart; so it is added to the eps of the type that was rounded, and does not cover it.
"""

_ALIKE = 1e-3
"""By how much logits may differ from the model's own, beside the largest: sums differ in order."""


class OpenVinoModel(TransformersModel):
    """A causal language model of transformers that runs on OpenVINO, on the CPU.

    Its contract, its slot cache and its limits are those of `TransformersModel`. The model is
    traced once; what comes of it is kept in a folder and read the next time. It computes with the
    weights that the model had then, whatever becomes of the model.

    Args:
        hf_model: a decoder-only `PreTrainedModel` on the CPU.
        max_sequences, max_length, prefill_chunk: as for `TransformersModel`.
        precision: in which products are computed; None is "bfloat16" for a model of that type with
            its own weights, where the processor has it, and "float32" for all others.
        weights: "int8" or "int4" rounds the weights of linear layers and embeddings, by nncf: less
            memory to read, and another target. None leaves them as they are.
        cache_dir: the folder for conversions; None is `$XDG_CACHE_HOME/outrider/openvino`, or
            `~/.cache/outrider/openvino`.
        fingerprint: a key of the files that `hf_model` was loaded from, unchanged since, as
            `outrider.load` makes it; None hashes all weights.

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
        fingerprint: str | None = None,
    ) -> None:
        if precision is not None:
            choice("precision", precision, get_args(Precision))
        if weights is not None:
            choice("weights", weights, get_args(Weights))
        self._precision = precision
        self._weights = weights
        self._folder = kept.default_folder() / "openvino" if cache_dir is None else Path(cache_dir)
        self._fingerprint = fingerprint
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
        """What the compiled graph's types explain; see `Runtime.rounding`.

        Where weights are rounded, OpenVINO may round what they are multiplied with to 8 bits.
        """
        narrow = _EIGHT_BITS if self._weights and self.run.quantises else 0.0
        return rounding_of(torch.finfo(getattr(torch, self.run.precision)).eps + narrow)

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
        wide = replace(
            architecture, layers=layers, dtype=torch.float32, cache_name="past_key_values"
        )
        place = self._folder / key_of(run, self._weights, self._fingerprint)
        known = kept.find(place)
        made = self._compiled(place / GRAPH if known else self._converted(run, wide, place), wide)
        if known and self._fingerprint is None:
            self._compare(made, run)
        made(input_ids=torch.zeros(1, 1, dtype=torch.int64))  # A graph's first forward sets it up.
        return made, wide

    def _converted(self, run: Run, of: Architecture, place: Path) -> ov.Model | Path:
        """Convert the model, and return the file if it can be kept; only what was compared is."""
        kinds = [kind for kind, _ in of.windows]
        graph = converted(run, of.layers, kinds, self._weights)
        self._compare(self._compiled(graph, of), run)
        return place / GRAPH if kept.keep(place, partial(write, graph)) else graph

    def _compiled(self, source: ov.Model | Path, of: Architecture) -> CompiledRun:
        """Compile a graph or its file for this machine."""
        # Beside rounded weights bfloat16 rounds more, and takes as long.
        narrow = self.hf_model.dtype == torch.bfloat16 and self._weights is None
        usual: Precision = "bfloat16" if narrow else "float32"
        graph = compile_graph(source, self._precision or usual)
        return CompiledRun(graph, tuple(kind for kind, _ in of.windows), of.layers)

    @torch.inference_mode()
    def _compare(self, made: CompiledRun, run: Run) -> None:
        """Raise ModelError if a conversion computes otherwise than its model, for its hooks say.

        One whose weights are rounded is another target, and is not compared.
        """
        if self._weights is not None:
            return
        ids = torch.arange(1, 7)[None] * 7 % self.hf_model.config.get_text_config().vocab_size
        expected = run(input_ids=ids, use_cache=False).logits.double()
        found = made(input_ids=ids).logits.double()
        error = float((found - expected).abs().max() / expected.abs().max().clamp(min=1e-9))
        types = self.hf_model.dtype, getattr(torch, made.precision)
        eps = max(torch.finfo(each).eps for each in types)
        allowed = max(_ALIKE, tolerated(rounding_of(eps)))
        if not error <= allowed:
            raise ModelError(
                f"{type(self.hf_model).__name__} gives other logits on OpenVINO than by itself "
                f"(relative error {error:.2g}, allowed {allowed:.2g}), as hooks cannot be "
                "converted; use TransformersModel"
            )
