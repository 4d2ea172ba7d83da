"""Heads over blocks of their own: what they make of the target's states, by token.

States come after the target has computed a token, and are kept until the head is asked to draft
after it. What a prefix has in common with an earlier text is found in the blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from ...errors import CacheFullError
from ...runtimes.base import Capabilities, Cursor
from ...runtimes.blocks import common
from ...runtimes.flat import Computed, DraftedTokens, FlatBatch, Integers, Outputs, rows_of, slots
from ...runtimes.lengths import PREFILLED_ALONE, check_lengths
from ...runtimes.paged import PagedModel
from ...runtimes.transformers.block_cache import BlockCache, Grid, block_bytes
from ...types.records import HiddenStates, Prefix
from ...types.transfer import sent
from .checkpoint import HeadConfig
from .mtp import MtpNet
from .nets import HeadNet

_CHUNK = 512
"""The most tokens of a prompt that are computed in one forward."""


class HeadModel(PagedModel):
    """A head as a model over blocks.

    Args:
        net: its network.
        max_sequences: how many sequences may be live at once.
        max_length: the longest prefix, drafts included, in tokens.
        memory: bytes that blocks may take; None for what is needed, or half of what is free.
    """

    layer_count = 0  # that have hidden states to give

    def __init__(
        self,
        net: HeadNet | MtpNet,
        max_sequences: int,
        max_length: int,
        memory: int | None = None,
    ) -> None:
        self.net: Any = net
        self.config: HeadConfig = net.config
        self._longest, self._memory = max_length, memory
        self._make_pool(max_sequences)

    def _make_pool(self, max_sequences: int) -> None:
        inner, weight, layers = self.config.decoder, self.net.fc.weight, self._keyed()
        if self.config.eagle:  # of each token its state, too, which the next one needs
            layers += [(weight.new_empty(1, 1, 1, len(weight)), weight.new_empty(1, 1, 1, 1))]
        known = inner.vocab_size, weight.device, max_sequences, self._longest
        capabilities = Capabilities(*known, drafts_trees=not self.config.blocks)
        self._allot(capabilities, block_bytes(layers), self._memory, _CHUNK)
        self._cache: BlockCache = BlockCache(layers, self.pool.count)
        self._pending: dict[int, HiddenStates] = {}

    @torch.inference_mode()
    def _keyed(self) -> list[tuple[Tensor, Tensor]]:
        """Return keys and values of one token in each layer, [1, heads, 1, D]: their shapes."""
        cache, weight = DynamicCache(), self.net.fc.weight
        token = torch.zeros(1, 1, dtype=torch.int64, device=weight.device)
        before = weight.new_zeros(1, 1, len(weight))
        masks = dict.fromkeys(self.config.windows, before[..., None, :1])
        self.net(token, before if self.config.eagle else None, token, masks, cache)
        return [(layer.keys, layer.values) for layer in cache.layers]

    def _forget(self) -> None:
        super()._forget()
        self._pending.clear()

    @torch.inference_mode()
    def receive(self, hidden: Sequence[HiddenStates]) -> None:
        """Keep the target's states of sequences' tokens until they are needed."""
        for each in hidden:
            # A copy, so that the other states of its forward need not stay.
            name, own, start = each.prefix.sequence_id, each.states.clone(), each.start
            with self.whole():
                known = self._pending.get(name)
                if known is not None and known.start <= start <= known.start + len(known.states):
                    own = torch.cat([known.states[: start - known.start], own])
                    start = known.start
                self._pending[name] = HiddenStates(each.prefix, start, own)
            if len(own) > PREFILLED_ALONE:
                self._catch_up(name)

    def known(self, prefix: Prefix) -> int:
        """Return of how many first tokens states are known; a new sequence is given blocks."""
        if prefix.sequence_id not in self._computed:
            for name, waiting in list(self._pending.items()):
                alike, held = common(waiting.prefix.tokens, prefix.tokens), self._computed.get(name)
                if held is not None and alike > len(held.tokens):
                    self._catch_up(name)
        with self.whole():
            return self._known(prefix, self._admitted(prefix)[0])

    def release(self, sequence_ids: Iterable[int], *, discard: bool = False) -> None:
        """Give blocks back. States that were not needed yet are computed for others to find."""
        ids = list(sequence_ids)
        for name in ids if not discard else ():
            if name in self._computed:
                self._catch_up(name)
        with self.whole():
            for name in ids:
                self._pending.pop(name, None)
        super().release(ids, discard=discard)

    @torch.inference_mode()
    def open(self, prefixes: Sequence[Prefix], depth: int, run: Any = None) -> Cursor:
        """Open a cursor at the end of prefixes whose states are known; see `Runtime.open`."""
        config = self.config
        if not config.blocks:
            return self._opened(prefixes, depth, [], relied=True)
        check_lengths(prefixes, [0] * len(prefixes), self.longest)
        masks = (depth if config.eagle else config.number("block_size", 1)) - 1
        size, mask = (len(prefixes), masks), config.number("mask_token_id", 0)
        tokens = torch.full(size, mask, device=self.device)
        with self.whole():
            batch, *_ = self._entered(prefixes, tokens, np.full(len(prefixes), masks))
            cursor = self._block(prefixes, batch, tokens)
            # The block has written over the place of each prefix's last token.
            known = [Prefix(each.sequence_id, each.tokens[:-1]) for each in prefixes]
            self._settle(known, DraftedTokens())
        return cursor

    def _block(self, prefixes: Sequence[Prefix], batch: FlatBatch, masks: Tensor) -> BlockCursor:
        """Compute a batch of what prefixes miss, and blocks of mask tokens, int64 [B, n]."""
        logits = self.forward(batch).logits
        return BlockCursor(self.net, logits, logits, masks.new_zeros(len(prefixes)))

    def _fused(self, batch: FlatBatch) -> tuple[Tensor, Tensor, Tensor] | None:
        """Fuse the states of a batch's tokens as far as they are known, [n, H]; None for none.

        With them their positions, int64 [n], and where they are among all tokens of all blocks.
        """
        parts, rows, places = [], [], []
        for row, name in enumerate(batch.sequence_ids):
            known = self._pending.get(name)
            if known is not None:
                first = max(known.start, int(batch.past[row]))
                last = int(batch.past[row] + batch.missing[row])
                parts.append(known.states[first - known.start : max(0, last - known.start)])
                places.append(first + np.arange(len(parts[-1])))
                rows.append(np.full(len(parts[-1]), row))
        if not parts:
            return None
        place = np.concatenate(places)
        found = slots(batch.table, np.concatenate(rows), place)
        states = self.net.fused(torch.cat(parts).to(self.net.fc.weight))
        return states, sent(place, self.device), sent(found, self.device)

    def _known(self, prefix: Prefix, start: int) -> int:
        """Return of how many of a prefix's tokens states are known, of which it has `start`."""
        pending = self._pending.get(prefix.sequence_id)
        if pending is None or pending.start > start:
            return start
        end = pending.start + len(pending.states)
        return max(start, min(end, common(pending.prefix.tokens, prefix.tokens)))

    def _settle(
        self,
        prefixes: Sequence[Prefix],
        drafts: DraftedTokens,
        lengths: Integers | None = None,
    ) -> None:
        """Note what was computed of each sequence, as far as states are known.

        The state of a prefix's last token is not yet, and it is computed once more.
        """
        for prefix in prefixes:
            name = prefix.sequence_id
            count = self._known(prefix, len(self._computed[name].tokens))
            self.pool.note(name, prefix.tokens[:count])
            self._computed[name] = Computed(prefix.tokens[:count])
            if (pending := self._pending.get(name)) is not None:
                start = max(count, pending.start)
                left = pending.states[start - pending.start :].clone()
                self._pending[name] = HiddenStates(pending.prefix, start, left)

    def _catch_up(self, name: int) -> None:
        """Compute all tokens of a sequence whose states are known, if there is room."""
        # A prefix's last token is never prefilled.
        if (pending := self._pending.get(name)) is None:
            return  # another thread has reset it
        longer = pending.prefix.extended([0])
        with suppress(CacheFullError):
            if self.known(longer) == len(longer) - 1:
                self.prefill(longer, len(longer))


