"""What the models minimise, and the held-out estimate printed while they train."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaForCausalLM

from training.windows import sample_windows

EVALUATION_SEED = 5
EVALUATION_BATCHES = 6
EVALUATION_BATCH_SIZE = 8

TOKENS_AT_ONCE = 64
"""How many distributions are compared at once: as many as stay in a core's cache."""

Network = Callable[..., Any]


def loss_on(network: Network, teacher: LlamaForCausalLM | None, windows: Tensor) -> Tensor:
    """Return the training loss, in nats a token, a scalar.

    Without a teacher it is the cross-entropy of the next token; with one, the divergence
    KL(teacher || network) of the next-token distributions, all of the vocabulary at temperature 1.
    The network runs under bfloat16 autocast, the distributions are compared in float32.

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


@dataclass(frozen=True)
class Imitation:
    """How near a model is to its teacher, and how to come nearer.

    Attributes:
        divergence: KL(teacher || model), nats a token.
        overlap: The mass that the two distributions share, the sum over tokens of the smaller
            probability.
        gradient: Of the loss, by the model's logits, in their shape.
    """

    divergence: float
    overlap: float
    gradient: Tensor


@torch.no_grad()
def imitation(logits: Tensor, taught: Tensor, weight: float) -> Imitation:
    """Compare a model's distributions with its teacher's, at temperature 1.

    The loss is (1 - weight) KL(teacher || model) + weight (1 - overlap), a mean over the tokens.
    With q the model's distribution, p the teacher's and m marking where q < p, its gradient by the
    logits is (1 - weight) (q - p) - weight q (m - sum q m). Given in closed form, since
    differentiating through two logarithms and their tables costs twice as much as the draft's
    own layers.

    Args:
        logits: The model's, shape (..., vocabulary), float32.
        taught: The teacher's, likewise.
        weight: 0 to 1.
    """
    tokens = logits[..., 0].numel()
    divergence = overlap = 0.0
    gradient = torch.empty_like(logits)
    parts = (
        torch.split(flat.flatten(0, -2), TOKENS_AT_ONCE) for flat in (logits, taught, gradient)
    )
    for model_part, teacher_part, out in zip(*parts, strict=True):
        model_log, teacher_log = model_part.log_softmax(-1), teacher_part.log_softmax(-1)
        model_distribution, teacher_distribution = model_log.exp(), teacher_log.exp()
        divergence += torch.sum(teacher_distribution * (teacher_log - model_log)).item()
        overlap += torch.minimum(model_distribution, teacher_distribution).sum().item()
        under = (model_distribution < teacher_distribution).to(model_distribution.dtype)
        reached = torch.linalg.vecdot(model_distribution, under)[:, None]
        torch.sub(model_distribution, teacher_distribution, out=out).mul_(1 - weight)
        out.sub_(model_distribution.mul_(under.sub_(reached)), alpha=weight).div_(tokens)
    return Imitation(divergence / tokens, overlap / tokens, gradient)


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
