"""The networks of draft heads. Names of their parts are those of checkpoints.

EAGLE-3 and P-EAGLE (Li et al., arXiv 2503.01840): the input at a token is its embedding and the
state of the token before it, the target's in a text, and in drafts what the head itself made of the
token before, or a learnt state where all are drafted in one forward.

The DFlash family: the target's states are keys and values of every layer, and the queries a block
of the last token and mask tokens, which see each other. Facts of speculators 0.9 and of z-lab's
checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Embedding, Identity, Linear, Module, ModuleDict, ModuleList, Parameter
from torch.nn.functional import pad, silu
from transformers.models.qwen3.modeling_qwen3 import (
    Qwen3DecoderLayer,
    Qwen3RMSNorm,
    Qwen3RotaryEmbedding,
    apply_rotary_pos_emb,
)

from ...runtimes.transformers import attention
from .checkpoint import HeadConfig


class HeadNet(Module):
    """The network of a head of any kind.

    Args:
        config: of the head.
        normed: whether its attention norms queries and keys, as Qwen3's does.

    Attributes:
        tokens: the target's id of each of the head's tokens, int64 [n]; None where they are alike.
    """

    def __init__(self, config: HeadConfig, *, normed: bool = False) -> None:
        super().__init__()
        inner, count = config.decoder, len(config.target_layers)
        width, whole = inner.hidden_size, count * config.target_width

        def norm(size: int, wanted: bool = True) -> Module:
            made: Module = Qwen3RMSNorm(size, inner.rms_norm_eps) if wanted else Identity()
            return made

        attention.register()
        inner._attn_implementation = attention.NAME
        self.config = config
        self.tokens: Tensor | None = None
        parts = [norm(config.target_width, config.flag("fc_norm")) for _ in range(count)]
        self.fc_norm = ModuleList(parts)
        self.input_norm = norm(whole, config.flag("norm_before_fc"))
        self.fc = Linear(whole, width, bias=False)
        self.hidden_norm = norm(width, not config.eagle)
        self.layers: Any = ModuleList(
            _Layer(config, place, normed=normed) for place in range(inner.num_hidden_layers)
        )
        self.norm = norm(width)
        self.lm_head = Linear(width, config.vocab_size, bias=False)
        self.embed_tokens = Embedding(inner.vocab_size, width)
        self.rotary = Qwen3RotaryEmbedding(inner)
        if config.kind == "peagle":
            self.mask_hidden = Parameter(torch.zeros(1, 1, whole))
        dspark, rank = config.kind == "dspark", config.number("markov_rank", 256)
        self.markov_head: Any = _Markov(config) if dspark and rank else None
        self.candidate_selector = _Selector(config) if config.kind == "dflash2" else None
        self.refiner_head = _Refiner(config) if config.kind == "xpress" else None
        self.confidence_head: Any = None
        if dspark and config.flag("enable_confidence_head", True):
            size = width + rank * config.flag("confidence_head_with_markov", True)
            self.confidence_head = ModuleDict({"proj": Linear(size, 1)})

    def fused(self, states: Tensor) -> Tensor:
        """Fuse states [n, L, D] of the target's layers into [n, H]."""
        pairs = zip(self.fc_norm, states.unbind(1), strict=True)
        whole = self.input_norm(torch.cat([norm(part) for norm, part in pairs], -1))
        made: Tensor = self.hidden_norm(self.fc(whole))
        return made

    def forward(
        self,
        tokens: Tensor,
        before: Tensor | None,
        positions: Tensor,
        masks: Mapping[Any, Tensor],
        cache: Any = None,
    ) -> Tensor:
        """Compute the states of tokens.

        Args:
            tokens: int64 [B, q].
            before: the states before each, [B, q, H], fused ones of the target, or what recurs;
                None for a block.
            positions: int64 [B, q].
            masks: additive, [B, 1, q, span], by kind of layer.
            cache: its `update` takes a layer's keys and values [B, heads, q, D] and its number, and
                returns all that the rows see; None where that is all.

        Returns:
            [B, q, H]; see `finished`.
        """
        states: Tensor = self.embed_tokens(tokens)
        states = states if before is None else torch.cat([states, before], -1)
        turn = self.rotary(states, positions)
        for layer, kind in zip(self.layers, self.config.decoder.layer_types, strict=True):
            states = layer(
                states,
                attention_mask=masks[kind],
                position_embeddings=turn,
                past_key_values=cache,
            )
        return states

    def finished(self, states: Tensor, last: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the logits after states [..., H], [..., n], and what recurs, [..., H].

        Of a block, `last` is the token that it begins with and the one before it, int64 [B, 2].
        """
        normed = self.norm(states)
        recurs = normed if self.config.flag("norm_output", not self.config.eagle) else states
        logits: Tensor = self.lm_head(normed)
        if self.refiner_head is not None:
            logits = self.refiner_head(logits, recurs, last, self.tokens)
        return logits, recurs

    def draws(
        self, logits: Tensor, states: Tensor, before: Tensor, memory: Any = None
    ) -> tuple[Tensor, Any]:
        """Return logits [B, n] that a place of a block is drawn from, and what the next is given.

        Args:
            logits, states: of the place, [B, n] and [B, H]; see `finished`.
            before: the tokens before it, int64 [B]: what a token is drawn from is what it is
                recorded with.
            memory: what the place before returned; None for the first.
        """
        part: Any = self.candidate_selector or self.markov_head
        return (logits, None) if part is None else part(logits, states, before, memory)

    def context(self, states: Tensor, positions: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return each layer's keys and values, [n, heads, D], of fused states [n, H]."""
        turn, found = self.rotary(states, positions[None]), []
        for own in (layer.self_attn for layer in self.layers):
            keys = own.k_norm(own.k_proj(states).unflatten(-1, (-1, own.head_dim)))[None]
            turned, _ = apply_rotary_pos_emb(keys, keys, *turn, unsqueeze_dim=2)
            found.append((turned[0], own.v_proj(states).view_as(turned[0])))
        return found

    def confidence(self, states: Tensor, before: Tensor) -> Tensor | None:
        """Say how likely tokens are kept, [B], of states [B, H] and the tokens before, int64 [B].

        None where no part of the network does.
        """
        if self.confidence_head is None:
            return None
        head = self.confidence_head["proj"]
        if head.in_features > states.shape[-1]:
            states = torch.cat([states, self.markov_head.markov_w1(before)], -1)
        found: Tensor = head(states)[:, 0].sigmoid()
        return found


class _Layer(Qwen3DecoderLayer):
    """A layer of Qwen3, or of Llama, where queries and keys are not normed.

    EAGLE's first one sees a token's embedding beside the state before it, and DFlash2's have
    convolutions around attention and feed-forward network.
    """

    def __init__(self, config: HeadConfig, place: int, *, normed: bool) -> None:
        inner, convolved = config.decoder, config.kind == "dflash2"
        super().__init__(inner, place)
        if not normed:
            self.self_attn.q_norm = self.self_attn.k_norm = Identity()
        self._normed_residual = config.flag("norm_before_residual")
        self.hidden_norm: Any = None
        if config.eagle and not place:
            self.hidden_norm = Qwen3RMSNorm(inner.hidden_size, inner.rms_norm_eps)
            for name in ("q_proj", "k_proj", "v_proj"):
                count, bias = getattr(self.self_attn, name).out_features, inner.attention_bias
                setattr(self.self_attn, name, Linear(2 * inner.hidden_size, count, bias=bias))
        self.attention_conv = _Convolution(config) if convolved else _applied
        self.mlp_conv = _Convolution(config) if convolved else _applied

    def forward(self, hidden_states: Tensor, **attending: Any) -> Tensor:
        """Transform states [B, q, H]; of EAGLE's first layer embeddings and states [B, q, 2 H]."""
        if self.hidden_norm is None:
            states, seen = hidden_states, self.input_layernorm(hidden_states)
        else:
            embedded, states = hidden_states.chunk(2, -1)
            normed = self.hidden_norm(states)
            seen = torch.cat([self.input_layernorm(embedded), normed], -1)
            states = normed if self._normed_residual else states
        states = states + self.attention_conv(seen, lambda x: self.self_attn(x, **attending)[0])
        made: Tensor = states + self.mlp_conv(self.post_attention_layernorm(states), self.mlp)
        return made


def _applied(states: Tensor, wrapped: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply what is wrapped, without convolutions."""
    return wrapped(states)


class _Convolution(Module):
    """Causal convolutions within a block, before and after what they wrap."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        width, taps = config.decoder.hidden_size, config.number("conv_kernel_size", 2)
        # So many channels share what depends on the token.
        self._group = config.number("conv_group_size", 16)
        self.base_kernel = Parameter(torch.zeros(2, taps, width))
        self.kernel_projection = Linear(width, 2 * taps * (width // self._group), bias=False)

    def forward(self, states: Tensor, wrapped: Callable[[Tensor], Tensor]) -> Tensor:
        """Convolve states [B, m, H], apply what is wrapped, and convolve what comes of it."""
        taps = self.base_kernel.shape[1]
        kernels = self.kernel_projection(states).unflatten(-1, (2, taps, -1))
        kernels = kernels.repeat_interleave(self._group, -1) + self.base_kernel
        for place, kernel in enumerate(kernels.unbind(2)):
            states = wrapped(states) if place else states
            shifted = pad(states, (0, 0, taps - 1, 0)).unfold(1, taps, 1).flip(-1)
            states = torch.einsum("bmht,bmth->bmh", shifted, kernel)
        return states


class _Markov(Module):
    """Makes a bias of low rank of the token before: DSpark's, vanilla, gated or recurrent."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        rank, width = config.number("markov_rank", 256), config.decoder.hidden_size
        self._kind = config.given.get("markov_head_type", "vanilla")
        self.markov_w1 = Embedding(config.decoder.vocab_size, rank)
        self.markov_w2 = Linear(rank, config.vocab_size, bias=False)
        if self._kind == "gated":
            self.gate_proj = Linear(width + rank, rank)
        elif self._kind == "rnn":
            self.joint_proj = Linear(2 * rank + width, 3 * rank)

    def forward(
        self, logits: Tensor, states: Tensor, before: Tensor, memory: Any
    ) -> tuple[Tensor, Any]:
        """Return the logits of a place, and the memory; see `HeadNet.draws`."""
        known = self.markov_w1(before)
        if self._kind == "gated":
            known = torch.sigmoid(self.gate_proj(torch.cat([states, known], -1))) * known
        elif self._kind == "rnn":
            memory = torch.zeros_like(known) if memory is None else memory
            joint = self.joint_proj(torch.cat([memory, known, states], -1))
            gate, new, out = joint.chunk(3, -1)
            memory = torch.lerp(torch.tanh(new), memory, torch.sigmoid(gate))
            known = torch.tanh(out)
        return logits + self.markov_w2(known), memory


class _Selector(Module):
    """Scores a place's likeliest tokens again by the token before: DFlash2's; others get none."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        size, rank = config.decoder.vocab_size, config.number("selector_rank", 256)
        self._candidates = config.number("selector_top_k", 16)
        self.predecessor_codebook = Parameter(torch.empty(size, rank))
        self.successor_codebook = Parameter(torch.empty(size, rank))
        self.hidden_projection = Linear(config.decoder.hidden_size, rank, bias=False)

    def forward(self, logits: Tensor, states: Tensor, before: Tensor, _: Any) -> tuple[Tensor, Any]:
        """Return the logits of a place, and no memory; see `HeadNet.draws`."""
        best, tokens = logits.topk(self._candidates, -1)
        context = self.predecessor_codebook[before] * self.hidden_projection(states)
        scores = (context[:, None] * self.successor_codebook[tokens]).sum(-1)
        return torch.full_like(logits, -torch.inf).scatter(-1, tokens, best + scores), None


class _Refiner(Module):
    """Corrects all places together, a few times, each time by the likeliest tokens: XPress's.

    What a token is drawn from depends on no drawn token.
    """

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        width, size = config.decoder.hidden_size, config.number("block_size", 1)
        rank = config.number("xpress_rank", 256)
        inner = rank * config.number("xpress_mlp_ratio", 2)
        self._passes = config.number("num_jacobi_passes", 6)
        self._anchored = config.anchored
        self.token_embed = Embedding(config.decoder.vocab_size, rank)
        self.down_h = Linear(width, rank, bias=False)
        self.down_g = Linear(width, rank, bias=False)
        self.in_proj = Linear(3 * rank, rank, bias=False)
        self.mix_l = Parameter(torch.zeros(rank, size, size))
        self.mlp_gate = Linear(rank, inner, bias=False)
        self.mlp_up = Linear(rank, inner, bias=False)
        self.mlp_down = Linear(inner, rank, bias=False)
        self.readout = Linear(rank, config.vocab_size, bias=False)

    def forward(self, given: Tensor, states: Tensor, last: Tensor, tokens: Any) -> Tensor:
        """Correct a block's logits [B, m, n]; see `HeadNet.finished` and `HeadNet.tokens`."""
        whole = states.mean(1, keepdim=True).expand_as(states)
        known = torch.cat([self.down_h(states), self.down_g(whole)], -1)
        logits = given
        first = last[:, :1] if self._anchored else last.flip(1)
        for _ in range(self._passes):
            likeliest = logits.argmax(-1)
            if tokens is not None:
                likeliest = tokens[likeliest]
            before = torch.cat([first, likeliest[:, first.shape[1] - 1 : -1]], 1)
            mixed = self.in_proj(torch.cat([known, self.token_embed(before)], -1))
            mixed = mixed + torch.einsum("ckj,njc->nkc", self.mix_l.tril(), mixed)
            gate = silu(self.mlp_gate(mixed)) * self.mlp_up(mixed)
            logits = given + self.readout(mixed + self.mlp_down(gate))
        return logits
