"""Any decoder-only model of transformers that OpenVINO converts: the fast runtime on a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from pathlib import Path
from typing import Any, Self, get_args

import numpy as np
import torch
from torch import Tensor

from ...config.sources import Weights
from ...config.validation import choice
from ...errors import CacheFullError, ModelError, OutriderError, missing
from ...types.records import Distributions, DraftProposal, Prefix
from .. import kept
from ..base import Watcher, rounding_of, tolerated
from ..flat import FlatBatch, Outputs
from ..paths import by_paths, paths_to_leaves
from ..transformers.early_exit import truncated
from ..transformers.model import TransformersModel
from ..transformers.support import Architecture
from ..transformers.twin import twin
from .convert import GRAPH, converted, key_of, sites_of
from .paged import KvType, PagedGraph, PagedRun, Precision
from .state_rows import StateRows

with missing("openvino"):
    import openvino as ov

_EIGHT_BITS = 2.0**-7
"""Eps of numbers in 8 bits that share a scale: their step is 1/127 of the largest of a group.

What another order of sums moved across the middle of a step, if only by a last bit, comes out a
whole step apart; so it is added to the eps of the type that was rounded, and does not cover it.
"""

_UNCACHED = -2
"""The sequence id of texts that are computed by themselves."""

_ALIKE = 1e-3
"""By how much logits may differ from the model's own, beside the largest: sums differ in order."""


