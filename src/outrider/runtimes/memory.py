"""How many blocks of keys and values fit into memory."""

from __future__ import annotations

import logging

import torch

from ..errors import InvalidConfigError, missing

with missing("psutil"):
    import psutil

_LOG = logging.getLogger(__name__)

_SHARE = 0.5
"""The part of free memory that keys and values may take where nothing is said."""

_LEAST = 4
"""Blocks without which no draft can be verified."""


def affordable(
    block_bytes: int, most: int, memory: int | None, device: torch.device, states: int = 0
) -> int:
    """Return how many blocks there are to be.

    Args:
        block_bytes: of one block, in all layers.
        most: as many as may be needed.
        memory: bytes that they may take; None for half of what is free.
        device: where they are.
        states: bytes of the recurrent states beside them.

    Raises:
        InvalidConfigError: `memory` is not enough for the fewest.
    """
    least = _LEAST * block_bytes + states
    if memory is not None and memory < least:
        what = "keys and values" + ", and states" * bool(states)
        expected = f"bytes for at least {_LEAST} blocks of {what}, {least}"
        raise InvalidConfigError("kv_cache_memory", memory, expected)
    if memory is None:
        free = psutil.virtual_memory().available
        if device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(device)
        memory = int(_SHARE * free)
    blocks = max(_LEAST, min(most, (memory - states) // block_bytes)) if block_bytes else most
    _LOG.info("up to %.1f MB for keys, values and states", (blocks * block_bytes + states) / 1e6)
    return blocks
