"""Any decoder-only model of transformers, as a target or as a drafter, over a pool of blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedModel

from ...config.validation import integer
from ...errors import InvalidConfigError, ModelError, OutriderError
from ..base import Capabilities, rounding_of
from ..flat import FlatBatch, Outputs
from ..lengths import checked_length
from ..paged import PagedModel
from .block_cache import BlockCache, Grid, block_bytes
from .early_exit import first_layers
from .mixers import made_exact, mixers
from .rollback import check_rollback
from .states import HybridCache
from .support import Architecture, Run, inspect_architecture, refuse_unsupported
from .twin import twin

_PRODUCTS = {"tf32": 2.0**-10, "bf16": 2.0**-7}
"""Eps of the types in which torch may multiply float32."""


class TransformersModel(PagedModel):
    """A causal language model of transformers over a pool of blocks: a target, or a drafter.

    The model is left as it is: forwards run on a twin that shares its parameters, in evaluation
    mode, with an attention that gives the results of "sdpa" and does not copy grouped key heads, or
    by the model's own "eager" one where there is no "sdpa", for its soft caps or sinks. At
    construction a few tokens are run with and without the cache and compared, so that an
    architecture whose state cannot be cut back is refused here. Several decoders, in several
    threads, may share one runtime: each call is made whole before the next.

    Call `reset` after the model's weights or submodules have changed: prompts that were seen before
    are answered from the cache otherwise.

    Compiling is the user's own, before the model is wrapped. A whole model that was compiled is
    called as it is: put it in evaluation mode, with "sdpa" or "eager" attention.

    Args:
        hf_model: a decoder-only `PreTrainedModel`, on any one device, in any floating dtype.
        max_sequences: how many sequences may be live at once.
        max_length: the longest prefix, drafts included; None takes the model's context.
        prefill_chunk: the most prompt tokens computed in one forward.
        kv_cache_memory: bytes for keys and values at most; None for what `max_sequences` of the
            longest texts take, or half of what is free.

    Raises:
        ModelError: the architecture cannot be decoded speculatively; the message says why.
        InvalidConfigError: an argument is not allowed.
    """

    def __init__(
        self,
        hf_model: Any,
        *,
        max_sequences: int = 8,
        max_length: int | None = None,
        prefill_chunk: int = 512,
        kv_cache_memory: int | None = None,
    ) -> None:
        max_sequences = integer("max_sequences", max_sequences, 1)
        self._prefill_chunk = integer("prefill_chunk", prefill_chunk, 1)
        self._memory = kv_cache_memory and integer("kv_cache_memory", kv_cache_memory, 1)
        self.hf_model = _uncompiled(hf_model)
        self._given = hf_model
        refuse_unsupported(self.hf_model)
        self._runs: dict[bool, Run] = {}  # with hidden states or without; copies share them
        architecture = inspect_architecture(self.hf_model, self.run)
        self._prepare(architecture)
        self._architecture = architecture
        self._longest = checked_length(max_length, architecture.context_length)
        self._make_pool(max_sequences)
        try:
            check_rollback(self)
        except OutriderError:
            raise
        except Exception as error:
            # What a model of others raises need not say why.
            why = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            raise ModelError(
                f"{type(self.hf_model).__name__} cannot be computed with a cache from outside "
                f"({why}); expected a model that keeps what it needs of earlier tokens in "
                "transformers' common cache"
            ) from error

    def _make_pool(self, max_sequences: int) -> None:
        """Make a pool of blocks, all of them free."""
        of, longest = self._architecture, self._longest
        capabilities = Capabilities(
            of.vocab_size, of.device, max_sequences, longest, of.eos_token_ids
        )
        states = self._state_bytes(max_sequences)
        self._allot(capabilities, self._block_bytes, self._memory, self._prefill_chunk, states)
        self._make_cache(self.pool.count)

    def _make_cache(self, blocks: int) -> None:
        """Make blocks of keys and values, and states of recurrent layers."""
        of = self._architecture
        self._cache = BlockCache(of.layers, blocks)
        if of.state_bytes:
            count = self.max_sequences or 1
            self._cache = self.states = HybridCache(of.layers, blocks, count, of.device)

    @property
    def name(self) -> str:
        """What computes."""
        return "transformers"

    @property
    def precision(self) -> str:
        """The type of the weights."""
        return str(self.hf_model.dtype).removeprefix("torch.")

    @property
    def rounding(self) -> float:
        """What the types of weights and of products explain; see `Runtime.rounding`.

        Torch multiplies float32 in a narrower type where it is set to (`fp32_precision`).
        Recurrences are computed in float32 by way of triangular systems, which lose half of its
        digits at worst, whatever the type of the weights.
        """
        dtype, backends = self.hf_model.dtype, torch.backends
        matmul = (backends.cuda if self.device.type == "cuda" else backends.mkldnn).matmul
        narrow = _PRODUCTS.get(matmul.fp32_precision, 0.0) if dtype == torch.float32 else 0.0
        states = torch.finfo(torch.float32).eps ** 0.5 if self.states.recurrent else 0.0
        return max(rounding_of(max(torch.finfo(dtype).eps, narrow)), states)

    @property
    def token_ratio(self) -> float:
        """More on a CPU than elsewhere; see `Runtime.token_ratio`."""
        return 0.1 if self.device.type == "cpu" else super().token_ratio

    def reset(self) -> None:
        """Forget all that was computed, and look at the model anew: it has changed."""
        with self.whole():
            self._forget()
            self._runs.clear()

    @property
    def run(self) -> Run:
        """What computes forwards: the model's twin, or the model as its user compiled it."""
        records = bool(self._layers)
        if records not in self._runs:
            run: Run = self._given
            if run is not self.hf_model and mixers(self.hf_model):
                raise ModelError(
                    f"{type(self.hf_model).__name__} has recurrent layers and was compiled; give "
                    "the model that was compiled: its layers are run one by one"
                )
            if run is self.hf_model or records:
                run = made_exact(twin(self.hf_model, records=records))
            self._runs[records] = run
        return self._runs[records]

    @property
    def layer_count(self) -> int:
        """How many layers there are."""
        return len(self._architecture.layers)

    def forward(self, batch: FlatBatch, run: Any = None) -> Outputs:
        """Compute a batch as rows of equal length; see `PagedModel`."""
        grid = Grid.of(batch)
        self._cache.set_batch(grid, batch)
        keep = grid.tokens.shape[1] - int(batch.missing.max()) + 1 - batch.first
        of, seen = self._architecture, dict[str, Any]()
        if any(of.layers):  # others have no use for masks and positions
            masks = grid.masks(of.windows, of.dtype)
            seen = {"attention_mask": masks, "position_ids": grid.positions}
        found = (run or self.run)(
            input_ids=grid.tokens,
            use_cache=True,
            logits_to_keep=keep,
            **seen,
            **({"output_hidden_states": True} if batch.layers else {}),
            **{of.cache_name: self._cache},
        )
        logits = pad(found.logits, (0, 0, 0, batch.width + 1 - batch.first - keep))
        if not batch.layers:
            return Outputs(logits)
        states = torch.stack([found.hidden_states[layer] for layer in batch.layers], 2)
        return Outputs(logits, states[grid.rows, grid.columns])

    def uncached(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Compute logits [B, n, V] after each token of B texts, without a cache."""
        ids = torch.tensor(rows, device=self.device)
        logits: Tensor = self.run(input_ids=ids, use_cache=False).logits
        return logits

    def first_layers(self, layers: int) -> Any:
        """Make what computes the first layers and the head, for `open`.

        Raises:
            InvalidConfigError: there are not more layers than that.
            ModelError: the layers are not found, or do not run without those after them.
        """
        return first_layers(self.hf_model, layers)

    def _prepare(self, architecture: Architecture) -> None:
        """Say how many bytes a block takes."""
        self._block_bytes = block_bytes(architecture.layers)

    def _state_bytes(self, slots: int) -> int:
        """Return the bytes of the states of so many sequences and as many checkpoints."""
        return 2 * slots * self._architecture.state_bytes


def _uncompiled(given: Any) -> Any:
    """The model itself, or the one that `torch.compile` was given.

    Raises:
        InvalidConfigError: it is no model of transformers.
    """
    model = getattr(given, "_orig_mod", given)
    if not isinstance(model, PreTrainedModel):
        raise InvalidConfigError(
            "hf_model", given, "a transformers model (outrider.load takes paths and hub ids)"
        )
    return model
