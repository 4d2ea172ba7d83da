"""What makes the tokens of a block depend on one another, by its names in checkpoints.

A part is asked for the logits of one place after the other, and given the token before it: what a
token is drawn from is what it is recorded with.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import Embedding, Linear, Module, Parameter
from torch.nn.functional import silu

from .checkpoint import HeadConfig

Places = Callable[[int, Tensor], Tensor]
"""Returns the logits [B, n] of a place, given the token before it, int64 [B]; in order."""


@dataclass(frozen=True, slots=True)
class Block:
    """A block that was computed.

    Attributes:
        logits: [B, m, n].
        states: that they are of, [B, m, H].
        last: the token that the block begins with and the one before it, int64 [B, 2].
    """

    logits: Tensor
    states: Tensor
    last: Tensor


def independent(block: Block) -> Places:
    """Take logits as they were computed."""
    return lambda place, _: block.logits[:, place]


class Part(Module, ABC):
    """Corrects a block's logits."""

    @abstractmethod
    def places(self, block: Block) -> Places:
        """Begin to draft a block."""


class Markov(Part):
    """A bias of low rank by the token before: DSpark's, vanilla, gated or recurrent."""

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

    def places(self, block: Block) -> Places:
        """Begin to draft a block. A place that drafts nothing follows the block's first token."""
        memory, done = block.states.new_zeros(len(block.states), self.markov_w1.embedding_dim), 0

        def logits(place: int, before: Tensor) -> Tensor:
            nonlocal memory, done
            for passed in range(done, place):
                _, memory = self._bias(block.last[:, 0], block.states[:, passed], memory)
            bias, memory = self._bias(before, block.states[:, place], memory)
            done = place + 1
            return block.logits[:, place] + bias

        return logits

    def _bias(self, before: Tensor, states: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return the bias [B, n] after tokens, int64 [B], and what is remembered, [B, rank]."""
        known = self.markov_w1(before)
        if self._kind == "gated":
            known = torch.sigmoid(self.gate_proj(torch.cat([states, known], -1))) * known
        elif self._kind == "rnn":
            joint = self.joint_proj(torch.cat([memory, known, states], -1))
            gate, new, out = joint.chunk(3, -1)
            memory = torch.lerp(torch.tanh(new), memory, torch.sigmoid(gate))
            known = torch.tanh(out)
        return self.markov_w2(known), memory


class Selector(Part):
    """Scores a place's likeliest tokens again by the token before: DFlash2's."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        size, rank = config.decoder.vocab_size, config.number("selector_rank", 256)
        self._candidates = config.number("selector_top_k", 16)
        self.predecessor_codebook = Parameter(torch.empty(size, rank))
        self.successor_codebook = Parameter(torch.empty(size, rank))
        self.hidden_projection = Linear(config.decoder.hidden_size, rank, bias=False)

    def places(self, block: Block) -> Places:
        """Begin to draft a block: other tokens than the candidates get no probability."""
        best = block.logits.topk(self._candidates, -1)
        projected = self.hidden_projection(block.states)

        def logits(place: int, before: Tensor) -> Tensor:
            context = self.predecessor_codebook[before] * projected[:, place]
            tokens = best.indices[:, place]
            scores = (context[:, None] * self.successor_codebook[tokens]).sum(-1)
            made = torch.full_like(block.logits[:, place], -torch.inf)
            return made.scatter(-1, tokens, best.values[:, place] + scores)

        return logits


class Refiner(Part):
    """Corrects all places together, a few times, each time by the likeliest tokens: XPress's.

    What a token is drawn from depends on no drawn token.

    Attributes:
        tokens: the target's id of each of the head's tokens, int64 [n]; None where alike.
    """

    tokens: Tensor | None = None

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        width, size = config.decoder.hidden_size, config.block_size
        rank = config.number("xpress_rank", 256)
        inner = rank * config.number("xpress_mlp_ratio", 2)
        self._passes = config.number("num_jacobi_passes", 6)
        self._from_anchor = config.sample_from_anchor
        self.token_embed = Embedding(config.decoder.vocab_size, rank)
        self.down_h = Linear(width, rank, bias=False)
        self.down_g = Linear(width, rank, bias=False)
        self.in_proj = Linear(3 * rank, rank, bias=False)
        self.mix_l = Parameter(torch.zeros(rank, size, size))
        self.mlp_gate = Linear(rank, inner, bias=False)
        self.mlp_up = Linear(rank, inner, bias=False)
        self.mlp_down = Linear(inner, rank, bias=False)
        self.readout = Linear(rank, config.vocab_size, bias=False)

    def places(self, block: Block) -> Places:
        """Begin to draft a block: correct all of it."""
        whole = block.states.mean(1, keepdim=True).expand_as(block.states)
        known = torch.cat([self.down_h(block.states), self.down_g(whole)], -1)
        logits = block.logits
        first = block.last[:, :1] if self._from_anchor else block.last.flip(1)
        for _ in range(self._passes):
            likeliest = logits.argmax(-1)
            if self.tokens is not None:
                likeliest = self.tokens[likeliest]
            before = torch.cat([first, likeliest[:, first.shape[1] - 1 : -1]], 1)
            logits = block.logits + self._bias(before, known)
        return independent(Block(logits, block.states, block.last))

    def _bias(self, before: Tensor, known: Tensor) -> Tensor:
        """Return the bias [B, m, n] by the tokens before each place, int64 [B, m]."""
        mixed = self.in_proj(torch.cat([known, self.token_embed(before)], -1))
        mixed = mixed + torch.einsum("ckj,njc->nkc", self.mix_l.tril(), mixed)
        gate = silu(self.mlp_gate(mixed)) * self.mlp_up(mixed)
        bias: Tensor = self.readout(mixed + self.mlp_down(gate))
        return bias


PARTS: dict[str, tuple[str, type[Part]]] = {
    "dspark": ("markov_head", Markov),
    "dflash2": ("candidate_selector", Selector),
    "xpress": ("refiner_head", Refiner),
}
"""Of each kind of head with one, its name in checkpoints, and what it is."""
