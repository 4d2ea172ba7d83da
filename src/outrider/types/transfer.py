"""Copies to a device."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def sent(numbers: Tensor | NDArray[Any], device: torch.device) -> Tensor:
    """Numbers of the host on a device; a copy to a CUDA device is not waited for."""
    host = torch.as_tensor(numbers)
    if device.type == "cuda":
        return host.pin_memory().to(device, non_blocking=True)
    return host.to(device)