class EagleModel(HeadModel):
    """A head that reads the state before each token, which stands in blocks as a layer's keys."""

    def forward(self, batch: FlatBatch, run: Any = None) -> Outputs:
        """Compute a batch; see `PagedModel`.

        Args:
            batch: prefixes whose states are known, or what is drafted after them.
            run: the states that drafts go on from, [B, M, H] each, to which those of the batch are
                added: after the prefix, and after each token that was fed.
        """
        net, grid = self.net, Grid.of(batch)
        self._cache.set_batch(grid, batch)
        masks = grid.masks(list(self.config.windows.items()), net.fc.weight.dtype)
        assert isinstance(masks, dict)
        for mask in masks.values():
            # There is no state before the first token, and so no input: only it sees itself.
            mask[..., 0].masked_fill_((grid.positions > 0)[:, None], -torch.inf)
        positions = (grid.positions - 1).clamp(min=0)
        made = net(grid.tokens, self._before(batch, grid, run), positions, masks, self._cache)
        logits, recurring = net.finished(made[:, int(batch.missing.max()) - 1 + batch.first :])
        if run is not None:
            run.append(recurring)
        return Outputs(logits)

    def _before(self, batch: FlatBatch, grid: Grid, run: Any) -> Tensor:
        """Return the states before the tokens of a grid, [B, q, H]; zeros before a text's first."""
        drafts = None
        if run and not batch.drafted.any():
            last: Tensor = run[-1][:, -1:]
            return last
        if run:  # a tree's nodes, each after the one that it follows
            assert batch.ancestors is not None
            above = batch.ancestors.tril(-1) * torch.arange(1, batch.width + 1, device=self.device)
            known = torch.cat(run, 1)
            drafts = known.gather(1, above.amax(-1)[..., None].expand(-1, -1, known.shape[-1]))
        elif batch.drafted.any():  # mask tokens
            drafts = self.net.fused(self.net.mask_hidden.view(1, -1, self.config.target_width))
        stored = self._cache.stored[-1][0].flatten(0, 2)
        if not run and (new := self._fused(batch)) is not None:
            stored[new[2]] = new[0]
        row, _ = rows_of(batch.missing + batch.drafted)
        before = slots(batch.table, row, (batch.places - 1).clip(min=0))
        made = stored.new_zeros(*grid.tokens.shape, stored.shape[-1])
        made[grid.rows, grid.columns] = stored[sent(before, self.device)]
        made[grid.positions == 0] = 0
        if drafts is not None:
            made[:, int(batch.missing.max()) :] = drafts
        return made


