"""A target of two layers and a few tokens, small enough to enumerate, and heads for it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from .kits.references import TransformersReference
from .reference import Source

if TYPE_CHECKING:
    from ..drafters.heads.drafter import HeadDrafter
    from ..runtimes.transformers.model import TransformersModel

_SEQUENCES = 72
"""Room for the branches that share a step, and for others beside them."""


def _filled(make: Callable[[], Any], seed: int) -> Any:
    """Make a module in float64, and draw the entries of its matrices."""
    with torch.random.fork_rng(devices=[]):
        module = make().double().eval()
    chance = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.6, generator=chance)
    return module


def layered(
    vocab_size: int, seed: int, agreement: float = 0.6, layers: int = 2
) -> tuple[TransformersModel, Source]:
    """A random GPT-2 in float64 as a target, and its distribution, without a cache.

    With an `agreement` of 1 the layers after the first add nothing, with 0 all that they can. All
    of it computes in float64, the norms and the softmax of the attention included. The distribution
    is the exponentials [V] of the logits: some settings look at logits.
    """
    from transformers import GPT2Config, GPT2LMHeadModel

    from ..runtimes.transformers.model import TransformersModel

    config = GPT2Config(
        vocab_size=vocab_size,
        n_positions=32,
        n_embd=8,
        n_layer=layers,
        n_head=2,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        attn_implementation="sdpa",
    )
    model = _filled(lambda: GPT2LMHeadModel(config), seed)
    with torch.no_grad():
        for block in model.transformer.h[1:]:
            block.attn.c_proj.weight.mul_(1 - agreement)
            block.mlp.c_proj.weight.mul_(1 - agreement)
    logits = TransformersReference(copy.deepcopy(model)).logits
    apart: Any = SimpleNamespace(probabilities=lambda prefix: logits(prefix).exp().numpy())
    return TransformersModel(model, max_sequences=_SEQUENCES), apart


def head_of(target: TransformersModel, *, block: bool) -> HeadDrafter:
    """Make a random head for such a target.

    Args:
        target: the target.
        block: whether it drafts a block, in which each token depends on the one before it, of all
            tokens but one, or a token a forward by EAGLE-3.
    """
    from transformers import LlamaConfig

    from ..drafters.heads.checkpoint import HeadConfig
    from ..drafters.heads.drafter import BlockDrafter, EagleDrafter
    from ..drafters.heads.model import BlockModel, EagleModel
    from ..drafters.heads.nets import HeadNet

    vocab_size, width = target.vocab_size, target.hf_model.config.n_embd
    decoder = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=width,
        intermediate_size=width,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=target.longest,
        layer_types=["full_attention"],
    )
    given = {
        "draft_vocab_size": vocab_size - block,
        "target_hidden_size": width,
        "block_size": 4,
        "markov_rank": 2,
        "enable_confidence_head": False,
    }
    config = HeadConfig("dspark" if block else "eagle3", decoder, (0, 1, 2), given)
    net = _filled(lambda: HeadNet(config), vocab_size)
    if block:
        net.tokens = torch.arange(1, vocab_size)
        return BlockDrafter(BlockModel(net, _SEQUENCES, target.longest), vocab_size, 0.3)
    return EagleDrafter(EagleModel(net, _SEQUENCES, target.longest), vocab_size, 0.3)
