"""Any GGUF file of a decoder-only model, as a target or as a drafter, on llama.cpp.

A table says what llama.cpp's sequences hold: of models with attention alone one a slot, of hybrid
models three. Further ones stand for the paths of a tree while it is computed. Cells are made when
they are needed: a context of twice as many then takes the place of the old one, and what is asked
about is computed anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from ...config.validation import choice, integer
from ...errors import ModelError, missing
from ...types import trees
from ...types.records import DraftProposal, Prefix, TargetScores
from ..base import Capabilities, Found, PrefillProgress, Runtime, rounding_of
from ..lengths import PREFILLED_ALONE, check_lengths, checked_length
from ..whole import Whole
from .cursor import GgufCursor
from .forest import Part, Row, batch_of, parts
from .library import (
    KV_TYPES,
    MAX_IDS,
    Batch,
    Context,
    NoRoom,
    Settings,
    Weights,
    ends_of,
    fixed_context,
    is_hybrid,
    refuse_others,
)
from .slots import SlotTable
from .states import StateTable

with missing("llama-cpp"):
    import llama_cpp

_T = TypeVar("_T")

_CELLS = 512
"""Cells of the first context."""

_PATHS = 32
_STATE_PATHS = 4  # each of a hybrid model takes the memory of a state
"""Sequence ids for paths of trees; trees with more are computed some paths at a time."""

_EPS = {"all F32": 2.0**-10, "F16": 2.0**-10, "BF16": 2.0**-7}
_QUANTISED = {"Q8_0": 0.03}
_OTHERS = 0.2
"""Measured between one token in a forward and several: .026 of a Q8_0 model, .18 of a Q4_K one."""


class LlamaCppModel(Runtime):
    """A model in a GGUF file, run by llama.cpp with its weights as they are.

    Where weights are quantised, llama.cpp rounds activations to 8 bits. Logits after the same text
    then differ a little with the other tokens of a forward, as they do in llama.cpp itself: where
    two tokens are that close, greedy text may depend on what was drafted.

    Several decoders, in several threads, may share one runtime: each call is made whole before the
    next.

    It computes on as many threads as torch does.

    Args:
        path: of the file; of a split model the first part.
        max_sequences: how many sequences may be live at once.
        max_length: the longest prefix, drafts included; None takes the model's context. Memory
            grows with what is used of it.
        prefill_chunk: the most prompt tokens computed in one forward.
        gpu_layers: how many layers are computed by a GPU that llama.cpp was built for; -1 for all.
        kv_dtype: of keys and values.

    Raises:
        ModelError: the file cannot be loaded, or the model not be decoded speculatively.
        InvalidConfigError: an argument is not allowed.
        MissingExtraError: llama-cpp-python is not installed.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        max_sequences: int = 8,
        max_length: int | None = None,
        prefill_chunk: int = 512,
        gpu_layers: int = -1,
        kv_dtype: Literal["float16", "float32"] = "float16",
    ) -> None:
        choice("kv_dtype", kv_dtype, tuple(KV_TYPES))
        self._settings = Settings(
            ids=0,
            chunk=integer("prefill_chunk", prefill_chunk, 1),
            threads=torch.get_num_threads(),
            kv_type=KV_TYPES[kv_dtype],
        )
        self._gpu_layers = integer("gpu_layers", gpu_layers, -1)
        self._weights = Weights(path, gpu_layers=gpu_layers)
        refuse_others(self._weights)
        self._hybrid = is_hybrid(self._weights)
        self._most_cells = fixed_context(self._weights)
        longest = min(
            self._weights.context_length, self._most_cells or self._weights.context_length
        )
        self._capabilities = Capabilities(
            self._weights.vocab_size,
            torch.device("cpu"),
            max_sequences,
            checked_length(max_length, longest),
            ends_of(self._weights),
            drafts_trees=False,
        )
        self._allot(max_sequences)
        if not self._hybrid:
            self._refuse_uncuttable()

    def _allot(self, slots: int) -> None:
        """Make slots, all of them empty."""
        kind, paths = (StateTable, _STATE_PATHS) if self._hybrid else (SlotTable, _PATHS)
        integer("max_sequences", slots, 1, MAX_IDS // kind.sequences_each)
        self._capabilities = replace(self._capabilities, max_sequences=slots)
        self._table = kind(slots)
        self._first_path = slots * kind.sequences_each
        self._settings = replace(self._settings, ids=min(MAX_IDS, self._first_path + paths))
        self._cells = min(_CELLS, self._most_cells or _CELLS)
        self._context: Context | None = None
        self._whole = Whole()

    @property
    def capabilities(self) -> Capabilities:
        """What this runtime can do."""
        return self._capabilities

    @property
    def name(self) -> str:
        """What computes."""
        return "llama_cpp"

    @property
    def precision(self) -> str:
        """How the file's weights are written, such as "Q4_K - Medium"."""
        return self._weights.kind

    @property
    def rounding(self) -> float:
        """What llama.cpp's types explain; see `Runtime.rounding`.

        Keys and values are in half precision at most, and what is multiplied by quantised weights
        has 8 bits.
        """
        if self.precision in _EPS:
            return rounding_of(_EPS[self.precision])
        return _QUANTISED.get(self.precision, _OTHERS)

    @property
    def token_ratio(self) -> float:
        """Much on a CPU, whose kernels compute several tokens one by one; see `Runtime`."""
        elsewhere = self._gpu_layers and llama_cpp.llama_supports_gpu_offload()
        return super().token_ratio if elsewhere else 0.25

    @property
    def live_sequences(self) -> frozenset[int]:
        """The sequences that hold a slot."""
        return frozenset(self._table.owner)

    def check_integrity(self) -> None:
        """Raise AssertionError if what is known of the slots contradicts itself, or the cells."""
        with self.whole():
            wrong = self._table.contradiction(self._cells, self._open_context())
        assert wrong is None, wrong

    def release(self, sequence_ids: Iterable[int], *, discard: bool = False) -> None:
        """Free the slots of sequences that will not be asked about again.

        With `discard`, their cells are freed at once, so that no other sequence shares them.
        """
        with self.whole():
            freed = self._table.release(sequence_ids)
            if discard:
                self._clear(freed)

    def fresh(self, max_sequences: int) -> Self:
        """Make a runtime over the same weights with `max_sequences` empty slots of its own."""
        other = copy(self)
        other._allot(max_sequences)
        return other

    def reset(self) -> None:
        """Forget all that was computed."""
        with self.whole():
            self._forget()

    def whole(self) -> AbstractContextManager[None]:
        """Make a call whole before the next; what an interrupted one left is forgotten."""
        return self._whole.call(self._forget)

    def _forget(self) -> None:
        self._table.forget()
        context, self._context = self._context, None
        if context is not None:
            context.close()

    def verify(self, prefixes: Sequence[Prefix], proposal: DraftProposal) -> TargetScores:
        """Compute logits [B, N + 1, V] after each prefix and each of its drafted tokens.

        One forward computes them all, unless trees have very many leaves. What the next prefix
        names of a chain is kept; of a tree, of the path by the first child of each node. For the
        errors see `Runtime.verify`.
        """
        tokens, structure = proposal.tokens.cpu().numpy(), proposal.structure
        rows = [
            Row(prefix, tokens[i, :length], structure[i, :length])
            for i, (prefix, length) in enumerate(
                zip(prefixes, proposal.lengths.tolist(), strict=True)
            )
        ]
        logits, cached = self.compute(rows, proposal.width + 1)
        return TargetScores(torch.from_numpy(logits), cached)

    def open(self, prefixes: Sequence[Prefix], depth: int) -> GgufCursor:
        """Open a cursor at the end of the prefixes; see `Runtime.open`."""
        return GgufCursor(self, prefixes)

    def compute(
        self, rows: Sequence[Row], width: int
    ) -> tuple[NDArray[np.float32], tuple[int, ...]]:
        """Compute the logits that rows ask for.

        Returns:
            Logits [B, width, V], zeros where none are asked for, and how many tokens of each new
            prefix were found computed.

        Raises:
            EmptyPrefixError, ContextLengthError, ModelError: see `Runtime.verify`.
        """
        deepest = [int(trees.node_depths(row.parents[None]).max()) for row in rows]
        check_lengths([row.prefix for row in rows], deepest, self.max_length or 0)
        cached: dict[int, int] = {}
        with self.whole():
            logits = self._with_room(partial(self._attempt, rows, width, cached))
        return logits, tuple(cached[row.prefix.sequence_id] for row in rows)

    def lookup(self, prefix: Prefix) -> Found:
        """Say what a new sequence would find; see `Runtime.lookup`."""
        with self.whole():
            return Found(self._table.computed(prefix))

    def prefill(self, prefix: Prefix, most: int) -> PrefillProgress:
        """Compute at most so many tokens of a prefix; see `Runtime.prefill`."""
        check_lengths([prefix], [0], self.max_length or 0)
        none, cached = np.empty(0, np.int64), dict[int, int]()

        def attempt() -> int:
            start = self._placed(Row(prefix, none, none), cached)
            stop = min(len(prefix) - 1, start + most)
            while start < stop:
                start = self._prefill(prefix, start, stop)
            return start

        with self.whole():
            start = self._with_room(attempt)
        return PrefillProgress(len(prefix) - 1 - start, cached[prefix.sequence_id])

    def _with_room(self, compute: Callable[[], _T]) -> _T:
        """Compute something, with as many cells as that needs."""
        while True:
            try:
                return compute()
            except NoRoom:
                self._make_room()

    def _attempt(
        self, rows: Sequence[Row], width: int, cached: dict[int, int]
    ) -> NDArray[np.float32]:
        starts = [self._enter(row, len(rows) == 1, cached) for row in rows]
        logits = np.zeros((len(rows), width, self.vocab_size), np.float32)
        paths = self._settings.ids - self._first_path
        together: dict[int, Part] = {}
        for index, row in enumerate(rows):
            for part in parts(row, starts[index], 1 + paths):
                extra = sum(each.paths - 1 for each in together.values()) + part.paths - 1
                again = index in together
                if extra > paths or again:
                    self._forward(together, logits)
                    together = {}
                if again:
                    part.start = self._enter(row, len(rows) == 1, cached)
                together[index] = part
        if together:
            self._forward(together, logits)
        return logits

    def _enter(self, row: Row, alone: bool, cached: dict[int, int]) -> int:
        """Find or make room for a row, prefill it if it misses much; return what it has."""
        start, end, chunk = self._placed(row, cached), row.settled, self._settings.chunk
        while end + 1 - start > (chunk if alone else min(chunk, PREFILLED_ALONE)):
            start = self._prefill(row.prefix, start, end)
        return start

    def _placed(self, row: Row, cached: dict[int, int]) -> int:
        """Find or make room for a row; return how many tokens of its prefix are computed."""
        name = row.prefix.sequence_id
        known = name in self._table.owner
        start = self._table.enter(self._open_context(), row)
        cached.setdefault(name, 0 if known else start)
        return start

    def _prefill(self, prefix: Prefix, start: int, end: int) -> int:
        """Compute a chunk of a prefix from `start` on, `end` at most; return where it ends."""
        slot, stop = self._table.owner[prefix.sequence_id], min(end, start + self._settings.chunk)
        self._open_context().compute(Batch.chain(prefix.tokens[start:stop], start, slot))
        # At once, so that the next rows may share it.
        self._table.hold(slot, prefix.tokens[:stop])
        return stop

    def _forward(self, together: dict[int, Part], logits: NDArray[np.float32]) -> None:
        """Compute parts, by the places of their rows, in one forward, and write their logits."""
        context, spare = self._open_context(), self._first_path
        batches, place = [], 0
        try:
            for part in together.values():
                extra = range(spare, spare + part.paths - 1)
                spare = extra.stop
                ids, below = self._table.branch(context, part, extra)
                batches.append(batch_of(part, ids, below))
            found = context.compute(Batch.joined(batches))
            for index, part in together.items():
                nodes = np.append(0, part.nodes + 1)
                logits[index, nodes] = found[place : place + len(nodes)]
                place += len(nodes)
                self._table.settle(context, part)
        finally:
            for path in range(self._first_path, spare):
                context.cut(path, 0)

    def _clear(self, indices: Iterable[int]) -> None:
        """Free slots, and what their sequences hold."""
        for index in indices:
            self._table.slots[index] = self._table.empty_slot()
            for sequence in self._table.sequences(index):
                self._open_context().cut(sequence, 0)

    def _open_context(self) -> Context:
        """Return the context; make it if there is none, or none whose cells can be relied on."""
        if self._context is not None and not self._context.sound:
            self._forget()
        if self._context is None:
            self._context = Context(self._weights, self._settings, self._cells)
        return self._context

    def _make_room(self) -> None:
        """Free the cells of idle slots, or else make a context of twice as many cells."""
        context, slots = self._open_context(), self._table.slots
        idle = [
            index
            for index, slot in enumerate(slots)
            if slot.sequence_id is None and any(map(context.length, self._table.sequences(index)))
        ]
        if idle:
            self._clear(idle)
            return
        if self._most_cells and 2 * self._cells > self._most_cells:
            raise ModelError(
                f"all {self._cells} tokens of the context are in use, and this model computes "
                "differently in a longer one; release sequences, or ask for fewer at once"
            )
        self._forget()
        self._context = Context(self._weights, self._settings, 2 * self._cells)
        self._cells *= 2

    def _refuse_uncuttable(self) -> None:
        """Raise ModelError if what was computed cannot be cut back."""
        context, path = self._open_context(), self._weights.path
        if not context.has_memory:
            raise ModelError(f"the model in {path!r} embeds texts; expected one that generates")
        context.compute(Batch.chain(np.zeros(2, np.int64), 0, 0))
        if not context.cut(0, 1):
            raise ModelError(
                f"the model in {path!r} keeps a state that cannot be cut back after rejected "
                "drafts, and is no hybrid that llama.cpp knows; expected attention"
            )
        context.cut(0, 0)