class OpenVinoModel(TransformersModel):
    """A causal language model of transformers that runs on OpenVINO, on the CPU.

    Its contract and its limits are those of `TransformersModel`. Attention is OpenVINO's own, over
    blocks. The model is traced once; what comes of it is kept in a folder and read the next time.
    It computes with the weights that the model had then, whatever becomes of the model.

    Args:
        hf_model: a decoder-only `PreTrainedModel` on the CPU.
        max_sequences, max_length, prefill_chunk, kv_cache_memory: as for `TransformersModel`.
        precision: in which products are computed; None is "bfloat16" for a model of that type with
            its own weights and no recurrent layers, where the processor has it, and "float32" for
            all others.
        kv_dtype: of keys and values: "uint8" for about a quarter of float32's memory, and another
            target; None is that of the products.
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

    _new: Path | None = None
    """The folder for a graph that is not kept yet."""

    def __init__(
        self,
        hf_model: Any,
        *,
        max_sequences: int = 8,
        max_length: int | None = None,
        prefill_chunk: int = 512,
        kv_cache_memory: int | None = None,
        precision: Precision | None = None,
        kv_dtype: KvType | None = None,
        weights: Weights | None = None,
        cache_dir: str | Path | None = None,
        fingerprint: str | None = None,
    ) -> None:
        given = {"precision": precision, "weights": weights, "kv_dtype": kv_dtype}
        for (name, value), kind in zip(given.items(), (Precision, Weights, KvType), strict=True):
            if value is not None:
                choice(name, value, get_args(kind))
        self._precision = precision
        self._kv_dtype = kv_dtype
        self._weights = weights
        self._folder = kept.default_folder() / "openvino" if cache_dir is None else Path(cache_dir)
        self._fingerprint = fingerprint
        try:
            super().__init__(
                hf_model,
                max_sequences=max_sequences,
                max_length=max_length,
                prefill_chunk=prefill_chunk,
                kv_cache_memory=kv_cache_memory,
            )
            exact = self._weights is None and self._kv_dtype is None
            if exact and (self._new is not None or fingerprint is None):
                self._compare()
        except OutriderError:
            raise
        except RuntimeError as error:
            first = str(error).strip().splitlines()[-1]
            raise ModelError(
                f"{type(hf_model).__name__} was converted to OpenVINO, and does not run there for "
                f"every shape of input ({first}); use TransformersModel"
            ) from error
        if self._new is not None:
            kept.keep(self._new, self._write)
            self._new = None

    def _write(self, place: Path) -> None:
        ov.save_model(self._source, place / GRAPH, compress_to_fp16=False)

    @property
    def precision(self) -> str:
        """The type of products, and of the weights if they were rounded."""
        rounded = f", {self._weights} weights" if self._weights else ""
        cache = f", {self._kv_dtype} keys and values" if self._kv_dtype else ""
        return f"{self._graph.precision}{rounded}{cache}"

    @property
    def name(self) -> str:
        """What computes."""
        return "openvino"

    @property
    def rounding(self) -> float:
        """What the compiled graph's types explain; see `Runtime.rounding`.

        Where weights are rounded, OpenVINO may round what they are multiplied with to 8 bits.
        """
        eps = torch.finfo(getattr(torch, self._graph.precision)).eps
        activations = self._weights is not None and self._graph.quantises
        return rounding_of(eps + _EIGHT_BITS * (activations + (self._kv_dtype is not None)))

    def with_hidden(self, layers: Sequence[int], watcher: Watcher | None = None) -> Self:
        """Return this model, over the same blocks, with hidden states; see `Runtime`.

        The graph is compiled once more.
        """
        other = super().with_hidden(layers, watcher)
        graph = PagedGraph(self._source, self._graph.precision, self._kv_dtype, other._layers)
        other._graph, other._calls = graph, self._calls.beside(graph)
        return other

    def forward(self, batch: FlatBatch, run: Any = None) -> Outputs:
        """Compute a batch as it is; see `PagedModel`."""
        calls, window = run or self._calls, self._graph.window
        ends = batch.past + batch.missing + batch.drafted
        beyond = self.states.recurrent or (window and ends.max() > window)
        if batch.ancestors is not None and beyond:
            found = self._by_leaves(batch, calls)
            return Outputs(found.logits[:, batch.first :], found.hidden)
        return calls(batch)

    def _by_leaves(self, batch: FlatBatch, calls: PagedRun) -> Outputs:
        """Compute trees by the paths to their leaves; one by one where blocks are few."""
        assert batch.ancestors is not None
        rows = enumerate(zip(batch.ancestors.numpy(), batch.drafted.tolist(), strict=True))
        paths = {row: paths_to_leaves(mask[:count, :count]) for row, (mask, count) in rows}
        try:
            return by_paths(self, batch, calls, paths)
        except CacheFullError:
            found: Outputs | None = None
            # The leading one last: it stays in the row's own blocks, which all of them take.
            for row, each in paths.items():
                for path in reversed(each):
                    found = by_paths(self, batch, calls, {row: [path]}, found)
            assert found is not None, "a batch has rows"
            return found

    def uncached(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Compute logits [B, n, V] after each token of B new texts."""
        found = []
        for row in rows:
            ids = torch.tensor([row[1:]])
            made = Distributions(point_masses=ids)
            proposal = DraftProposal(ids, np.array([ids.shape[1]]), made)
            found.append(self.verify([Prefix(_UNCACHED, row[:1])], proposal).logits[0])
            self.release([_UNCACHED], discard=True)
        return torch.stack(found)

    def first_layers(self, layers: int) -> PagedRun:
        """Make the first layers and the head a graph of their own, over the same blocks."""
        keyed = sum(map(bool, self._architecture.layers[:layers]))
        graph = converted(truncated(twin(self.hf_model), layers), self._weights, keyed)
        return self._calls.beside(PagedGraph(graph, self._graph.precision, self._kv_dtype))

    def _make_cache(self, blocks: int) -> None:
        rows = None
        if self._graph.states:
            rows = self.states = StateRows(self.max_sequences or 1)
        self._cache = self._calls = PagedRun(self._graph, blocks, rows)

    def _prepare(self, architecture: Architecture) -> None:
        """Convert the model, and compile it for this machine."""
        device = architecture.device
        if device.type != "cpu":
            raise ModelError(f"the model is on {device}; OpenVINO takes models on the CPU")
        recurrent = architecture.state_bytes > 0
        if recurrent and self._precision == "bfloat16":
            name = type(self.hf_model).__name__
            raise ModelError(f"{name} has recurrent states, which precision='bfloat16' would round")
        run = self.run
        place = self._folder / key_of(run, self._weights, self._fingerprint)
        known = kept.find(place)
        graph = ov.Core().read_model(place / GRAPH) if known else None
        graph = graph or converted(run, self._weights, sum(map(bool, architecture.layers)))
        _check_windows(self.hf_model, graph, architecture)
        # Beside rounded weights bfloat16 rounds more, and takes as long; and it rounds states.
        narrow = self.hf_model.dtype == torch.bfloat16 and not (self._weights or recurrent)
        usual: Precision = "bfloat16" if narrow else "float32"
        self._graph = PagedGraph(graph, self._precision or usual, self._kv_dtype)
        self._block_bytes = self._graph.block_bytes
        self._source = graph
        self._new = None if known else place

    def _state_bytes(self, slots: int) -> int:
        return StateRows(slots).count * self._graph.state_bytes

    @torch.inference_mode()
    def _compare(self) -> None:
        """Raise ModelError if a conversion computes otherwise than its model.

        One whose weights are rounded is another target, and is not compared. The text is longer
        than a short window, so that it is seen whether that is heeded.
        """
        ids = [place * 7 % self.vocab_size for place in range(1, min(40, self.longest))]
        expected = self.run(input_ids=torch.tensor([ids]), use_cache=False).logits.double()
        found = self.uncached([ids]).double()
        error = float((found - expected).abs().max() / expected.abs().max().clamp(min=1e-9))
        types = self.hf_model.dtype, getattr(torch, self._graph.precision)
        eps = max(torch.finfo(each).eps for each in types)
        allowed = max(_ALIKE, tolerated(rounding_of(eps)))
        if not error <= allowed:
            raise ModelError(
                f"{type(self.hf_model).__name__} gives other logits on OpenVINO than by itself "
                f"(relative error {error:.2g}, allowed {allowed:.2g}): not all that it computes "
                "could be traced; use TransformersModel"
            )


def _check_windows(hf_model: Any, graph: ov.Model, architecture: Architecture) -> None:
    """Raise ModelError if layers see less than the graph's attention, by their masks alone."""
    longest, windows = architecture.context_length or 2**31, dict(architecture.windows)
    kinds = getattr(hf_model.config.get_text_config(), "layer_types", None) or repeat(None)
    for window, site in zip(map(windows.get, kinds), sites_of(graph), strict=False):
        if window and site.window != window < longest:
            raise ModelError(
                f"{type(hf_model).__name__} has layers that see {window} tokens by their masks "
                "alone, which OpenVINO is not given; use TransformersModel"
            )
