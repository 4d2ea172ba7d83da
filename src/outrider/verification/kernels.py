"""The passes over whole rows as Triton kernels, for CUDA: imported only where Triton is.

Each has a readable twin in torch: `normalisers` that of the same name in `lazy`, and `excess` the
sum of `LazyLaws.above`. A row is cut into blocks that are worked on at once, since a round has few
rows; what the blocks come to is joined in torch.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 4096


def normalisers(logits: Tensor, scale: Tensor | float) -> tuple[Tensor, Tensor]:
    """The largest [R, 1] of each row of logits z, and the sum of 2^(scale * (z - largest)).

    Args:
        logits: [R, V].
        scale: one number, or [R, 1].

    Returns:
        Both in max(float32, the logits' dtype).
    """
    rows, size = logits.shape
    logits = _dense(logits)
    peaks, masses = torch.empty(
        (2, rows, triton.cdiv(size, _BLOCK)), dtype=_dtype(logits), device=logits.device
    )
    grid = (rows, peaks.shape[1])
    scales = _per_row(scale, logits)
    with torch.cuda.device_of(logits):
        _normalise[grid](logits, scales, peaks, masses, size, logits.stride(0), BLOCK=_BLOCK)
    peak = peaks.amax(-1, keepdim=True)
    return peak, (masses * torch.exp2((peaks - peak) * scales.view(-1, 1))).sum(-1, keepdim=True)


def excess(
    logits: Tensor,
    scale: Tensor | float,
    peak: Tensor,
    index: Tensor,
    factor: Tensor,
    draft: Tensor,
    column: Tensor,
) -> Tensor:
    """The sums of (factor * 2^(scale * (logits - peak)) - Q)+ over rows, float64 [S].

    Args:
        logits: [R, V].
        scale: one number, or [R, 1].
        peak: [R, 1], as `normalisers` gives it.
        index: int64 [S], which rows of logits.
        factor: [S], what each is multiplied by.
        draft: [., V], the rows Q.
        column: int64 [S], which rows of the draft.
    """
    count, size = len(index), logits.shape[1]
    logits, draft = _dense(logits), _dense(draft)
    blocks = triton.cdiv(size, _BLOCK)
    sums = torch.empty((count, blocks), dtype=_dtype(logits), device=logits.device)
    with torch.cuda.device_of(logits):
        _exceed[(count, blocks)](
            logits,
            _per_row(scale, logits),
            peak,
            index,
            factor.to(sums.dtype),
            draft,
            column,
            sums,
            size,
            logits.stride(0),
            draft.stride(0),
            BLOCK=_BLOCK,
        )
    return sums.sum(-1, dtype=torch.float64)


@triton.jit
def _normalise(
    logits: tl.tensor,
    scale: tl.tensor,
    peaks: tl.tensor,
    masses: tl.tensor,
    size: tl.tensor,
    stride: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """One block of one row: its largest logit, and the sum of its powers under that."""
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    place = block * BLOCK + tl.arange(0, BLOCK)
    read = tl.load(logits + row * stride + place, mask=place < size, other=-float("inf"))
    read = read.to(peaks.dtype.element_ty)
    peak = tl.max(read, axis=0)
    # A block may be ruled out altogether; its sum is then zero under any peak.
    under = tl.where(peak == -float("inf"), 0.0, peak)
    out = row * tl.num_programs(1) + block
    tl.store(peaks + out, peak)
    tl.store(masses + out, tl.sum(tl.exp2((read - under) * tl.load(scale + row)), axis=0))


@triton.jit
def _exceed(
    logits: tl.tensor,
    scale: tl.tensor,
    peak: tl.tensor,
    index: tl.tensor,
    factor: tl.tensor,
    draft: tl.tensor,
    column: tl.tensor,
    sums: tl.tensor,
    size: tl.tensor,
    stride: tl.tensor,
    draft_stride: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """One block of one sum."""
    which, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    dtype = sums.dtype.element_ty
    row, drafted = tl.load(index + which), tl.load(column + which)
    place = block * BLOCK + tl.arange(0, BLOCK)
    inside = place < size
    read = tl.load(logits + row * stride + place, mask=inside, other=-float("inf"))
    exponent = (read.to(dtype) - tl.load(peak + row)) * tl.load(scale + row)
    removed = tl.load(draft + drafted * draft_stride + place, mask=inside, other=0.0)
    above = tl.load(factor + which) * tl.exp2(exponent) - removed.to(dtype)
    kept = tl.sum(tl.where(above > 0, above, 0.0), axis=0)
    tl.store(sums + which * tl.num_programs(1) + block, kept)


def _dtype(logits: Tensor) -> torch.dtype:
    return torch.promote_types(logits.dtype, torch.float32)


def _dense(rows: Tensor) -> Tensor:
    return rows if rows.stride(1) == 1 else rows.contiguous()


def _per_row(scale: Tensor | float, logits: Tensor) -> Tensor:
    if isinstance(scale, Tensor):
        return scale.contiguous()
    return torch.full((len(logits),), scale, dtype=_dtype(logits), device=logits.device)
