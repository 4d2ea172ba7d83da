"""Heads of the DFlash family: one forward drafts a block.

The target's fused states are keys and values of every layer, and the queries a block of the last
token and mask tokens, which see each other. Facts of speculators 0.9 and z-lab's checkpoints; names
of parts are those of checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Embedding, Linear, Module, ModuleList, Parameter
from torch.nn.functional import pad
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3MLP

from ...runtimes.base import Cursor
from ...runtimes.blocks import SIZE
from ...runtimes.flat import DraftedTokens, FlatBatch, Outputs
from ...types.records import Prefix
from .checkpoint import HeadConfig
from .layers import Attention, Store, layer_kinds, turns
from .model import HeadModel
from .parts import PARTS, Block, Places, independent

Confident = Callable[[Tensor, Tensor], Tensor | None]
"""Says how likely tokens are kept, [B], of states [B, H] and the tokens before, int64 [B]."""


class BlockNet(Module):
    """Drafts a block from the target's states and the last token.

    Args:
        config: of the head.
        normed: whether its attention norms queries and keys.
    """

    def __init__(self, config: HeadConfig, *, normed: bool = True) -> None:
        super().__init__()
        inner = config.decoder
        width, eps = inner.hidden_size, inner.rms_norm_eps
        self.config = config
        self.fc = Linear(len(config.target_layers) * config.target_width, width, bias=False)
        self.hidden_norm = LlamaRMSNorm(width, eps)
        self.layers: Any = ModuleList(
            _Layer(config, normed=normed) for _ in range(inner.num_hidden_layers)
        )
        self.norm = LlamaRMSNorm(width, eps)
        self.lm_head = Linear(width, config.vocab_size, bias=False)
        self.embed_tokens = Embedding(inner.vocab_size, width)
        self.rotary = LlamaRotaryEmbedding(inner)
        name, kind = PARTS.get(config.kind, ("", None))
        rank = config.number("markov_rank", 256)
        self._part = name if rank else ""
        if kind is not None and self._part:
            self.add_module(self._part, kind(config))
        self._confident = config.kind == "dspark" and config.flag("enable_confidence_head", True)
        self._conditional = bool(rank) and config.flag("confidence_head_with_markov", True)
        if self._confident:
            size = width + rank * self._conditional
            self.confidence_head: Any = Module()
            self.confidence_head.proj = Linear(size, 1)

    def fused(self, states: Tensor) -> Tensor:
        """Fuse states [n, L, D] of the target's layers into [n, H]."""
        made: Tensor = self.hidden_norm(self.fc(states.flatten(1)))
        return made

    def context(self, states: Tensor, positions: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return each layer's keys and values, [1, heads, n, D], of fused states [n, H]."""
        turn = turns(self.rotary, positions[None], states[None])
        return [layer.self_attn.keys_and_values(states[None], turn) for layer in self.layers]

    def forward(
        self, tokens: Tensor, positions: Tensor, masks: Sequence[Tensor], store: Store
    ) -> tuple[Tensor, Tensor]:
        """Compute a block.

        Args:
            tokens: int64 [B, m]: the last token, then mask tokens.
            positions: int64 [B, m].
            masks: of each layer, additive, [B, 1, m, span].
            store: puts the context before the block's keys and values.

        Returns:
            Logits [B, m, vocabulary of the draft], and the states that they are of, [B, m, H].
        """
        states = self.embed_tokens(tokens)
        turn = turns(self.rotary, positions, states)
        for place, (layer, mask) in enumerate(zip(self.layers, masks, strict=True)):
            states = layer(states, turn, mask, store, place)
        states = self.norm(states)
        return self.lm_head(states), states

    def places(self, block: Block) -> Places:
        """Begin to draft a block that was computed."""
        part: Any = self._modules[self._part] if self._part else None
        return independent(block) if part is None else part.places(block)

    def confidence(self, states: Tensor, before: Tensor) -> Tensor | None:
        """Say how likely tokens are kept; None where no part does. See `Confident`."""
        if not self._confident:
            return None
        if self._conditional:
            markov: Any = self._modules[self._part]
            states = torch.cat([states, markov.markov_w1(before)], -1)
        found: Tensor = self.confidence_head.proj(states)[:, 0].sigmoid()
        return found


class _Layer(Module):
    """A decoder layer; DFlash2's has convolutions around attention and feed-forward network."""

    def __init__(self, config: HeadConfig, *, normed: bool) -> None:
        super().__init__()
        inner: Any = config.decoder
        self.input_layernorm = LlamaRMSNorm(inner.hidden_size, inner.rms_norm_eps)
        self.self_attn = Attention(inner, inner.hidden_size, normed=normed)
        self.post_attention_layernorm = LlamaRMSNorm(inner.hidden_size, inner.rms_norm_eps)
        self.mlp = Qwen3MLP(inner)
        self._mixes = config.kind == "dflash2"
        if self._mixes:
            taps = config.number("conv_kernel_size", 2), config.number("conv_group_size", 16)
            self.attention_conv = _Convolution(inner.hidden_size, *taps)
            self.mlp_conv = _Convolution(inner.hidden_size, *taps)

    def forward(self, states: Tensor, *attending: Any) -> Any:
        """Transform states [B, m, H]; for the rest see `Attention`."""

        def attend(seen: Tensor) -> Any:
            return self.self_attn(seen, *attending)

        seen, between = self.input_layernorm(states), self.post_attention_layernorm
        if self._mixes:
            states = states + self.attention_conv(seen, attend)
            return states + self.mlp_conv(between(states), self.mlp)
        states = states + attend(seen)
        return states + self.mlp(between(states))


class _Convolution(Module):
    """Causal convolutions within a block, before and after what they wrap.

    Args:
        width: H.
        taps: of each convolution.
        group: how many channels share what depends on the token.
    """

    def __init__(self, width: int, taps: int, group: int) -> None:
        super().__init__()
        self._taps, self._group = taps, group
        self.base_kernel = Parameter(torch.zeros(2, taps, width))
        self.kernel_projection = Linear(width, 2 * taps * (width // group), bias=False)

    def forward(self, states: Tensor, wrapped: Callable[[Tensor], Tensor]) -> Tensor:
        """Convolve states [B, m, H], apply what is wrapped, and convolve what comes of it."""
        kernels = self.kernel_projection(states).unflatten(-1, (2, self._taps, -1))
        kernels = kernels.repeat_interleave(self._group, -1) + self.base_kernel
        return _convolved(wrapped(_convolved(states, kernels[..., 0, :, :])), kernels[..., 1, :, :])


def _convolved(states: Tensor, kernels: Tensor) -> Tensor:
    """Convolve states [B, m, H] with a kernel of its own for each, [B, m, taps, H]."""
    length = states.shape[1]
    shifted = [pad(states, (0, 0, tap, 0))[:, :length] for tap in range(kernels.shape[2])]
    return (torch.stack(shifted, 2) * kernels).sum(2)


class BlockModel(HeadModel):
    """Such a head over blocks, which hold every layer's keys and values of each token's state."""

    @torch.inference_mode()
    def open(self, prefixes: Sequence[Prefix], depth: int, run: Any = None) -> Cursor:
        """Compute a block after prefixes whose states are known, to be drafted place by place."""
        del run, depth
        with self.whole():
            batch = self._entered(prefixes, 0)
            self.forward(batch)
            self._settle(prefixes, DraftedTokens())
            block = self._block(prefixes, batch)
        first = 0 if self.config.sample_from_anchor else 1
        return BlockCursor(block, self._net.places(block), first, self._net.confidence)

    def forward(self, batch: FlatBatch, run: Any = None) -> Outputs:
        """Write the keys and values of a batch's tokens, as far as states are known."""
        del run
        known = self._written(batch)
        if known is not None:
            own, positions, places = known
            found = self._net.context(own, positions)
            for stored, made in zip(self._cache.stored, found, strict=False):
                for kept, new in zip(stored, made, strict=True):
                    kept.flatten(0, 1)[places] = new[0].transpose(0, 1)
        return Outputs(self._net.fc.weight.new_empty(len(batch.tables), 1, 0))

    def _block(self, prefixes: Sequence[Prefix], batch: FlatBatch) -> Block:
        """Compute a block after each prefix."""
        config, size = self.config, self.config.block_size
        ends = np.array([len(prefix) for prefix in prefixes]) - 1
        known = self._sent(
            np.stack([prefix.tokens[[-1, -min(2, len(prefix))]] for prefix in prefixes])
        )
        tokens = torch.full((len(ends), size), config.mask_token, device=self.device)
        tokens[:, 0] = known[:, 0]
        positions = self._sent(ends[:, None] + np.arange(size))
        tables = self._sent(batch.table)
        places = torch.arange(tables.shape[1] * SIZE, device=self.device)
        there = places < positions[:, :1]

        def store(keys: Tensor, values: Tensor, layer: int) -> tuple[Tensor, Tensor]:
            found = []
            for kept, new in zip(self._cache.stored[layer], (keys, values), strict=True):
                # What others left there may be NaN, and zero times NaN is NaN.
                context = kept[tables].flatten(1, 2).masked_fill(~there[..., None, None], 0)
                found.append(torch.cat([context.transpose(1, 2), new], 2))
            return found[0], found[1]

        masks = [self._mask(kind, there, positions) for kind in layer_kinds(config.decoder)]
        logits, states = self._net(tokens, positions, masks, store)
        return Block(logits, states, known)

    def _mask(self, kind: str, there: Tensor, positions: Tensor) -> Tensor:
        """Make the additive mask [B, 1, m, span] of a layer: the context, then the block."""
        size = positions.shape[1]
        within = torch.ones(len(there), size, size, dtype=torch.bool, device=self.device)
        window = self.config.decoder.sliding_window if "sliding" in kind else None
        if window is not None:
            places = torch.arange(there.shape[1], device=self.device)
            there = there & (places >= positions[:, :1] - window)
            both = self.config.both_ways
            within = within if both else within.tril()
        seen = torch.cat([there[:, None].expand(-1, size, -1), within], 2)
        zero = torch.zeros((), dtype=self._net.fc.weight.dtype, device=self.device)
        return torch.where(seen, zero, -torch.inf)[:, None]


class BlockCursor(Cursor):
    """A block that is drafted place by place: no step of it is a forward.

    Args:
        block: that was computed.
        places: gives the logits of each place.
        first: the first place that drafts.
        confident: says how likely tokens are kept.
    """

    def __init__(
        self, block: Block, places: Places, first: int = 0, confident: Confident | None = None
    ) -> None:
        self._block, self._places, self._confident = block, places, confident
        self._place = first - 1
        self.step(block.last[:, 0])

    @property
    def logits(self) -> Tensor:
        """Logits [B, n] of the present place."""
        return self._logits

    @property
    def confidence(self) -> Tensor | None:
        """How likely tokens of the present place are kept, [B]; None if unknown."""
        if self._confident is None:
            return None
        return self._confident(self._block.states[:, self._place], self._before)

    @torch.inference_mode()
    def step(self, tokens: Tensor) -> Tensor:
        """Go on to the next place, given the tokens before it, int64 [B]."""
        self._place += 1
        self._before = tokens
        self._logits = self._places(self._place, tokens)
        return self._logits
