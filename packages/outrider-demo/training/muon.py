"""Muon, the optimiser of the weight matrices inside the network."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

NEWTON_SCHULZ_STEPS = 5
NEWTON_SCHULZ_COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def orthogonalise(matrix: Tensor) -> Tensor:
    """Bring the singular values of a matrix near 1, keeping its singular vectors.

    Five quintic Newton-Schulz steps x <- a x + b (x x^T) x + c (x x^T)^2 x on the matrix scaled to
    unit Frobenius norm. The coefficients trade accuracy for speed: singular values that were not
    tiny end within about .7 to 1.2.

    Args:
        matrix: Shape (rows, columns), any float dtype. Not modified.

    Returns:
        Shape (rows, columns), bfloat16.

    Raises:
        ValueError: If the tensor is not a matrix.

    Source: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks".
    """
    if matrix.ndim != 2:
        raise ValueError(f"orthogonalise takes a matrix, got shape {tuple(matrix.shape)}")
    a, b, c = NEWTON_SCHULZ_COEFFICIENTS
    x: Tensor = matrix.bfloat16()
    x = x / (x.norm() + 1e-7)
    is_tall = x.size(0) > x.size(1)
    if is_tall:
        x = x.T
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if is_tall else x


class Muon(torch.optim.Optimizer):
    """Nesterov momentum whose update is orthogonalised before it is applied.

    The update of a (rows, columns) matrix is scaled by .2 sqrt(max(rows, columns)), which gives its
    entries the root mean square usual for AdamW, so that both optimisers share a learning rate.

    Args:
        params: Matrices only; embeddings, norms and biases belong to another optimiser.
        lr: Learning rate.
        momentum: Decay of the momentum buffer.
        weight_decay: Decoupled decay; each step multiplies the weights by 1 - lr * weight_decay.

    Sources: Jordan et al. 2024; the scale and the decay, Liu et al. 2025, "Muon is Scalable for LLM
    Training".
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.05,
    ) -> None:
        """Take charge of the matrices; their momentum starts at zero."""
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # it takes no closure
        """Apply one update to every parameter that has a gradient."""
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    self._update(param, param.grad, group)

    def _update(self, param: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        lr, momentum, weight_decay = group["lr"], group["momentum"], group["weight_decay"]
        state = self.state[param]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(param)
        buffer = state["momentum_buffer"].mul_(momentum).add_(grad)
        update = orthogonalise(grad.add(buffer, alpha=momentum)).to(param.dtype)
        scale = 0.2 * max(param.shape) ** 0.5
        param.mul_(1 - lr * weight_decay).add_(update, alpha=-lr * scale)
