"""Models whose keys and values stand in a pool of blocks: what all of them have in common.

Every call names whole prefixes. A new sequence is given the blocks that hold the beginning of its
prefix; of one that goes on, what its prefix shares with what was computed is kept. The rest is one
forward of flat arrays. Rejected drafts are never removed: the next prefix does not name them, so
what they left is written over.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from copy import copy
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from ..config.validation import integer
from ..errors import InvalidConfigError, ModelError
from ..types import trees
from ..types.records import DraftProposal, HiddenStates, Prefix, TargetScores
from ..types.transfer import sent
from .base import Capabilities, Cursor, Found, PrefillProgress, Runtime, Watcher
from .blocks import SIZE, BlockCopy, BlockPool
from .flat import Computed, DraftedTokens, FlatBatch, Integers, Outputs, rows_of
from .lengths import PREFILLED_ALONE, check_lengths
from .memory import affordable
from .paged_cursor import PagedCursor
from .paths import by_paths, paths_to_nodes
from .states import States
from .whole import Whole

_BESIDE = 4
"""Blocks of a sequence for drafts, trees among them, beside those of its longest text."""


class PagedModel(Runtime):
    """A model over a pool of blocks. Several decoders, in several threads, may share one."""

    _layers: tuple[int, ...] = ()
    """Whose hidden states it gives."""

    _cache: Any
    """Keys and values in blocks; has `copy_blocks`."""

    _watcher: Watcher | None = None
    """Who wants these."""

    def _allot(
        self,
        capabilities: Capabilities,
        block_bytes: int,
        memory: int | None,
        chunk: int,
        state_bytes: int = 0,
    ) -> None:
        """Make a pool of blocks, all of them free.

        Args:
            capabilities: what the model can do.
            block_bytes: of one block, in all layers.
            memory: bytes that blocks may take; None for what is needed, or half of what is free.
            chunk: the most prompt tokens computed in one forward.
            state_bytes: of the recurrent states of all sequences and checkpoints.
        """
        slots, longest = capabilities.max_sequences, capabilities.max_length
        assert slots is not None
        assert longest is not None
        self._capabilities = capabilities
        self.longest = longest
        most = slots * (longest // SIZE + _BESIDE)
        blocks = affordable(block_bytes, most, memory, capabilities.device, state_bytes)
        self.pool = BlockPool(blocks)
        self._whole = Whole()
        self._computed: dict[int, Computed] = {}
        self.states = States()
        self._chunk = chunk

    def fresh(self, max_sequences: int) -> Self:
        """Make a runtime over the same weights with a pool of blocks of its own."""
        other = copy(self)
        other._make_pool(integer("max_sequences", max_sequences, 1))
        return other

    @abstractmethod
    def _make_pool(self, max_sequences: int) -> None:
        """Make a pool of blocks, all of them free, for so many sequences; see `_allot`."""

    @property
    def capabilities(self) -> Capabilities:
        """What this runtime can do."""
        return self._capabilities

    @property
    def live_sequences(self) -> frozenset[int]:
        """The sequences that have blocks."""
        return frozenset(self._computed)

    @property
    @abstractmethod
    def layer_count(self) -> int:
        """How many layers there are."""

    @abstractmethod
    def forward(self, batch: FlatBatch, run: Any = None) -> Outputs:
        """Compute a batch, and write its keys and values to the blocks.

        Args:
            batch: what is computed.
            run: computes it in place of the model, as its first layers do; None for the model.
        """

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """Copy the first tokens of blocks, one after the other."""
        self._cache.copy_blocks(copies)

    def reset(self) -> None:
        """Forget all that was computed."""
        with self.whole():
            self._forget()

    def check_integrity(self) -> None:
        """Raise AssertionError if what is known of the blocks contradicts itself."""
        with self.whole():
            wrong = self.pool.contradiction()
            if self.pool.sequences != self._computed.keys():
                wrong = "sequences with blocks and without"
        assert wrong is None, wrong

    def release(self, sequence_ids: Iterable[int], *, discard: bool = False) -> None:
        """Give back the blocks of sequences that will not be asked about again.

        With `discard` no other sequence finds what they held.
        """
        ids = list(sequence_ids)
        with self.whole():
            for sequence_id in ids:
                computed = self._computed.pop(sequence_id, None)
                if computed is not None and not discard:
                    self.states.save(sequence_id, computed.tokens)
            self.states.release(ids)
            self.pool.release(ids, discard=discard)

    @property
    def free_blocks(self) -> int:
        """How many blocks no sequence uses."""
        with self.whole():
            return self.pool.available

    def lookup(self, prefix: Prefix) -> Found:
        """Say what a new sequence would find; see `Runtime.lookup`."""
        with self.whole():
            blocks, tokens = self.pool.find(self.states.findable(prefix.tokens[:-1], self.pool))
            shared = self.pool.used(blocks[: tokens // self.pool.size])
            return Found(tokens, len(prefix) // self.pool.size + 1 - shared)

    @torch.inference_mode()
    def verify(self, prefixes: Sequence[Prefix], proposal: DraftProposal) -> TargetScores:
        """Compute logits [B, N + 1, V] after each prefix and each of its drafted tokens.

        One forward computes them all. What the next prefix names of a chain is kept; of a tree,
        what stands where a chain's tokens would. For the errors see `Runtime.verify`.
        """
        parents, lengths = proposal.parents, proposal.lengths
        mask = None if parents is None else trees.ancestor_mask(parents)
        longest = lengths if parents is None else trees.longest_paths(parents, lengths)
        check_lengths(prefixes, longest.tolist(), self.longest)
        ancestors = None if mask is None else sent(mask, self.device)
        with self.whole():
            batch, cached = self._entered(prefixes, proposal.tokens, lengths, ancestors)
            logits, states = outputs = self.forward(batch)
            lengths = lengths.copy()
            # A draft of which the model makes NaN or infinite keys and values spoils the logits of
            # nodes that do not see it: zero times NaN is NaN.
            spoiled = logits[..., 0].isnan().any(1).nonzero().flatten().tolist()
            for row in spoiled:
                # One by one, and the prefix last, so that they need no blocks but the row's own.
                for path in reversed(paths_to_nodes(batch, row)):
                    by_paths(self, batch, self.forward, {row: [path]}, outputs)
                lengths[row] = 0
            # Of trees, the leading nodes that follow one another in every row stand in their place.
            placed = (proposal.structure == np.arange(proposal.width)).all(0)
            chain = int(np.logical_and.accumulate(placed).sum())
            self._settle(prefixes, DraftedTokens().add(proposal.tokens[:, :chain]), lengths)
        if states is None:
            return TargetScores(logits, cached)
        self._show(prefixes, batch, states)
        return TargetScores(logits, cached, batch.nodes(states))

    @torch.inference_mode()
    def open(self, prefixes: Sequence[Prefix], depth: int, run: Any = None) -> Cursor:
        """Open a cursor at the end of the prefixes; see `Runtime.open`.

        Args:
            prefixes: of the rows.
            depth: of the drafts.
            run: computes the forwards in place of the model: its own first layers. What they
                compute is not relied on.
        """
        # First layers compute no prompt: the model does, which relies on it later.
        return self._opened(prefixes, depth, run, relied=run is None)

    def _opened(
        self, prefixes: Sequence[Prefix], depth: int, run: Any, *, relied: bool
    ) -> PagedCursor:
        """Open a cursor; `relied` says whether what `run` computes is relied on later."""
        check_lengths(prefixes, [0] * len(prefixes), self.longest)
        with self.whole():
            tokens = torch.empty(len(prefixes), 0, dtype=torch.int64, device=self.device)
            none, more = np.zeros(len(prefixes), dtype=np.int64), max(0, depth - 1)
            together = None if relied else 1
            batch, _ = self._entered(prefixes, tokens, none, more=more, together=together)
            logits, drafts = self.forward(batch, run).logits[:, 0], DraftedTokens()
            if relied:
                self._settle(prefixes, drafts)
            held = [self._computed[prefix.sequence_id] for prefix in prefixes]
        return PagedCursor(self, run, prefixes, held, drafts, logits)

    @torch.inference_mode()
    def prefill(self, prefix: Prefix, most: int) -> PrefillProgress:
        """Compute at most so many tokens of a prefix; see `Runtime.prefill`."""
        check_lengths([prefix], [0], self.longest)
        with self.whole():
            start, cached = self._admitted(prefix)
            stop = min(len(prefix) - 1, start + most)
            self._prefill(prefix, start, stop)
        return PrefillProgress(len(prefix) - 1 - stop, cached)

    def with_hidden(self, layers: Sequence[int], watcher: Watcher | None = None) -> Self:
        """Return this model, over the same blocks, with hidden states; see `Runtime`."""
        last = self.layer_count
        for layer in layers:
            if not 0 <= layer <= last:
                raise InvalidConfigError("hidden_layers", layer, f"layers from 0 to {last}")
        other = copy(self)
        other._layers, other._watcher = tuple(layers), watcher
        return other

    def drop_last(self, prefix: Prefix) -> Computed:
        """Note that a prefix's last token has to be computed again; return what is left."""
        self._computed[prefix.sequence_id] = left = Computed(prefix.tokens[:-1])
        return left

    def holds(self, prefixes: Sequence[Prefix], held: Sequence[Computed]) -> bool:
        """Whether of these sequences nothing was computed since this was all."""
        found = [self._computed.get(prefix.sequence_id) for prefix in prefixes]
        return all(one is other for one, other in zip(found, held, strict=True))

    def whole(self) -> AbstractContextManager[None]:
        """Make a call whole before the next; what an interrupted one left is forgotten."""
        return self._whole.call(self._forget)

    def _forget(self) -> None:
        self._computed.clear()
        self.pool.forget()
        self.states.forget()

    def _admitted(self, prefix: Prefix) -> tuple[int, int]:
        """Find what was computed of a prefix, its last token left out.

        Returns:
            How many of its tokens, and if the sequence is new once more.
        """
        name, known = prefix.sequence_id, prefix.tokens[:-1]
        if name in self._computed:
            shared = self._computed[name].shared(known)
            start = self.states.cut(name, shared)
            if self.states.recurrent:  # what follows is relied on as far as the states go
                self._computed[name] = Computed(known[:start])
            return start, 0
        most = self.max_sequences
        if most is not None and len(self._computed) >= most:
            raise ModelError(
                f"sequence {name} is new and {most} sequences are live; release a finished one "
                "first, or raise max_sequences"
            )
        if self._watcher is not None:
            known = known[: self._watcher.known(prefix)]
        found = self.pool.admit(name, self.states.findable(known, self.pool))
        found = self.states.admit(name, known[:found])
        self._computed[name] = Computed(known[:found])
        return found, found

    def _entered(
        self,
        prefixes: Sequence[Prefix],
        drafts: Tensor,
        lengths: Integers,
        ancestors: Tensor | None = None,
        *,
        more: int = 0,
        together: int | None = None,
    ) -> tuple[FlatBatch, tuple[int, ...]]:
        """Lay out what is to be computed of sequences, which are admitted if they are new.

        Those that miss much are prefilled before, one by one, so that others share it.

        Args:
            prefixes: of the rows.
            drafts, lengths, ancestors: what follows them; see `flat_batch`.
            more: for how many tokens after these there is to be room.
            together: rows that miss more tokens than this are prefilled; None for the usual.

        Returns:
            What is left to compute, and how many tokens of each new sequence were found computed.
        """
        if together is None:
            few = len(prefixes) > 1 or self.states.recurrent
            together = min(PREFILLED_ALONE, self._chunk) if few else self._chunk
        starts: list[int] = []
        cached: list[int] = []
        for prefix in prefixes:
            start, found = self._admitted(prefix)
            if len(prefix) - start > together:
                self._prefill(prefix, start, len(prefix) - 1)
                start = len(prefix) - 1
            starts.append(start)
            cached.append(found)
        tables = self._extended(prefixes, starts, lengths + more)
        batch = self.flat_batch(prefixes, starts, tables, drafts, lengths, ancestors)
        return batch, tuple(cached)

    def _extended(
        self, prefixes: Sequence[Prefix], starts: Sequence[int], more: Integers
    ) -> list[list[int]]:
        """Make room for prefixes and so many tokens after each, and return their blocks."""
        tables = []
        self.states.fold([prefix.sequence_id for prefix in prefixes], starts)
        for prefix, start, count in zip(prefixes, starts, more.tolist(), strict=True):
            name = prefix.sequence_id
            self.copy_blocks(self.pool.extend(name, start, len(prefix) + count))
            self._computed[name] = Computed(prefix.tokens[:start])
            tables.append(list(self.pool.blocks(name)))
        return tables

    def flat_batch(
        self,
        prefixes: Sequence[Prefix],
        starts: Sequence[int],
        tables: Sequence[Sequence[int]],
        drafts: Tensor,
        lengths: Integers,
        ancestors: Tensor | None = None,
        first: int = 0,
    ) -> FlatBatch:
        """Lay what is to be computed side by side.

        Args:
            prefixes: of the rows.
            starts: the first position of each that is computed.
            tables: of their blocks.
            drafts: int64 [B, N].
            lengths: how many of them each row has, int64 [B].
            ancestors, first: see `FlatBatch`.
        """
        past = np.array(starts, dtype=np.int64)
        missing = np.array([len(prefix) for prefix in prefixes], dtype=np.int64) - past
        known = np.concatenate(
            [prefix.tokens[start:] for prefix, start in zip(prefixes, starts, strict=True)]
        )
        counts, width = missing + lengths, drafts.shape[1]
        row, within = rows_of(counts)
        draft = within - missing[row]
        before = (np.cumsum(missing) - missing)[row]
        index = np.where(draft < 0, before + within, len(known) + row * width + draft)
        tokens = sent(known, self.device)
        positions = sent(past[row] + within, self.device)
        if lengths.any():
            of = sent(index, self.device)
            tokens = torch.cat([tokens, drafts.flatten()])[of]
            if ancestors is not None:
                ends = sent(past + missing - 1, self.device)
                nodes = (ends[:, None] + ancestors.sum(2)).flatten()
                known_only = positions.new_zeros(len(known))
                node = torch.cat([known_only, nodes])[of]
                positions = torch.where(of < len(known), positions, node)
        positions = positions.clamp(max=self.longest - 1)
        ids = [prefix.sequence_id for prefix in prefixes]
        return FlatBatch(
            tokens=tokens,
            positions=positions,
            sequence_ids=ids,
            past=past,
            missing=missing,
            drafted=lengths,
            tables=tables,
            ancestors=ancestors,
            width=width,
            first=first,
            layers=self._layers,
        )

    def _prefill(self, prefix: Prefix, start: int, end: int) -> None:
        """Compute the tokens of a prefix from `start` to `end`, a chunk at a time."""
        none = np.zeros(1, dtype=np.int64)
        tokens = torch.empty(1, 0, dtype=torch.int64, device=self.device)
        while start < end:
            stop = min(end, start + self._chunk)
            part = Prefix(prefix.sequence_id, prefix.tokens[:stop])
            tables = self._extended([part], [start], none)
            batch = self.flat_batch([part], [start], tables, tokens, none)
            states = self.forward(batch).hidden
            self._settle([part], DraftedTokens())
            self._show([part], batch, states)
            start = stop
        if end == len(prefix) - 1:
            self.states.fold([prefix.sequence_id], [end])
            self.states.save(prefix.sequence_id, prefix.tokens)

    def _show(self, prefixes: Sequence[Prefix], batch: FlatBatch, states: Tensor | None) -> None:
        """Hand the hidden states of prefixes' tokens that were computed to who wants them.

        Args:
            prefixes: of the rows.
            batch: what was computed.
            states: of all its tokens, [T, L, D]; None where none were asked for.
        """
        if self._watcher is None or states is None:
            return
        ends = (batch.begins[:-1] + batch.missing).tolist()
        rows = zip(prefixes, batch.past.tolist(), batch.begins.tolist(), ends, strict=False)
        self._watcher.observe_round(
            [HiddenStates(prefix, past, states[one:end]) for prefix, past, one, end in rows]
        )

    def _settle(
        self,
        prefixes: Sequence[Prefix],
        drafts: DraftedTokens,
        lengths: Integers | None = None,
    ) -> None:
        """Note what was computed of each sequence: its prefix, then so many of a row of drafts."""
        for row, prefix in enumerate(prefixes):
            self.pool.note(prefix.sequence_id, prefix.tokens)
            count = None if lengths is None else int(lengths[row])
            self._computed[prefix.sequence_id] = Computed(prefix.tokens, drafts, row, count)
