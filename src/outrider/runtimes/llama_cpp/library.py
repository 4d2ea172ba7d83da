"""llama.cpp through its C interface: the weights of a file, and a context with keys and values."""

from __future__ import annotations

import ctypes
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import ModelError, missing
from .log import hand_on

with missing("llama-cpp"):
    import llama_cpp

Ids = NDArray[np.int32]

_HEADS = ("eagle", "dflash", "dspark", "medusa")
"""In names of architectures of draft heads."""

KV_TYPES = {"float32": 0, "float16": 1}
"""ggml's number of each type that keys and values are kept in."""

MAX_IDS = int(llama_cpp.llama_max_parallel_sequences())
"""How many sequence ids a context has at most."""


class NoRoom(Exception):
    """The cells of a context do not suffice for a batch, and nothing of it was computed."""


def repacks(system: bytes) -> bool:
    """Return whether weights may be laid out anew for a processor, by what llama.cpp says of it.

    Not where it was built for AMX: in a virtual machine that announces AMX, and has none, those
    kernels end the process.
    """
    return b"AMX_INT8 = 1" not in system


class Weights:
    """A GGUF file, loaded.

    Args:
        path: of the file; of a split model the first one.
        gpu_layers: how many layers a GPU computes, -1 for all.
        vocabulary_only: whether the tokenizer is all that is loaded.

    Raises:
        ModelError: there is no such file, or llama.cpp cannot load it.
    """

    def __init__(
        self, path: str | Path, *, gpu_layers: int = -1, vocabulary_only: bool = False
    ) -> None:
        self.path = str(path)
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = gpu_layers
        params.vocab_only = vocabulary_only
        params.use_extra_bufts = repacks(llama_cpp.llama_print_system_info())
        self.handle: Any = llama_cpp.llama_model_load_from_file(self.path.encode(), params)
        error = hand_on()
        if not self.handle:
            raise ModelError(
                f"llama.cpp cannot load {self.path!r}: {error or 'it does not say why'}; expected "
                "a whole GGUF file of a kind that it knows (of a split one the first part, beside "
                "the others)"
            )
        self._free = weakref.finalize(self, llama_cpp.llama_model_free, self.handle)
        self.vocabulary: Any = llama_cpp.llama_model_get_vocab(self.handle)

    @property
    def vocab_size(self) -> int:
        """Width of the logits, V."""
        return int(llama_cpp.llama_vocab_n_tokens(self.vocabulary))

    @property
    def context_length(self) -> int:
        """The context that the model was trained for."""
        return int(llama_cpp.llama_model_n_ctx_train(self.handle))

    @property
    def kind(self) -> str:
        """How most weights are written, such as "Q4_K - Medium"."""
        buffer = ctypes.create_string_buffer(256)
        llama_cpp.llama_model_desc(self.handle, buffer, len(buffer))
        # It begins with the architecture and the size.
        return buffer.value.decode(errors="replace").split(maxsplit=2)[-1]

    def stated(self, key: str) -> str | None:
        """Return a value of the file's metadata as text; None if it is not there."""
        buffer = ctypes.create_string_buffer(256)
        size = llama_cpp.llama_model_meta_val_str(self.handle, key.encode(), buffer, len(buffer))
        return buffer.value.decode(errors="replace") if size >= 0 else None


def refuse_others(weights: Weights) -> None:
    """Raise ModelError for a draft head, and for an encoder with or without a decoder."""
    kind = weights.stated("general.architecture") or ""
    if any(mark in kind for mark in _HEADS):
        raise ModelError(
            f"the model in {weights.path!r} is a draft head ({kind}): it needs hidden states, "
            "which llama.cpp does not give; take the head's own checkpoint, beside a target on "
            "transformers or openvino (--runtime)"
        )
    if llama_cpp.llama_model_has_encoder(weights.handle):
        raise ModelError(
            f"the model in {weights.path!r} has an encoder ({kind}); expected a decoder-only one"
        )


