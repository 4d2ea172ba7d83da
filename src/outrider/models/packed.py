"""Weights of a CPU's matrix products, laid out as oneDNN has them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

MANY = 16
"""For how many rows weights are laid out, which serves fewer and more as well."""

_WRONG = 1e-4
"""By how much of the largest of them products with packed weights may be off."""


class Packed:
    """Weight matrices laid out for oneDNN as one: a copy, which knows what it is a copy of.

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
        self._laid_out: Tensor = torch.ops.mkldnn._reorder_linear_weight(whole, MANY)

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
        found: Tensor = torch.ops.mkldnn._linear_pointwise(
            given, self._laid_out, None, "none", [], ""
        )
        return found


@torch.inference_mode()
def packable(weight: Tensor) -> bool:
    """Whether this torch packs a weight [N, K], and gets the products with it right."""
    if not (torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled):  # type: ignore[no-untyped-call]
        return False
    if not counted(weight):
        return False
    size = MANY, weight.shape[1]
    given = torch.linspace(-1, 1, size[0] * size[1], dtype=weight.dtype, device=weight.device)
    with torch.autocast("cpu", enabled=False):
        try:
            found = Packed(weight).product(given.view(size))
        except (AttributeError, RuntimeError):
            # These are operators that torch keeps for its own compiler.
            return False
        expected = linear(given.view(size), weight)
    return bool((found - expected).abs().max() <= _WRONG * expected.abs().max())


def counted(weight: Tensor) -> bool:
    """Whether a weight stays the same tensor, whose changes torch counts."""
    return type(weight) is nn.Parameter and not weight.is_inference() and weight.numel() > 0
