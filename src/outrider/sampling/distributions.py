"""Make of logits the distributions that tokens are drawn from, for requests that differ.

The order and the meaning of the filters are transformers': temperature, top-k, top-p, min-p, then
one renormalisation. Tokens tied with the last one that top-k or top-p keeps are kept as well, so
the distribution does not depend on the order a sort happens to leave them in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..config.params import SamplingParams
from ..random import BLOCK, row_totals
from ..types.records import Distributions

DTYPES = (torch.float32, torch.float64)
"""What dense distributions are made in."""

_FIRST_WIDTH = 128


@dataclass(frozen=True, slots=True)
class PackedParams:
    """The sampling parameters of B requests as tensors; None where no request uses a filter.

    Attributes:
        all_greedy: every row is greedy, so that distributions are point_masses.
        greedy: bool [B], rows that are greedy among rows that are not.
        temperature: float64 [B], 1 of greedy rows.
        top_k: int64 [B], 1 or more, the vocabulary's width where unused.
        max_top_k: the largest top_k in use.
        top_p: float64 [B], 1 where unused.
        min_p: float64 [B], 0 where unused.
    """

    all_greedy: bool
    greedy: Tensor | None
    temperature: Tensor | None
    top_k: Tensor | None
    max_top_k: int
    top_p: Tensor | None
    min_p: Tensor | None

    @staticmethod
    def pack(
        params: Sequence[SamplingParams], vocab_size: int, device: torch.device
    ) -> PackedParams:
        """Pack the parameters of B requests, for a vocabulary's size and a device."""
        greedy = [p.greedy for p in params]
        if all(greedy):
            return GREEDY

        def column(values: Sequence[float], unused: float) -> Tensor | None:
            if all(value == unused for value in values):
                return None
            dtype = torch.int64 if isinstance(unused, int) else torch.float64
            return torch.tensor(values, dtype=dtype, device=device)

        top_k = [min(p.top_k or vocab_size, vocab_size) for p in params]
        return PackedParams(
            all_greedy=False,
            greedy=torch.tensor(greedy, device=device) if any(greedy) else None,
            temperature=column([p.temperature or 1.0 for p in params], 1.0),
            top_k=column(top_k, vocab_size),
            max_top_k=max((k for k in top_k if k < vocab_size), default=0),
            top_p=column([p.top_p for p in params], 1.0),
            min_p=column([p.min_p for p in params], 0.0),
        )


GREEDY = PackedParams(True, None, None, None, 0, None, None)
"""The parameters of a batch in which every row is greedy."""


def distributions(logits: Tensor, params: PackedParams) -> tuple[Distributions, Tensor]:
    """Make the distributions that B requests ask for of logits.

    Args:
        logits: [B, V], or [B, M, V] for M positions of each request.
        params: of the B requests.

    Returns:
        The distributions for [B] or [B, M], in max(float32, the logits' dtype), and a finite
        check of that shape: a number that is not finite where a row of logits had NaN, +inf or no
        finite entry, so that its distribution is undefined.
    """
    if params.all_greedy:
        peak, best = logits.max(-1)
        return Distributions(point_masses=best), peak
    scores = logits if logits.dtype == torch.float64 else logits.float()
    if params.temperature is not None:
        scores = scores / _per_row(params.temperature.to(scores.dtype), logits)
    if params.top_k is not None:
        top_k = _per_row(params.top_k, logits)
        last = (top_k - 1).clamp(max=params.max_top_k - 1)
        floor = _largest(scores, params.max_top_k).gather(-1, last.expand(*scores.shape[:-1], 1))
        floor = floor.masked_fill(top_k == scores.shape[-1], -torch.inf)
        scores = scores.masked_fill(scores < floor, -torch.inf)
    probs = scores.softmax(-1)
    check = probs[..., 0].clone()
    if params.top_p is not None or params.min_p is not None:
        floor = torch.zeros_like(probs[..., :1])
        if params.top_p is not None:
            floor = _top_p_floor(probs, _per_row(params.top_p, logits))
        if params.min_p is not None:
            peak = probs.amax(-1, keepdim=True)
            floor = torch.maximum(floor, _per_row(params.min_p, logits).to(probs.dtype) * peak)
        probs = probs.masked_fill_(probs < floor, 0)
        total = row_totals(probs)[..., None].to(probs.dtype)
        # Rows without a filter stay as they would be without filtered ones beside them.
        probs /= total.masked_fill(floor == 0, 1)
    if params.greedy is not None:
        best = logits.argmax(-1, keepdim=True)
        one_hot = torch.zeros_like(probs).scatter_(-1, best, 1)
        probs = torch.where(_per_row(params.greedy, logits), one_hot, probs)
    return Distributions(probs=probs), check


def _per_row(values: Tensor, logits: Tensor) -> Tensor:
    """Values [B] in a shape that broadcasts with logits [B, ..., V]."""
    return values.view(-1, *[1] * (logits.ndim - 1))


def _largest(values: Tensor, count: int) -> Tensor:
    """The largest of values [..., V] in falling order, [..., count].

    They are all in the `count` blocks with the largest maxima: only those are searched.
    """
    vocab_size = values.shape[-1]
    whole = vocab_size // BLOCK
    if 8 * count * BLOCK > vocab_size:
        return values.topk(count, -1).values
    blocks = values[..., : whole * BLOCK].unflatten(-1, (whole, BLOCK))
    best = blocks.amax(-1).topk(count, -1).indices[..., None]
    found = blocks.gather(-2, best.expand(*best.shape[:-1], BLOCK)).flatten(-2)
    return torch.cat([found, values[..., whole * BLOCK :]], -1).topk(count, -1).values


def _top_p_floor(probs: Tensor, top_p: Tensor) -> Tensor:
    """The least probability that top-p keeps, [..., 1].

    On a CPU the largest few are looked at first, and rows in which they do not reach top-p are
    sorted, by NumPy, which is many times as fast; elsewhere all rows are sorted, because asking
    would wait for the device.
    """
    vocab_size = probs.shape[-1]
    on_host = probs.device.type == "cpu"
    best = _largest(probs, min(vocab_size, _FIRST_WIDTH) if on_host else vocab_size)
    floor, enough = _least_kept(best, top_p)
    short = (~enough & (top_p < 1))[..., 0]
    if best.shape[-1] < vocab_size and bool(short.any()):
        ordered = torch.from_numpy(np.sort(probs[short].numpy())).flip(-1)
        floor[short], _ = _least_kept(ordered, top_p.expand_as(floor)[short])
    return floor.masked_fill(top_p == 1, 0)


def _least_kept(best: Tensor, top_p: Tensor) -> tuple[Tensor, Tensor]:
    """The least of probabilities [..., n] in falling order that top-p keeps, and if they do."""
    reached = best.cumsum(-1, dtype=torch.float64)
    place = torch.searchsorted(reached, top_p.expand(*best.shape[:-1], 1).contiguous())
    return best.gather(-1, place.clamp(max=best.shape[-1] - 1)), place < best.shape[-1]
