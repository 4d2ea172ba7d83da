"""Small copies to a device."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def sent(host: Tensor, device: torch.device) -> Tensor:
    """A host tensor on the device; on a CUDA device by a copy that the host does not wait for."""
    if device.type == "cuda":
        return host.pin_memory().to(device, non_blocking=True)
    return host.to(device)


def on_device(values: NDArray[Any], device: torch.device | None) -> Tensor:
    """Copy a host array to the device; None for the CPU."""
    host = torch.from_numpy(values)
    return host if device is None else sent(host, device)