def is_hybrid(weights: Weights) -> bool:
    """Return whether a model has recurrent layers beside attention.

    Raises:
        ModelError: it has recurrent layers alone.
    """
    if llama_cpp.llama_model_is_recurrent(weights.handle):
        raise ModelError(
            f"the model in {weights.path!r} has recurrent layers alone, whose state cannot be cut "
            "back after rejected drafts; expected attention, or a hybrid of both"
        )
    return bool(llama_cpp.llama_model_is_hybrid(weights.handle))


def fixed_context(weights: Weights) -> int | None:
    """Return the most cells that a model computes alike in, None for any number.

    A model whose positions are scaled by one of two tables (LongRoPE) takes the other table in a
    context that is longer than its original one.
    """
    architecture = weights.stated("general.architecture")
    scaling = f"{architecture}.rope.scaling"
    original = weights.stated(f"{scaling}.original_context_length")
    if original is None or weights.stated(f"{scaling}.type") in ("yarn", "linear"):
        return None
    return int(original) if int(original) < weights.context_length else None


def ends_of(weights: Weights) -> frozenset[int]:
    """Return the tokens that end a text."""
    ends = llama_cpp.llama_vocab_is_eog
    return frozenset(
        token for token in range(weights.vocab_size) if ends(weights.vocabulary, token)
    )


@dataclass(frozen=True, slots=True)
class Batch:
    """Tokens of one forward.

    Attributes:
        tokens: int32 [n].
        positions: int32 [n].
        counts: how many sequences each token belongs to, int32 [n].
        ids: those sequences, token by token, int32 [sum of counts].
        wanted: whether the logits after each are asked for, int8 [n].
    """

    tokens: Ids
    positions: Ids
    counts: Ids
    ids: Ids
    wanted: NDArray[np.int8]

    @staticmethod
    def chain(tokens: NDArray[np.int64], start: int, sequence: int) -> Batch:
        """Make a batch of tokens of one sequence that follow one another; no logits are asked for.

        Args:
            tokens: int64 [n].
            start: the position of the first.
            sequence: the one that they belong to.
        """
        size = len(tokens)
        positions = np.arange(start, start + size, dtype=np.int32)
        counts, ids = np.ones(size, np.int32), np.full(size, sequence, np.int32)
        return Batch(tokens.astype(np.int32), positions, counts, ids, np.zeros(size, np.int8))

    def part(self, start: int, stop: int) -> Batch:
        """Return some of its tokens, in their order."""
        ends = np.append(0, np.cumsum(self.counts))
        own = slice(start, stop)
        ids = self.ids[ends[start] : ends[min(stop, len(self.counts))]]
        return Batch(self.tokens[own], self.positions[own], self.counts[own], ids, self.wanted[own])

    @staticmethod
    def joined(batches: list[Batch]) -> Batch:
        """Put batches behind one another."""
        return Batch(
            *(
                np.concatenate([getattr(batch, name) for batch in batches])
                for name in Batch.__slots__
            )
        )


@dataclass(frozen=True, slots=True)
class Settings:
    """How contexts of a model are made.

    Attributes:
        ids: how many sequence ids there are.
        chunk: the most tokens computed at once; longer batches are cut by llama.cpp.
        threads: of the processor.
        kv_type: ggml's number of the type of keys and values.
    """

    ids: int
    chunk: int
    threads: int
    kv_type: int


def _free(context: Any, _weights: Weights) -> None:
    llama_cpp.llama_free(context)


