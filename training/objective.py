"""What the models minimise, and the held-out estimate printed while they train."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaForCausalLM

from training.windows import sample_windows

EVALUATION_SEED = 5
EVALUATION_BATCHES = 6
EVALUATION_BATCH_SIZE = 8

Network = Callable[..., Any]


def loss_on(network: Network, teacher: LlamaForCausalLM | None, windows: Tensor) -> Tensor:
    """Return the training loss, in nats a token, a scalar.

    Without a teacher it is the cross-entropy of the next token; with one, the divergence
    KL(teacher || network) of the next-token laws, all of the vocabulary at temperature 1. The
    network runs under bfloat16 autocast, the laws are compared in float32.

    Args:
        network: A causal language model, or a compiled one.
        teacher: The model to imitate, or None.
        windows: Token ids, shape (batch, window + 1).

    Source of the distillation: Hinton et al. 2015, "Distilling the Knowledge in a Neural Network".
    """
    inputs, labels = windows[:, :-1], windows[:, 1:]
    with torch.autocast("cpu", torch.bfloat16):
        logits = network(inputs, use_cache=False).logits
    logits = logits.float().flatten(0, 1)
    if teacher is None:
        return F.cross_entropy(logits, labels.flatten())
    with torch.no_grad():
        teacher_logits = teacher(inputs, use_cache=False).logits.float().flatten(0, 1)
    return F.kl_div(
        F.log_softmax(logits, -1),
        F.log_softmax(teacher_logits, -1),
        reduction="batchmean",
        log_target=True,
    )


@torch.no_grad()
def sampled_loss(
    network: Network, teacher: LlamaForCausalLM | None, held: Tensor, window: int
) -> float:
    """Estimate the held-out loss on 48 windows, always the same ones; nats a token.

    The caller puts the network into evaluation mode.
    """
    generator = torch.Generator().manual_seed(EVALUATION_SEED)
    losses = [
        loss_on(
            network, teacher, sample_windows(held, window, EVALUATION_BATCH_SIZE, generator)
        ).item()
        for _ in range(EVALUATION_BATCHES)
    ]
    return sum(losses) / len(losses)
