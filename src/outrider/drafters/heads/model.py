"""A head over blocks of its own: what it makes of the target's states, by token.

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

from ...errors import CacheFullError
from ...runtimes.base import Capabilities, rounding_of
from ...runtimes.blocks import SIZE, BlockCopy, common
from ...runtimes.flat import Computed, DraftedTokens, FlatBatch, Integers, slots
from ...runtimes.lengths import PREFILLED_ALONE, check_lengths
from ...runtimes.memory import affordable, wanted
from ...runtimes.paged import PagedModel
from ...runtimes.transformers.block_cache import BlockCache
from ...types.records import HiddenStates, Prefix
from ...types.transfer import sent
from .checkpoint import HeadConfig

_CHUNK = 512
"""The most tokens of a prompt that are computed in one forward."""


class HeadModel(PagedModel):
    """A head as a model over blocks.

    Args:
        net: the network, an `EagleNet` or a `BlockNet`.
        max_sequences: how many sequences may be live at once.
        max_length: the longest prefix, drafts included, in tokens.
        memory: bytes that blocks may take; None for what is needed, or half of what is free.
    """

    def __init__(
        self, net: Any, max_sequences: int, max_length: int, memory: int | None = None
    ) -> None:
        self._net, self._longest, self._memory = net, max_length, memory
        self._make_pool(max_sequences)

    def _make_pool(self, max_sequences: int) -> None:
        """Make blocks, all of them free."""
        inner, weight = self._net.config.decoder, self._net.fc.weight
        groups = inner.num_key_value_heads
        size = self._net.layers[0].self_attn.k_proj.out_features // groups
        one = weight.new_empty(1, groups, 1, size)
        layers = [(one, one)] * self.layer_count
        # Of each token its state, too, which EAGLE's next one needs.
        layers += [(weight.new_empty(1, 1, 1, len(weight)), weight.new_empty(1, 1, 1, 1))]
        memory = SIZE * sum(part.nbytes for layer in layers for part in layer)
        most = wanted(max_sequences, self._longest)
        blocks = affordable(memory, most, self._memory, weight.device)
        capabilities = Capabilities(inner.vocab_size, weight.device, max_sequences, self._longest)
        self._allot(capabilities, blocks, _CHUNK)
        self._cache = BlockCache(layers, blocks)
        self._pending: dict[int, HiddenStates] = {}

    @property
    def name(self) -> str:
        """What computes."""
        return "head"

    @property
    def config(self) -> HeadConfig:
        """What its configuration says."""
        found: HeadConfig = self._net.config
        return found

    @property
    def rounding(self) -> float:
        """What the type of the weights explains; see `Runtime.rounding`."""
        return rounding_of(torch.finfo(self._net.fc.weight.dtype).eps)

    @property
    def layer_count(self) -> int:
        """How many layers there are."""
        return len(self._net.layers)

    def reset(self) -> None:
        """Forget all that was computed."""
        with self.whole():
            self._forget()

    def _forget(self) -> None:
        super()._forget()
        self._pending.clear()

    @torch.inference_mode()
    def receive(self, hidden: Sequence[HiddenStates]) -> None:
        """Keep the target's states of sequences' tokens until they are needed."""
        weight, long = self._net.fc.weight, []
        fused = self._net.fused(torch.cat([each.states for each in hidden]).to(weight))
        parts = fused.split([len(each.states) for each in hidden])
        with self.whole():
            for new, own in zip(hidden, parts, strict=True):
                name, start = new.prefix.sequence_id, new.start
                known = self._pending.get(name)
                if known is not None and known.start <= start <= known.start + len(known.states):
                    own = torch.cat([known.states[: start - known.start], own])
                    start = known.start
                self._pending[name] = HiddenStates(new.prefix, start, own)
                long += [name] * (len(own) > PREFILLED_ALONE)
        for name in long:
            self._catch_up(name)

    def known(self, prefix: Prefix) -> int:
        """Return of how many first tokens states are known; a new sequence is given blocks."""
        with self.whole():
            return self._known(prefix, self._admitted(prefix)[0])

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """Copy the first tokens of blocks; see `PagedModel`."""
        self._cache.copy_blocks(copies)

    def release(self, sequence_ids: Iterable[int], *, discard: bool = False) -> None:
        """Give blocks back. States that were not needed yet are forgotten."""
        ids = list(sequence_ids)
        with self.whole():
            for name in ids:
                self._pending.pop(name, None)
        super().release(ids, discard=discard)

    def _entered(self, prefixes: Sequence[Prefix], more: int) -> FlatBatch:
        """Lay out what prefixes miss, with room for `more` tokens after each."""
        check_lengths(prefixes, [0] * len(prefixes), self.longest)
        none = np.zeros(len(prefixes), dtype=np.int64)
        starts, *_ = self._enter(prefixes)
        tables = self._extended(prefixes, starts, none + more)
        tokens = torch.empty(len(prefixes), 0, dtype=torch.int64, device=self.device)
        return self.flat_batch(prefixes, starts, tables, tokens, none)

    def _written(self, batch: FlatBatch) -> tuple[Tensor, Tensor, Tensor] | None:
        """Return the states of a batch's tokens as far as they are known, [n, H]; None for none.

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
        return torch.cat(parts), self._sent(place), self._sent(found)

    def _sent(self, numbers: Integers) -> Tensor:
        return sent(torch.from_numpy(numbers), self.device)

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
        del drafts, lengths
        for prefix in prefixes:
            name = prefix.sequence_id
            count = self._known(prefix, len(self._computed[name].tokens))
            self.pool.note(name, prefix.tokens[:count])
            self._computed[name] = Computed(prefix.tokens[:count])
            pending = self._pending.pop(name, None)
            if pending is not None and (left := pending.states[count - pending.start :]).numel():
                self._pending[name] = HiddenStates(pending.prefix, count, left)

    def _catch_up(self, name: int) -> None:
        """Compute all tokens of a sequence whose states are known, if there is room."""
        # A prefix's last token is never prefilled.
        longer = self._pending[name].prefix.extended([0])
        with suppress(CacheFullError):
            if self.known(longer) == len(longer) - 1:
                self.prefill(longer, len(longer))