class BlockModel(HeadModel):
    """A head of the DFlash family over blocks: every layer's keys and values of the states."""

    def forward(self, batch: FlatBatch, run: Any = None) -> Outputs:
        """Write the keys and values of a batch's tokens, as far as states are known."""
        if (known := self._fused(batch)) is not None:
            states, positions, places = known
            found = self.net.context(states, positions)
            for stored, made in zip(self._cache.stored, found, strict=True):
                for kept, new in zip(stored, made, strict=True):
                    kept.flatten(0, 1)[places] = new
        return Outputs(self.net.fc.weight.new_empty(len(batch.tables), 1, 0))

    def _block(self, prefixes: Sequence[Prefix], batch: FlatBatch, masks: Tensor) -> BlockCursor:
        """Compute a batch, and blocks in which all tokens see each other; see `HeadModel`."""
        self.forward(batch)
        ends = batch.past + batch.missing - 1
        own = self.flat_batch(prefixes, ends.tolist(), batch.tables, masks, batch.drafted)
        grid, last = Grid.of(own), sent(ends, self.device)[:, None]
        self._cache.set_batch(grid, own)
        zero = torch.zeros((), dtype=self.net.fc.weight.dtype, device=self.device)
        added: dict[str | None, Tensor] = {}
        for kind, window in self.config.windows.items():
            causal = window is not None and not self.config.both_ways
            seen = grid.seen if causal else grid.seen[:, -1:].expand_as(grid.seen)
            if window is not None:
                seen = seen & (grid.places >= last[..., None] - window)
            added[kind] = torch.where(seen, zero, -torch.inf)[:, None]
        positions = last + torch.arange(grid.tokens.shape[1], device=self.device)
        made = self.net(grid.tokens, None, positions, added, self._cache)
        pairs = np.stack([prefix.tokens[[-1, -min(2, len(prefix))]] for prefix in prefixes])
        first = sent(pairs, self.device)
        logits, states = self.net.finished(made, first)
        return BlockCursor(self.net, logits, states, first[:, 0])


class BlockCursor(Cursor):
    """A block that is drafted place by place: no step of it is a forward.

    Args:
        net: the network.
        logits: of the block, [B, m, n].
        states: that they are of, [B, m, H].
        last: the token that it begins with, int64 [B].
    """

    def __init__(self, net: HeadNet, logits: Tensor, states: Tensor, last: Tensor) -> None:
        self._net, self._memory = net, None
        self._places = zip(logits.unbind(1), states.unbind(1), strict=True)
        # A place that drafts nothing follows the block's first token.
        for _ in range(1 if net.config.anchored else 2):
            self.step(last)

    @property
    def logits(self) -> Tensor:
        """Logits [B, n] of the present place."""
        return self._logits

    @property
    def confidence(self) -> Tensor | None:
        """How likely tokens of the present place are kept, [B]; None if unknown."""
        return self._net.confidence(self._states, self._before)

    @torch.inference_mode()
    def step(self, tokens: Tensor) -> Tensor:
        """Go on to the next place, given the tokens before it, int64 [B]."""
        logits, self._states = next(self._places)
        self._logits, self._memory = self._net.draws(logits, self._states, tokens, self._memory)
        self._before = tokens
        return self._logits
