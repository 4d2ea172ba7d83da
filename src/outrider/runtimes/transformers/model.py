"""Any decoder-only model of transformers, as a target or as a drafter, over a slot cache.

Every call names whole prefixes. The adapter finds each sequence's slot, keeps the columns that the
prefix shares with it, and computes the rest in one forward for all rows: rows of different lengths
sit in one batch without padding on the left, and a rejected draft costs nothing to undo.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from itertools import pairwise
from threading import RLock
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ...errors import ContextLengthError, EmptyPrefixError, InvalidConfigError, ModelError
from ...types import trees
from ...types.records import DraftProposal, Prefix, TargetScores
from ...types.transfer import sent
from . import products
from .compiled import WIDEST, CompiledForward, require_compiler
from .cursor import SlotBatch, SlotCursor, unsorted
from .direct import DirectForward, ModuleForward, forward_of
from .pending import FedTokens, HostCopy, RowTokens
from .ragged import Ragged
from .rollback import check_rollback
from .slot_cache import SlotCache
from .slots import SlotTable
from .support import Setting, inspect_architecture
from .views import View, Views, hung_on_chains

_LOG = logging.getLogger(__name__)

_TOGETHER = 16
"""In a batch, new rows that miss more tokens than this are prefilled by themselves first, and those
that miss fewer where that is less to compute."""

_FORWARD = 8
"""What a forward takes besides its tokens, in tokens: about that where a draft model is small."""


class TransformersModel:
    """A causal language model of transformers with a slot cache: a target, or a drafter's model.

    Several decoders, in several threads, may share one: each call is made whole before the next.

    The model is put in evaluation mode, and its attention implementation is set to one that gives
    the same results as "sdpa" and does not copy grouped key heads. Its linear layers multiply some
    rows in the way that is found faster on a CPU (`products`), which may make them a subclass of
    `nn.Linear`, with a second copy of up to a GiB of weights: what looks for that exact type, such
    as `torch.ao.quantization.quantize_dynamic`, has to be applied before, and a model that is
    pickled whole afterwards, and not as its `state_dict`, takes Outrider to load it. A model whose
    weights change has to be wrapped anew. At construction a few tokens are run with and without the
    cache and compared, so that an architecture whose state cannot be cut back is refused here.

    Args:
        hf_model: a decoder-only `PreTrainedModel`, on any device, in any floating dtype.
        max_sequences: how many sequences may be live at once: the slots of the cache.
        max_length: the longest prefix, drafts included; None takes the model's context.
        prefill_chunk: the most prompt tokens computed in one forward.
        compile: whether forwards of one sequence are compiled by `torch.compile`, which is done
            here and takes from seconds to minutes. The cache is then reserved to the full,
            `max_sequences` times `max_length` columns. Batches of several sequences, and prompts,
            are computed eagerly. A model that cannot be compiled is not, with a warning logged.
            Hooks that are added to the model later are not seen.

    Attributes:
        compile_s: seconds that compiling took; None if nothing is compiled.

    Raises:
        ModelError: the architecture cannot be decoded speculatively, or compiling needs a C++
            compiler and there is none; the message says why.
        InvalidConfigError: `max_sequences`, `max_length`, `prefill_chunk` or `compile` is not
            allowed.
    """

    def __init__(
        self,
        hf_model: Any,
        *,
        max_sequences: int = 8,
        max_length: int | None = None,
        prefill_chunk: int = 512,
        compile: bool = False,
    ) -> None:
        for name, value in (("max_sequences", max_sequences), ("prefill_chunk", prefill_chunk)):
            if not isinstance(value, int) or value < 1:
                raise InvalidConfigError(name, value, "an integer >= 1")
        if not isinstance(compile, bool):
            raise InvalidConfigError("compile", compile, "True or False")
        if not isinstance(hf_model, PreTrainedModel):
            raise InvalidConfigError(
                "hf_model", hf_model, "a transformers model (outrider.load takes paths and hub ids)"
            )
        self.hf_model = hf_model
        before = Setting(hf_model)
        try:
            self._adopt(max_sequences, max_length, prefill_chunk, compile)
        except BaseException:
            # A model that is refused, or not waited for, is left as it was.
            before.restore()
            raise

    def _adopt(
        self, max_sequences: int, max_length: int | None, prefill_chunk: int, compile: bool
    ) -> None:
        self._architecture = inspect_architecture(self.hf_model)
        context = self._architecture.context_length
        if max_length is None and context is None:
            raise InvalidConfigError(
                "max_length", None, "an integer >= 2, because the model's config states no context"
            )
        if max_length is not None and not 2 <= max_length <= (context or max_length):
            raise InvalidConfigError(
                "max_length", max_length, f"an integer in 2..{context}, the model's context"
            )
        self._forward = forward_of(self.hf_model)
        own = isinstance(self._forward, ModuleForward)
        if own and any(layer.joined for layer in products.installed(self.hf_model)):
            # Which asks each layer by itself.
            products.install(self.hf_model)
        self._max_length = int(max_length or context or 0)
        self._chunk = prefill_chunk
        self._table = SlotTable(max_sequences)
        self._cache = SlotCache(
            self._architecture.layers,
            max_sequences,
            self._architecture.dtype,
            self._architecture.device,
        )
        self.lock = RLock()
        self.views = Views(self._architecture, self._max_length)
        self._compiled: CompiledForward | None = None
        self.compile_s: float | None = None
        check_rollback(self)
        if compile:
            self._compile()

    @property
    def vocab_size(self) -> int:
        """Width of the logits, V."""
        return self._architecture.vocab_size

    @property
    def max_sequences(self) -> int:
        """How many sequences may be live at once."""
        return len(self._table.slots)

    @property
    def max_length(self) -> int:
        """The longest prefix, drafts included, in tokens."""
        return self._max_length

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Tokens that end a sequence, from the model's generation config."""
        return self._architecture.eos_token_ids

    @property
    def device(self) -> torch.device:
        """Where logits live."""
        return self._architecture.device

    @property
    def dtype(self) -> torch.dtype:
        """Of the keys and values, and so of the model's computation."""
        return self._architecture.dtype

    @property
    def ragged(self) -> bool:
        """Whether rows of a batch are verified without what would pad them to the longest draft.

        Unless the model is changed later so that its own forward has to run.
        """
        return self.device.type == "cpu" and isinstance(self._forward, DirectForward)

    @property
    def live_sequences(self) -> frozenset[int]:
        """The sequences that hold a slot."""
        return frozenset(self._table.owner)

    @property
    def empty_slots(self) -> int:
        """How many slots are no sequence's and hold nothing for one to share."""
        slots = self._table.slots
        return sum(slot.sequence_id is None and not slot.length for slot in slots)

    def check_integrity(self) -> None:
        """Raise AssertionError if the books about slots contradict each other."""
        self._table.check_integrity()

    def release(self, sequence_ids: Iterable[int], *, discard: bool = False) -> None:
        """These sequences are finished: their slots may be taken by new ones.

        With `discard`, what their slots hold is wiped, so that no other sequence shares it.
        """
        with self.lock:
            for index in self._table.release(sequence_ids):
                if discard:
                    self._table.slots[index].record(0, np.empty(0, dtype=np.int64))
                    self._cache.clear(index)

    @torch.inference_mode()
    def verify(self, prefixes: Sequence[Prefix], proposal: DraftProposal) -> TargetScores:
        """Logits [B, N + 1, V] after each prefix and after each of its drafted tokens.

        A token is seen by those that follow it and by no other. One forward computes them all, and
        what the next prefix names of them is kept. Beyond a row's length logits mean nothing.

        Raises:
            ContextLengthError: a prefix with its longest path of drafts is longer than
                `max_length`.
            ModelError: more sequences are live than there are slots.
        """
        parents, lengths = proposal.parents, proposal.lengths
        ancestors = None if parents is None else trees.ancestor_mask(parents)
        longest = lengths if ancestors is None else trees.longest_paths(ancestors, lengths)
        with self.lock:
            batch = self.enter(prefixes, longest.tolist())
            drafts, lengths = proposal.tokens, proposal.lengths
            if batch.order is not None:
                drafts, lengths = drafts[batch.order], lengths[batch.order]
            tokens = torch.cat([batch.tokens, drafts], 1)
            ragged = None
            if ancestors is None and (lengths < proposal.width).any() and self.ragged:
                own = (lengths + batch.tokens.shape[1]).tolist()
                ragged = Ragged.of(own, tokens.shape[1], proposal.width + 1, self.device)
            if ancestors is None:
                view = self.views.chain(batch.starts, tokens.shape[1])
            else:
                rows = ancestors if batch.order is None else ancestors[batch.order]
                hung = sent(hung_on_chains(rows, batch.tokens.shape[1]), self.device)
                view = self.views.tree(batch.starts, hung, tokens.shape[1])
            keep = proposal.width + 1
            logits = self.forward(batch.slots, batch.starts, tokens, view, keep, ragged=ragged)
            drafted = None if ragged is None else proposal.lengths.tolist()
            self._settle(prefixes, HostCopy(proposal.tokens, parents), drafted)
        return TargetScores(unsorted(logits, batch.order), tuple(batch.cached))

    @torch.inference_mode()
    def open(self, prefixes: Sequence[Prefix], depth: int) -> SlotCursor:
        """A cursor at the end of the prefixes, to be fed fewer than `depth` tokens in a row.

        Raises:
            ContextLengthError: a prefix is longer than `max_length`.
            ModelError: more sequences are live than there are slots.
        """
        with self.lock:
            batch = self.enter(prefixes, [0] * len(prefixes))
            missing = batch.tokens.shape[1]
            view = self.views.chain(batch.starts, missing)
            logits = self.forward(batch.slots, batch.starts, batch.tokens, view, 1)[:, 0]
            fed = FedTokens(len(prefixes))
            self._settle(prefixes, fed)
        return SlotCursor(self, batch, fed, logits, depth)

    def enter(
        self, prefixes: Sequence[Prefix], extra: list[int], alone_beyond: int | None = None
    ) -> SlotBatch:
        """Find or make room for each prefix, and prefill rows that miss much, one by one.

        What then remains is the same number m of last tokens for every row. A row that misses fewer
        than m computes some again, which costs less than padding and changes nothing.

        Args:
            prefixes: of the rows.
            extra: how many drafts follow each in a row.
            alone_beyond: rows that miss more tokens than this are prefilled, and no other; None
                for what costs least.

        Raises:
            EmptyPrefixError, ContextLengthError, ModelError: as `verify` and `open`.
        """
        for prefix, more in zip(prefixes, extra, strict=True):
            if len(prefix) == 0:
                raise EmptyPrefixError(
                    f"sequence {prefix.sequence_id} has no tokens; a prefix needs at least one"
                )
            if len(prefix) + more > self._max_length:
                raise ContextLengthError(
                    f"sequence {prefix.sequence_id} has {len(prefix)} tokens and {more} drafts "
                    f"in a row; the model's context is {self._max_length}"
                )
        shortest, together = min(map(len, prefixes)), self._chunk // len(prefixes)
        few = self._chunk if len(prefixes) == 1 else min(_TOGETHER, self._chunk)
        slots, behind, cached = [], [], []
        for prefix in prefixes:
            known = prefix.sequence_id in self._table.owner
            # What only its own row misses is read by all at once, as long as that is a chunk.
            most = min(alone_beyond or (max(few, together) if known else few), shortest)
            placement = self._table.place(prefix)
            cached.append(0 if known else placement.shared)
            self._cache.collect(placement)
            slots.append(placement.slot)
            behind.append(len(prefix) - placement.shared)
            if behind[-1] > most:
                # At once, so that the next rows may share it.
                self._prefill(prefix, placement.slot, placement.shared)
                behind[-1] = 1
        if max(slots) - min(slots) >= len(slots) and not self._forward.reads_apart:
            for slot, other in self._table.side_by_side(slots):
                self._swap(slot, other)
                slots[slots.index(slot)] = other
        missing = max(behind) if alone_beyond else _cheapest(behind)
        for prefix, slot, count in zip(prefixes, slots, behind, strict=True):
            if count > missing:
                self._prefill(prefix, slot, len(prefix) - count)
        order = None
        if any(a > b for a, b in pairwise(slots)):
            order = sorted(range(len(slots)), key=slots.__getitem__)
            prefixes = [prefixes[row] for row in order]
            slots = [slots[row] for row in order]
        tokens = np.array([prefix.tokens[-missing:] for prefix in prefixes])
        starts = [len(prefix) - missing for prefix in prefixes]
        return SlotBatch(slots, starts, sent(torch.from_numpy(tokens), self.device), order, cached)

    def _swap(self, slot: int, other: int) -> None:
        """Exchange a live slot with an idle one; if that fails, both are known to hold nothing."""
        slots = self._table.slots
        columns, others = slots[slot].extent, slots[other].extent
        self._table.swap(slot, other)
        try:
            self._cache.swap(slot, other, columns, others)
        except BaseException:
            for index in (slot, other):
                slots[index].record(0, np.empty(0, dtype=np.int64))
            raise

    def _prefill(self, prefix: Prefix, slot: int, start: int) -> None:
        """Compute all but the last token of a prefix, a chunk at a time."""
        end = len(prefix) - 1
        while start < end:
            stop = min(end, start + self._chunk)
            tokens = sent(torch.from_numpy(prefix.tokens[start:stop]), self.device)[None]
            self.forward([slot], [start], tokens, self.views.chain([start], stop - start), 1)
            self._table.slots[slot].record(start, prefix.tokens[start:stop])
            start = stop

    def _settle(
        self,
        prefixes: Sequence[Prefix],
        after: HostCopy | FedTokens,
        lengths: list[int] | None = None,
    ) -> None:
        """Note what each slot's columns hold: the prefix, then tokens still on the device.

        What pads a row beyond its length is not among them where it was not computed.
        """
        for row, prefix in enumerate(prefixes):
            own = RowTokens(after, row, None if lengths is None else lengths[row])
            self._table.settle(prefix.sequence_id, prefix.tokens, own)

    @torch.inference_mode()
    def reserve(self, tokens: int) -> None:
        """Make room for prefixes of so many tokens in every slot, so that no round has to.

        Slots grow as they are needed, to twice what they were: a round that meets that waits for
        the memory.

        Args:
            tokens: as many as the longest sequence will have.

        Raises:
            InvalidConfigError: they are less than 1 or more than `max_length`.
            RuntimeError: there is no memory for them; the slots are as they were.
        """
        if not 1 <= tokens <= self._max_length:
            raise InvalidConfigError("tokens", tokens, f"an integer in 1..{self._max_length}")
        with self.lock:
            self._cache.reserve(tokens + WIDEST)

    def forward(
        self,
        slots: list[int],
        starts: list[int],
        tokens: Tensor,
        view: View,
        keep: int,
        other: DirectForward | ModuleForward | None = None,
        ragged: Ragged | None = None,
    ) -> Tensor:
        """Compute columns [B, q] of the cache, and the logits [B, keep, V] of the last of them.

        `other`, a forward through the same first layers, takes the place of the model's. Columns
        that are not among the `ragged` ones, and their logits, need not be computed.
        """
        with self.lock:
            compiled = self._compiled
            if compiled is not None and view.span > compiled.capacity:
                _LOG.warning("a tree beyond the context outgrows the compiled cache: running eager")
                compiled = self._compiled = None
            if compiled and other is None and compiled.serves(slots, tokens.shape[1]):
                return compiled(slots[0], tokens, view)[:, -keep:]
            self._cache.reserve(view.span)
            self._cache.aim(slots, starts, tokens.shape[1], view.span, view.columns)
            return (other or self._forward)(
                input_ids=tokens,
                attention_mask=view.masks,
                position_ids=view.positions,
                past_key_values=self._cache,
                logits_to_keep=keep,
                ragged=ragged,
            )

    @torch.inference_mode()
    def _compile(self) -> None:
        """Compile the forwards of one row over a cache that will not grow.

        Raises:
            ModelError: there is no C++ compiler, or no memory for the cache.
        """
        require_compiler(self.device)
        try:
            self._cache.reserve(self._max_length + WIDEST)
        except RuntimeError as error:
            raise ModelError(
                f"there is no memory for a cache of {self.max_sequences} slots of "
                f"{self._max_length} tokens, which compiling needs ({error}); lower max_sequences "
                "or max_length, or do not compile"
            ) from error
        try:
            self._compiled = CompiledForward(
                self.hf_model, self._cache, self.views, self.vocab_size, self._max_length
            )
        except ModelError as error:
            _LOG.warning("%s; it is run eagerly", error)
            return
        self.compile_s = self._compiled.compile_s


def _cheapest(behind: Sequence[int]) -> int:
    """How many of their last tokens rows compute together, so that least is computed in all.

    Args:
        behind: how many tokens each row misses, at least one. Those that miss more are prefilled.
    """

    def computed(together: int) -> int:
        alone = sum(count + _FORWARD for count in behind if count > together)
        return together * len(behind) + alone

    return min({1, *behind}, key=computed)
