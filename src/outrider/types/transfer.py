"""Copies to a device."""

from __future__ import annotations

import torch
from torch import Tensor


def sent(host: Tensor, device: torch.device) -> Tensor:
    """A host tensor on the device; on a CUDA device by a copy that the host does not wait for."""
    if device.type == "cuda":
        return host.pin_memory().to(device, non_blocking=True)
    return host.to(device)
