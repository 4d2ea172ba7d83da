"""Any decoder-only model of transformers, as a target or as a drafter, over a slot cache.

Every call names whole prefixes. The runtime finds each sequence's slot, keeps the columns that the
prefix shares with it, and computes the rest in one forward for all rows: rows of different lengths
sit in one batch without padding on the left, and a rejected draft costs nothing to undo.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from copy import copy
from itertools import pairwise
from threading import RLock
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import Module
from transformers import PreTrainedModel

from ...config.validation import integer
from ...errors import InvalidConfigError
from ...types import trees
from ...types.records import DraftProposal, Prefix, TargetScores
from ...types.transfer import sent
from ..base import Capabilities, PrefillProgress, Runtime, rounding_of
from ..lengths import PREFILLED_ALONE, check_lengths, checked_length
from ..slots import PendingTokens, Slot, SlotTable
from .attention_inputs import AttentionInputMaker, AttentionInputs, prefix_tree_mask
from .cursor import Run, SlotBatch, SlotCursor
from .rollback import check_rollback
from .slot_cache import SlotCache
from .support import Architecture, inspect_architecture, refuse_unsupported
from .twin import twin

_LOG = logging.getLogger(__name__)

_PRODUCTS = {"tf32": 2.0**-10, "bf16": 2.0**-7}
"""Eps of the types in which torch may multiply float32."""

_FEW = 4
"""Rows that miss more tokens are prefilled before first layers draft: these compute the rest.
"""


class TransformersModel(Runtime):
    """A causal language model of transformers with a slot cache: a target, or a drafter's model.

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
        max_sequences: how many sequences may be live at once: the slots of the cache.
        max_length: the longest prefix, drafts included; None takes the model's context.
        prefill_chunk: the most prompt tokens computed in one forward.

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
    ) -> None:
        max_sequences = integer("max_sequences", max_sequences, 1)
        self._chunk = integer("prefill_chunk", prefill_chunk, 1)
        self.hf_model = _uncompiled(hf_model)
        self._given = hf_model
        refuse_unsupported(self.hf_model)
        eager = self._eager()
        self.run, architecture = self._prepared(eager, inspect_architecture(self.hf_model, eager))
        self._architecture = architecture
        longest = checked_length(max_length, architecture.context_length)
        self.attention = AttentionInputMaker(architecture, longest)
        self._allot(max_sequences)
        check_rollback(self)

    def _allot(self, max_sequences: int) -> None:
        """Make slots, all of them empty."""
        of = self._architecture
        self._capabilities = Capabilities(
            of.vocab_size, of.device, max_sequences, self.attention.max_length, of.eos_token_ids
        )
        self._table = SlotTable(max_sequences, adjacent=True)
        self._cache = SlotCache(of.layers, max_sequences)
        self.lock = RLock()

    @property
    def capabilities(self) -> Capabilities:
        """What this runtime can do."""
        return self._capabilities

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
        """
        dtype, backends = self.hf_model.dtype, torch.backends
        matmul = (backends.cuda if self.device.type == "cuda" else backends.mkldnn).matmul
        narrow = _PRODUCTS.get(matmul.fp32_precision, 0.0) if dtype == torch.float32 else 0.0
        return rounding_of(max(torch.finfo(dtype).eps, narrow))

    @property
    def token_ratio(self) -> float:
        """More on a CPU than elsewhere; see `Runtime.token_ratio`."""
        return 0.1 if self.device.type == "cpu" else super().token_ratio

    @property
    def live_sequences(self) -> frozenset[int]:
        """The sequences that hold a slot."""
        return frozenset(self._table.owner)

    def check_integrity(self) -> None:
        """Raise AssertionError if what is known of the slots contradicts itself."""
        wrong = self._table.contradiction(self._cache.capacity)
        assert wrong is None, wrong

    def release(self, sequence_ids: Iterable[int], *, discard: bool = False) -> None:
        """Free the slots of sequences that will not be asked about again.

        With `discard`, what their slots hold is wiped, so that no other sequence shares it.
        """
        with self.lock:
            freed = self._table.release(sequence_ids, discard=discard)
            if discard:
                self._cache.clear(freed)

    def fresh(self, max_sequences: int) -> Self:
        """Make a runtime over the same weights with `max_sequences` empty slots of its own."""
        other = copy(self)
        other._allot(integer("max_sequences", max_sequences, 1))
        return other

    def reset(self) -> None:
        """Forget all that was computed, and look at the model anew: it has changed."""
        with self.lock:
            self._forget()
            self.run = self._eager()

    def _forget(self) -> None:
        self._table.forget()
        self._cache.clear(range(len(self._table.slots)))

    @torch.inference_mode()
    def verify(self, prefixes: Sequence[Prefix], proposal: DraftProposal) -> TargetScores:
        """Compute logits [B, N + 1, V] after each prefix and each of its drafted tokens.

        One forward computes them all. What the next prefix names of a chain is kept; of a tree,
        what stands where a chain's tokens would. For the errors see `Runtime.verify`.
        """
        parents, lengths, keep = proposal.parents, proposal.lengths, proposal.width + 1
        ancestors = None if parents is None else trees.ancestor_mask(parents)
        longest = lengths if ancestors is None else trees.longest_paths(ancestors, lengths)
        with self.lock:
            batch = self._enter(prefixes, longest.tolist(), PREFILLED_ALONE)
            tokens = torch.cat([batch.tokens, batch.sorted(proposal.tokens)], 1)
            if ancestors is None:
                inputs = self.attention.chain(batch.starts, tokens.shape[1])
            else:
                rows = ancestors if batch.order is None else ancestors[batch.order]
                own = sent(prefix_tree_mask(rows, batch.tokens.shape[1]), self.device)
                inputs = self.attention.tree(batch.starts, own, tokens.shape[1])
            logits = self.forward(batch.slots, batch.starts, tokens, inputs, keep)
            # Of trees, the leading nodes that follow one another in every row stand in their place.
            placed = (proposal.structure == np.arange(proposal.width)).all(0)
            chain_width = int(np.logical_and.accumulate(placed).sum())
            self._settle(prefixes, PendingTokens().add(proposal.tokens[:, :chain_width]))
            logits = batch.unsorted(logits)
            for row in logits[..., 0].isnan().any(1).nonzero().flatten().tolist():
                missing = batch.tokens.shape[1]
                logits[row] = self._node_by_node(prefixes[row], proposal, row, missing, logits[row])
        return TargetScores(logits, batch.cached)

    def _node_by_node(
        self, prefix: Prefix, proposal: DraftProposal, row: int, missing: int, logits: Tensor
    ) -> Tensor:
        """Compute a row again whose logits have NaN, each node without what does not lead to it.

        A draft of which the model makes NaN or infinite keys and values spoils the logits of nodes
        that do not see it, and all columns of the forward: zero times NaN is NaN.

        Args:
            prefix: of the row.
            proposal: of all rows.
            row: its index.
            missing: how many of the prefix's last tokens the forward computed.
            logits: of the row, [N + 1, V].

        Returns:
            Its logits: NaN after such drafts alone. The slot holds nothing of the drafts.
        """
        slot, start = self._table.owner[prefix.sequence_id], len(prefix) - missing
        known, drafted = prefix.tokens[start:], proposal.tokens[row].cpu().numpy()
        parents, found = proposal.structure[row].tolist(), torch.full_like(logits, torch.nan)
        for node in (*range(int(proposal.lengths[row]) + 1), 0):  # Last, what stays in the slot.
            if node and found[parents[node - 1], 0].isnan():
                continue
            path = [step - 1 for step in trees.path(parents, node)]
            tokens = torch.from_numpy(np.append(known, drafted[path]))[None].to(self.device)
            self._cache.clear([slot], start)
            inputs = self.attention.chain([start], tokens.shape[1])
            found[node] = self.forward([slot], [start], tokens, inputs, 1)[0, 0]
        self._table.hold(slot, prefix.tokens)
        return found

    @torch.inference_mode()
    def open(self, prefixes: Sequence[Prefix], depth: int, run: Run | None = None) -> SlotCursor:
        """Open a cursor at the end of the prefixes; see `Runtime.open`.

        Args:
            prefixes: of the rows.
            depth: of the drafts.
            run: computes the forwards in place of the model: its own first layers. What they
                compute is not relied on.
        """
        with self.lock:
            batch = self._enter(prefixes, [0] * len(prefixes), PREFILLED_ALONE)
            inputs = self.attention.chain(batch.starts, batch.tokens.shape[1])
            logits = self.forward(batch.slots, batch.starts, batch.tokens, inputs, 1, run)[:, 0]
            pending = PendingTokens()
            if run is None:
                self._settle(prefixes, pending)
            held = [self._table.slots[slot] for slot in batch.slots]
        return SlotCursor(self, run, batch, held, pending, logits)

    @torch.inference_mode()
    def prefill_prompts(self, prefixes: Sequence[Prefix]) -> tuple[int, ...]:
        """Compute all but the last few tokens of each prefix; for the errors see `Runtime.open`.

        Returns:
            The number of tokens that were found computed of each new one.
        """
        with self.lock:
            return self._enter(prefixes, [0] * len(prefixes), _FEW).cached

    def computed(self, prefix: Prefix) -> int:
        """Return what a new sequence would find; see `Runtime.computed`."""
        with self.lock:
            return self._table.computed(prefix)

    @torch.inference_mode()
    def prefill(self, prefix: Prefix, most: int) -> PrefillProgress:
        """Compute at most so many tokens of a prefix; see `Runtime.prefill`."""
        with self.lock:
            self._check([prefix], [0])
            known = self._table.index_of(prefix.sequence_id) is not None
            slot, shared = self._placed(prefix)
            stop = min(len(prefix) - 1, shared + most)
            self._prefill(prefix, slot, shared, stop)
        return PrefillProgress(len(prefix) - 1 - stop, 0 if known else shared)

    def _placed(self, prefix: Prefix) -> tuple[int, int]:
        """Find or make room for a prefix; return its slot, and how many tokens that holds of it."""
        placement = self._table.place(prefix)
        self._cache.collect(placement)
        if placement.evicted is not None:
            self._table.hold(placement.evicted, placement.evicted_tokens)
        self._table.hold(placement.slot, prefix.tokens[: placement.shared])
        return placement.slot, placement.shared

    def _enter(self, prefixes: Sequence[Prefix], extra: list[int], together: int) -> SlotBatch:
        """Find or make room for each prefix, and prefill rows that miss much, one by one.

        What then remains is the same number m of last tokens for every row. A row that misses fewer
        than m computes some again, which costs less than padding and changes nothing.

        Args:
            prefixes: of the rows.
            extra: how many drafts follow each in a row.
            together: rows that miss more tokens than this are prefilled.
        """
        self._check(prefixes, extra)
        if len(prefixes) == 1 and together == PREFILLED_ALONE:
            together = self._chunk
        most = min(together, self._chunk, *map(len, prefixes))
        slots, behind, cached = [], [], []
        for prefix in prefixes:
            known = self._table.index_of(prefix.sequence_id) is not None
            slot, shared = self._placed(prefix)
            cached.append(0 if known else shared)
            if len(prefix) - shared > most:
                # At once, so that the next rows may share it.
                self._prefill(prefix, slot, shared, len(prefix) - 1)
                shared = len(prefix) - 1
            slots.append(slot)
            behind.append(len(prefix) - shared)
        order = None
        if any(a > b for a, b in pairwise(slots)):
            order = sorted(range(len(slots)), key=slots.__getitem__)
            prefixes = [prefixes[row] for row in order]
            slots = [slots[row] for row in order]
        missing = max(behind)
        tokens = torch.from_numpy(np.array([prefix.tokens[-missing:] for prefix in prefixes]))
        starts = [len(prefix) - missing for prefix in prefixes]
        return SlotBatch(slots, starts, sent(tokens, self.device), order, tuple(cached))

    def forward(
        self,
        slots: list[int],
        starts: list[int],
        tokens: Tensor,
        inputs: AttentionInputs,
        keep: int,
        run: Run | None = None,
    ) -> Tensor:
        """Compute columns [B, q] of the cache, and the logits [B, keep, V] of the last of them."""
        self._cache.reserve(inputs.span)
        self._cache.set_batch(slots, starts, inputs)
        logits: Tensor = (run or self.run)(
            input_ids=tokens,
            attention_mask=inputs.masks,
            position_ids=inputs.positions,
            use_cache=True,
            logits_to_keep=keep,
            **{self._architecture.cache_name: self._cache},
        ).logits
        return logits

    def holds(self, slots: Sequence[int], held: Sequence[Slot]) -> bool:
        """Whether the table knows of these slots what it knew."""
        return all(self._table.slots[i] is slot for i, slot in zip(slots, held, strict=True))

    def _prepared(self, run: Run, architecture: Architecture) -> tuple[Run, Architecture]:
        """Return what computes forwards, and its shape; a subclass may compile the model."""
        return run, architecture

    def _eager(self) -> Run:
        """The model's twin, or the model as its user compiled it."""
        compiled: Run = self._given
        return compiled if compiled is not self.hf_model else twin(self.hf_model)

    def _check(self, prefixes: Sequence[Prefix], extra: list[int]) -> None:
        """Refuse prefixes that do not fit, and forget a table that cannot be true."""
        check_lengths(prefixes, extra, self.attention.max_length)
        wrong = self._table.contradiction(self._cache.capacity)
        if wrong is not None:
            _LOG.warning("the slot cache is computed anew: %s", wrong)
            self._table.forget()

    def _prefill(self, prefix: Prefix, slot: int, start: int, end: int) -> None:
        """Compute the tokens of a prefix from `start` to `end`, a chunk at a time."""
        while start < end:
            stop = min(end, start + self._chunk)
            tokens = sent(torch.from_numpy(prefix.tokens[start:stop]), self.device)[None]
            self.forward([slot], [start], tokens, self.attention.chain([start], stop - start), 1)
            self._table.hold(slot, prefix.tokens[:stop])
            start = stop

    def _settle(self, prefixes: Sequence[Prefix], pending: PendingTokens) -> None:
        """Note what each slot's columns hold: the prefix, then tokens still on the device."""
        owner = self._table.owner
        for row, prefix in enumerate(prefixes):
            self._table.hold(owner[prefix.sequence_id], prefix.tokens, pending, row)


def _uncompiled(given: Any) -> Any:
    """The model itself, or the one that `torch.compile` was given.

    Raises:
        InvalidConfigError: it is no model of transformers.
    """
    inner = dict(given.named_children()).get("_orig_mod") if isinstance(given, Module) else None
    model = given if inner is None else inner
    if not isinstance(model, PreTrainedModel):
        raise InvalidConfigError(
            "hf_model", given, "a transformers model (outrider.load takes paths and hub ids)"
        )
    return model
