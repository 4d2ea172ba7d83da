"""What is done to each row by itself, in one call: norms and gates, in float32 on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from ...drafters.suffix.jit import Callback
from . import loops, team

_SOME = 16
"""How many rows a thread takes at a time: for fewer no other is started."""


def _run(loop: Callback, rows: int, width: int, *arguments: int) -> None:
    start = team.run if rows > _SOME else team.alone
    start(loop, rows, width, _SOME, *arguments)


def _plain(*states: Tensor) -> bool:
    return all(each.is_cpu and each.dtype == torch.float32 for each in states)


def norm_fits(given: Tensor, weight: Tensor) -> bool:
    """Whether `norm` is made for states and a weight like these."""
    whole = given.is_contiguous() and weight.is_contiguous()
    return _plain(given, weight) and whole and weight.shape == given.shape[-1:]


def norm(given: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """States [..., D] that it fits over their root mean square, times a weight [D]."""
    out, width = torch.empty_like(given), given.shape[-1]
    addresses = given.data_ptr(), weight.data_ptr(), out.data_ptr()
    if out.numel():
        _run(loops.norm, given.numel() // width, width, *addresses, team.as_integer(epsilon))
    return out


def gate_fits(gate: Tensor, up: Tensor) -> bool:
    """Whether `gated` is made for states like these: as products give them, joined or not."""
    return (
        gate.ndim == 3
        and gate.shape == up.shape
        and gate.stride(2) == up.stride(2) == 1
        and all(each.stride(0) == each.shape[1] * each.stride(1) for each in (gate, up))
        and _plain(gate, up)
    )


def gated(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up of states [B, q, D] that it fits, [B, q, D]."""
    out, (batch, length, width) = gate.new_empty(gate.shape), gate.shape
    given = (each for state in (gate, up) for each in (state.data_ptr(), state.stride(1)))
    if out.numel():
        _run(loops.gated, batch * length, width, *given, out.data_ptr())
    return out
