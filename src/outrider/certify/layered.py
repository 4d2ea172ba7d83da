"""A target of two layers and a few tokens, small enough to enumerate, and heads for it."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from .kits.references import TransformersReference

if TYPE_CHECKING:
    from ..drafters.heads.drafter import HeadDrafter
    from ..runtimes.transformers.model import TransformersModel

_SEQUENCES = 72
"""Room for the branches that share a step, and for others beside them."""


class LayeredDistribution(TransformersReference):
    """The distributions of a transformers model after whole prefixes, computed without a cache."""

    def probabilities(self, prefix: tuple[int, ...]) -> NDArray[np.float64]:
        """The exponentials [V] of the logits after `prefix`: some settings look at logits."""
        weights: NDArray[np.float64] = self.logits(prefix).exp().numpy()
        return weights


def layered(
    vocab_size: int, seed: int, agreement: float = 0.6, layers: int = 2
) -> tuple[TransformersModel, LayeredDistribution]:
    """A random GPT-2 in float64 as a target, and its distribution, computed apart.

    With an `agreement` of 1 the layers after the first add nothing, with 0 all that they can. All
    of it computes in float64, the norms and the softmax of the attention included.
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
    with torch.random.fork_rng(devices=[]):
        model = GPT2LMHeadModel(config).double().eval()
    chance = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.6, generator=chance)
        for block in model.transformer.h[1:]:
            block.attn.c_proj.weight.mul_(1 - agreement)
            block.mlp.c_proj.weight.mul_(1 - agreement)
    apart = LayeredDistribution(copy.deepcopy(model))
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
    with torch.random.fork_rng(devices=[]):
        net = HeadNet(config).double().eval()
    chance = torch.Generator().manual_seed(vocab_size)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.normal_(0, 0.6, generator=chance)
    if block:
        net.tokens = torch.arange(1, vocab_size)
        return BlockDrafter(BlockModel(net, _SEQUENCES, target.longest), vocab_size, 0.3)
    return EagleDrafter(EagleModel(net, _SEQUENCES, target.longest), vocab_size, 0.3)