class Context:
    """Keys and values of sequences in a common pool of cells, and the forwards that fill it.

    A cell holds one token, and belongs to any number of sequences.

    Args:
        weights: of the model.
        settings: how it is made.
        cells: how many cells there are at least.

    Attributes:
        sound: whether what it holds can be relied on: not after a forward that llama.cpp broke off.

    Raises:
        ModelError: llama.cpp cannot make it.
    """

    def __init__(self, weights: Weights, settings: Settings, cells: int) -> None:
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = params.n_batch = cells
        params.n_ubatch = min(settings.chunk, cells)
        params.n_seq_max = settings.ids
        params.n_threads = params.n_threads_batch = settings.threads
        params.type_k = params.type_v = settings.kv_type
        params.kv_unified = params.swa_full = True
        if settings.kv_type == KV_TYPES["float32"]:
            # The fused attention rounds to half precision whatever it is given.
            params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self.sound = True
        self._weights = weights
        self._handle: Any = llama_cpp.llama_init_from_model(weights.handle, params)
        error = hand_on()
        if not self._handle:
            raise ModelError(
                f"llama.cpp cannot make a context of {cells} tokens for {weights.path!r}: "
                f"{error or 'it does not say why'}; expected memory for their keys and values: "
                "lower max_length or max_sequences, or ask for fewer sequences at once"
            )
        # The weights are kept until then: the context reads them when it is freed.
        self.close = weakref.finalize(self, _free, self._handle, weights)
        self._memory: Any = llama_cpp.llama_get_memory(self._handle)

    @property
    def window(self) -> int:
        """How many tokens layers with sliding windows see; 0 where there are none."""
        return int(llama_cpp.llama_model_n_swa(self._weights.handle))

    @property
    def has_memory(self) -> bool:
        """Whether the model keeps anything of earlier tokens; one that embeds texts does not."""
        return bool(self._memory)

    def compute(self, batch: Batch) -> NDArray[np.float32]:
        """Compute tokens, and return the logits asked for, [n, V]: a view until the next call.

        With sliding windows not more at once than llama.cpp computes in one piece: of longer
        batches it takes cells for later pieces that earlier ones still see.

        Raises:
            NoRoom: the cells do not suffice.
            ModelError: llama.cpp fails.
        """
        size, most = len(batch.tokens), int(llama_cpp.llama_n_ubatch(self._handle))
        if size > llama_cpp.llama_n_batch(self._handle):
            raise NoRoom
        if size > most and self.window:
            return self._in_pieces(batch, most)
        ends = np.cumsum(batch.counts, dtype=np.uintp)
        width = batch.ids.itemsize
        owners = batch.ids.ctypes.data + width * (ends - batch.counts.astype(np.uintp))
        int32 = ctypes.POINTER(ctypes.c_int32)
        status = llama_cpp.llama_decode(
            self._handle,
            llama_cpp.llama_batch(
                n_tokens=size,
                token=batch.tokens.ctypes.data_as(int32),
                pos=batch.positions.ctypes.data_as(int32),
                n_seq_id=batch.counts.ctypes.data_as(int32),
                seq_id=owners.ctypes.data_as(ctypes.POINTER(int32)),
                logits=batch.wanted.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
            ),
        )
        self.sound = status in (0, 1)
        if status:
            error = hand_on()
            if status == 1:
                raise NoRoom
            raise ModelError(
                f"llama.cpp cannot compute {size} tokens (status {status}): "
                f"{error or 'it does not say why'}"
            )
        rows, wide = int(batch.wanted.sum()), self._weights.vocab_size
        if not rows:
            return np.empty((0, wide), np.float32)
        pointer = llama_cpp.llama_get_logits(self._handle)
        found: NDArray[np.float32] = np.ctypeslib.as_array(pointer, (rows, wide))
        return found

    def _in_pieces(self, batch: Batch, most: int) -> NDArray[np.float32]:
        """Compute at most so many tokens at once; see `compute`."""
        found = [self.compute(batch.part(0, most)).copy()]
        for start in range(most, len(batch.tokens), most):
            try:
                found.append(self.compute(batch.part(start, start + most)).copy())
            except NoRoom:
                self.sound = False
                raise
        return np.concatenate(found)

    def cut(self, sequence: int, start: int) -> bool:
        """Take a sequence out of its cells from a position on; whether the model allows it."""
        return bool(llama_cpp.llama_memory_seq_rm(self._memory, sequence, start, -1))

    def copy(self, source: int, sequence: int, stop: int) -> None:
        """Add a sequence to the cells of another one, up to a position."""
        llama_cpp.llama_memory_seq_cp(self._memory, source, sequence, 0, stop)

    def first(self, sequence: int) -> int:
        """Return the first position of a sequence that every layer has in cells; -1 if none."""
        return int(llama_cpp.llama_memory_seq_pos_min(self._memory, sequence))

    def length(self, sequence: int) -> int:
        """Return how many positions of a sequence are in cells, counted from the first one."""
        return 1 + int(llama_cpp.llama_memory_seq_pos_max(self._memory, sequence))
