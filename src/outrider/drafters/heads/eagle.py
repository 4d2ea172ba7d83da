"""EAGLE-3 and P-EAGLE heads (Li et al., arXiv 2503.01840), with the flags of speculators.

The input at a token is its embedding and the state of the token before it: the target's in a text,
and in drafts what the head itself made of the token before, or a learnt state where all are drafted
in one forward. Names of parts are those of checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Embedding, Linear, Module, ModuleList, Parameter
from torch.nn.functional import pad
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3MLP

from ...runtimes.base import Cursor
from ...runtimes.flat import DraftedTokens, FlatBatch, Outputs, rows_of, slots
from ...runtimes.paged_cursor import PagedCursor
from ...runtimes.transformers.block_cache import Grid
from ...types.records import Prefix
from .block import BlockCursor
from .checkpoint import HeadConfig
from .layers import Attention, Store, layer_kinds, turns
from .model import HeadModel
from .parts import Block, independent


class EagleNet(Module):
    """Drafts from a token and the state before it: the target's, or its own.

    Names of parts are those of checkpoints.

    Args:
        config: of the head.
        normed: whether its attention norms queries and keys.
    """

    def __init__(self, config: HeadConfig, *, normed: bool = False) -> None:
        super().__init__()
        inner, count = config.decoder, len(config.target_layers)
        width, eps = inner.hidden_size, inner.rms_norm_eps
        self.config = config
        if config.flag("norm_before_fc"):
            self.input_norm = LlamaRMSNorm(count * config.target_width, eps)
        if config.flag("fc_norm"):
            self.fc_norm = ModuleList(LlamaRMSNorm(config.target_width, eps) for _ in range(count))
        self.fc = Linear(count * config.target_width, width, bias=False)
        self.layers = ModuleList(
            _Layer(config, first=place == 0, normed=normed)
            for place in range(inner.num_hidden_layers)
        )
        self.norm = LlamaRMSNorm(width, eps)
        self.lm_head = Linear(width, config.vocab_size, bias=False)
        self.embed_tokens = Embedding(inner.vocab_size, width)
        self.rotary = LlamaRotaryEmbedding(inner)
        if config.blocks:
            self.mask_hidden = Parameter(torch.zeros(1, 1, count * config.target_width))

    def fused(self, states: Tensor) -> Tensor:
        """Fuse states [n, L, D] of the target's layers into [n, H]."""
        if self.config.flag("fc_norm"):
            parts = zip(self.fc_norm, states.unbind(1), strict=True)
            states = torch.stack([norm(part) for norm, part in parts], 1)
        whole = states.flatten(1)
        normed = self.input_norm(whole) if self.config.flag("norm_before_fc") else whole
        made: Tensor = self.fc(normed)
        return made

    def forward(
        self,
        tokens: Tensor,
        states: Tensor,
        positions: Tensor,
        masks: Mapping[str | None, Tensor],
        store: Store,
    ) -> Tensor:
        """Compute the states of tokens.

        Args:
            tokens: int64 [B, q].
            states: before each, [B, q, H]: fused ones of the target, or what recurs.
            positions: int64 [B, q].
            masks: additive, [B, 1, q, span], by kind of layer.
            store: keeps keys and values.

        Returns:
            [B, q, H]; see `finished`.
        """
        turn = turns(self.rotary, positions, states)
        embedded = self.embed_tokens(tokens)
        kinds = layer_kinds(self.config.decoder)
        for place, (layer, kind) in enumerate(zip(self.layers, kinds, strict=True)):
            seen = embedded if place == 0 else None
            states = layer(states, seen, turn, masks[kind], store, place)
        return states

    def finished(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits after states [..., H], [..., n], and what recurs, [..., H]."""
        normed = self.norm(states)
        return self.lm_head(normed), normed if self.config.flag("norm_output") else states


class _Layer(Module):
    """A decoder layer; the first one sees the token's embedding beside the state before it."""

    def __init__(self, config: HeadConfig, *, first: bool, normed: bool) -> None:
        super().__init__()
        inner: Any = config.decoder
        width, eps = inner.hidden_size, inner.rms_norm_eps
        self._normed_residual = config.flag("norm_before_residual")
        self.input_layernorm = LlamaRMSNorm(width, eps)
        if first:
            self.hidden_norm = LlamaRMSNorm(width, eps)
        self.self_attn = Attention(inner, width * (1 + first), normed=normed)
        self.post_attention_layernorm = LlamaRMSNorm(width, eps)
        self.mlp = Qwen3MLP(inner)

    def forward(
        self,
        states: Tensor,
        embedded: Tensor | None,
        turn: tuple[Tensor, Tensor],
        mask: Tensor,
        store: Store,
        place: int,
    ) -> Tensor:
        """Transform states [B, q, H]; `embedded` [B, q, H] is for the first layer alone."""
        if embedded is None:
            seen = self.input_layernorm(states)
        else:
            normed = self.hidden_norm(states)
            seen = torch.cat([self.input_layernorm(embedded), normed], -1)
            states = normed if self._normed_residual else states
        states = states + self.self_attn(seen, turn, mask, store, place)
        made: Tensor = states + self.mlp(self.post_attention_layernorm(states))
        return made


class EagleModel(HeadModel):
    """An EAGLE-3 or P-EAGLE head as a model over blocks; see `HeadModel`."""

    @torch.inference_mode()
    def open(self, prefixes: Sequence[Prefix], depth: int, run: Any = None) -> Cursor:
        """Open a cursor at the end of prefixes whose states are known; see `Runtime.open`."""
        del run
        if self._net.config.blocks:
            return self._block(prefixes, depth)
        drafting: list[Tensor] = []
        with self.whole():
            logits = self.forward(self._entered(prefixes, max(0, depth - 1)), drafting).logits[:, 0]
            self._settle(prefixes, DraftedTokens())
            held = [self._computed[prefix.sequence_id] for prefix in prefixes]
        return PagedCursor(self, drafting, prefixes, held, DraftedTokens(), logits)

    def _block(self, prefixes: Sequence[Prefix], depth: int) -> Cursor:
        """Draft all tokens in one forward, each from a mask token and a learnt state."""
        config, rows = self.config, len(prefixes)
        masks = torch.full((rows, depth - 1), config.mask_token, device=self.device)
        with self.whole():
            batch = self._entered(prefixes, depth - 1)
            lengths = np.full(rows, depth - 1)
            batch = self.flat_batch(prefixes, batch.past.tolist(), batch.tables, masks, lengths)
            logits = self.forward(batch).logits
            self._settle(prefixes, DraftedTokens())
        block = Block(logits, logits, masks.new_zeros(rows, 2))
        return BlockCursor(block, independent(block))

    def forward(self, batch: FlatBatch, run: Any = None) -> Outputs:
        """Compute a batch; see `PagedModel`.

        Args:
            batch: prefixes whose states are known, or what is drafted after them.
            run: the states that drafts go on from, [B, M, H] each, to which those of the batch are
                added: after the prefix, and after each token that was fed.
        """
        net, grid = self._net, Grid.of(batch)
        self._cache.set_batch(grid, batch)
        flat, decoder = self._before(batch, run), net.config.decoder
        windows: Any = [
            (kind, decoder.sliding_window if "sliding" in kind else None)
            for kind in dict.fromkeys(layer_kinds(decoder))
        ]
        states = flat.new_zeros(*grid.tokens.shape, flat.shape[-1])
        states[grid.rows, grid.columns] = flat
        masks = grid.masks(windows, flat.dtype)
        assert isinstance(masks, dict)
        for mask in masks.values():
            # There is no state before the first token, and so no input: only it sees itself.
            mask[..., 0].masked_fill_((grid.positions > 0)[:, None], -torch.inf)
        positions = (grid.positions - 1).clamp(min=0)
        made = net(grid.tokens, states, positions, masks, self._cache.update)
        nodes = made[:, int(batch.missing.max()) - 1 + batch.first :]
        logits, recurring = net.finished(nodes)
        if run is not None:
            run.append(recurring)
        return Outputs(logits)

    def _before(self, batch: FlatBatch, run: Any) -> Any:
        """Return the state before each token of a batch, [T, H]; of first tokens, zeros."""
        # The blocks' last entry holds states.
        stored = self._cache.stored[-1][0].flatten(0, 2)
        if not run:
            known = self._written(batch)
            if known is not None:
                stored[known[2]] = known[0]
        elif not batch.drafted.any():
            return run[-1][:, -1]
        row, within = rows_of(batch.missing + batch.drafted)
        place = batch.past[row] + within
        flat = stored[self._sent(slots(batch.table, row, (place - 1).clip(min=0)))]
        flat = flat.masked_fill(self._sent(place)[:, None] == 0, 0)
        if not run and batch.drafted.any():
            learnt = self._net.mask_hidden.view(1, -1, self.config.target_width)
            drafted = self._sent(within - batch.missing[row])[:, None] >= 0
            return torch.where(drafted, self._net.fused(learnt), flat)
        if not run:
            return flat
        assert batch.ancestors is not None
        above = batch.ancestors.tril(-1) * torch.arange(1, batch.width + 1, device=self.device)
        index = self._sent(row), self._sent(within)
        parents = pad(above.amax(-1), (1, 0))[index]
        own = torch.cat(run, 1)[index[0], parents]
        return torch.where((index[1] > 0)[:, None], own, flat)
