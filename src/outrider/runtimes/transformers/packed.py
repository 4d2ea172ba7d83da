"""Weights of a CPU's matrix products, laid out as compiled loops read them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from . import team

if team.AVAILABLE:
    from . import panels

_ROWS = 16
"""For how many rows it is looked at whether products are right."""

_WRONG = 1e-4
"""By how much of the largest of them products with packed weights may be off."""


class Packed:
    """Weight matrices laid out as one: a copy, which knows what it is a copy of.

    Args:
        weights: float32 [N, K] each on the CPU, whose changes are counted: no tensors of inference
            mode.

    Attributes:
        sizes: N of each.
    """

    def __init__(self, *weights: Tensor) -> None:
        # While they are held, nothing else is found at their addresses.
        self._weights = [weight.detach() for weight in weights]
        self._versions = [weight._version for weight in weights]
        self.sizes = [len(weight) for weight in weights]
        whole = torch.cat(self._weights) if len(weights) > 1 else self._weights[0]
        self._laid_out = panels.laid_out(whole)

    def stands_for(self, *weights: Tensor) -> bool:
        """Whether weights are those that were copied, in their order, and not changed since.

        A change through `weight.data` in place, or through memory that it shares, is not seen.
        """
        return len(weights) == len(self._weights) and all(
            weight.is_cpu
            and weight.dtype == torch.float32
            and weight.is_set_to(copied)
            and not weight.is_inference()
            and weight._version == version
            for weight, copied, version in zip(weights, self._weights, self._versions, strict=True)
        )

    def anew(self) -> Packed:
        """The same weights, as they are now."""
        return Packed(*self._weights)

    def product(self, given: Tensor) -> Tensor:
        """`x W^T` for x [..., K], of all weights one after another; no gradient comes back."""
        return panels.product(given, self._laid_out, sum(self.sizes))


@torch.inference_mode()
def packable(weight: Tensor) -> bool:
    """Whether a weight [N, K] can be laid out here, and products with it are right."""
    if not team.AVAILABLE or not counted(weight):
        return False
    size = _ROWS, weight.shape[1]
    given = torch.linspace(-1, 1, size[0] * size[1], dtype=weight.dtype, device=weight.device)
    with torch.autocast("cpu", enabled=False):
        found = Packed(weight).product(given.view(size))
        expected = linear(given.view(size), weight)
    return bool((found - expected).abs().max() <= _WRONG * expected.abs().max())


def counted(weight: Tensor) -> bool:
    """Whether a weight stays the same tensor, whose changes torch counts."""
    return type(weight) is nn.Parameter and not weight.is_inference() and weight.numel() > 0
