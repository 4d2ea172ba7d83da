"""Make of logits the distributions that tokens are drawn from, for requests that differ.

The order and the meaning of the filters are transformers': temperature, top-k, top-p, min-p, then
one renormalisation. Tokens tied with the last one that top-k or top-p keeps are kept as well, so
the distribution does not depend on the order a sort happens to leave them in.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..config.params import SamplingParams
from ..random import BLOCK, row_totals
from ..types.records import Distributions

DTYPES = (torch.float32, torch.float64)
"""What dense distributions are made in."""

_WIDER = 4
"""How many times as many entries are looked at where those looked at before were not enough."""


@dataclass(frozen=True, slots=True)
class Filters:
    """The filters of R requests as columns [R, 1].

    Attributes:
        top_k: int64, 1 or more, the vocabulary's width where unused.
        top_p: float64, 1 where unused.
        min_p: float64, 0 where unused.
        width: how many of the largest entries are looked at first, above every top_k in use.
        open: whether top-p is used without top-k.
        plain: rows without a filter, int64 [n]; None if all have one.
    """

    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    width: int
    open: bool
    plain: Tensor | None = None

    @staticmethod
    def pack(
        params: Sequence[SamplingParams], vocab_size: int, device: torch.device
    ) -> Filters | None:
        """Pack the filters of R requests, for a vocabulary's size and a device; None for none."""
        used = [p.top_k > 0 or p.top_p < 1 or p.min_p > 0 for p in params]
        if not any(used):
            return None
        top_k = [min(p.top_k or vocab_size, vocab_size) for p in params]
        most = max((k for k in top_k if k < vocab_size), default=0)
        # What is made of rows without a filter is not used: one entry is soon found.
        top_k = [k if own else 1 for k, own in zip(top_k, used, strict=True)]
        top_p = [p.top_p for p in params]

        def column(values: Sequence[float], dtype: torch.dtype) -> Tensor:
            return torch.tensor(values, dtype=dtype, device=device)[:, None]

        return Filters(
            column(top_k, torch.int64),
            column(top_p, torch.float64),
            column([p.min_p for p in params], torch.float64),
            # Elsewhere than on the host asking whether that was enough would wait for the device.
            width=(most // BLOCK + 2) * BLOCK if device.type == "cpu" else vocab_size,
            open=any(p < 1 and k == vocab_size for p, k in zip(top_p, top_k, strict=True)),
            plain=_rows((not own for own in used), device),
        )

    def of_rows(self, rows: Tensor, width: int) -> Filters:
        """Return those of some rows, int64 [n], which may be repeated."""
        parts = self.top_k[rows], self.top_p[rows], self.min_p[rows]
        return Filters(*parts, width, self.open)


@dataclass(frozen=True, slots=True)
class PackedParams:
    """The sampling parameters of B requests as tensors; None where no request asks for it.

    Attributes:
        all_greedy: every row is greedy, so that distributions are point_masses.
        greedy: int64 [n], rows that are greedy among rows that are not.
        temperature: float64 [B], 1 of greedy rows.
        filters: top-k, top-p and min-p.
    """

    all_greedy: bool
    greedy: Tensor | None = None
    temperature: Tensor | None = None
    filters: Filters | None = None

    @staticmethod
    def pack(
        params: Sequence[SamplingParams], vocab_size: int, device: torch.device
    ) -> PackedParams:
        """Pack the parameters of B requests, for a vocabulary's size and a device."""
        if all(p.greedy for p in params):
            return GREEDY

        temperature = torch.tensor([p.temperature or 1.0 for p in params], dtype=torch.float64)
        return PackedParams(
            all_greedy=False,
            greedy=_rows((p.greedy for p in params), device),
            temperature=None if bool((temperature == 1).all()) else temperature.to(device),
            filters=Filters.pack(params, vocab_size, device),
        )


GREEDY = PackedParams(all_greedy=True)
"""The parameters of a batch in which every row is greedy."""


def _rows(chosen: Iterable[bool], device: torch.device) -> Tensor | None:
    """The rows that are chosen, int64 [n]; None if none is."""
    found = [row for row, one in enumerate(chosen) if one]
    return torch.tensor(found, device=device) if found else None


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
        shape = (-1, *[1] * (logits.ndim - 1))
        scores = scores / params.temperature.to(scores.dtype).view(shape)
    if params.filters is None:
        # A copy is overwritten: to fill new memory can take longer than the softmax.
        probs = torch.softmax(scores, -1, out=None if scores is logits else scores)
        check = probs[..., 0].clone()
    else:
        flat = scores.flatten(0, -2)
        of = torch.arange(len(logits), device=logits.device)
        of = of.repeat_interleave(len(flat) // len(logits))
        filters = params.filters.of_rows(of, params.filters.width)
        made, check = _filtered(flat, filters)
        probs, check = made.view_as(scores), check.view(scores.shape[:-1])
        if (plain := params.filters.plain) is not None:
            probs[plain] = scores[plain].softmax(-1)
    if params.greedy is not None:
        best = logits[params.greedy].argmax(-1, keepdim=True)
        none = probs.new_zeros(*best.shape[:-1], probs.shape[-1])
        probs[params.greedy] = none.scatter_(-1, best, 1)
    return Distributions(probs=probs), check


def _filtered(
    scores: Tensor, filters: Filters, whole: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Make the distributions [R, V] that filters leave of scores [R, V].

    Only the largest few are looked at; rows whose filters keep all of these are looked at again.
    `whole` [R, 1] is the mass of all tokens beside that of the largest, where it is known.

    Returns:
        The distributions, and a finite check of each row, [R], as of `distributions`.
    """
    vocab_size = scores.shape[-1]
    width = filters.width if 16 * filters.width <= vocab_size else vocab_size
    best, index = _largest(scores, width)
    peak = best[:, :1]
    masses = (best - peak).exp()
    least = best.gather(-1, (filters.top_k - 1).clamp(max=width - 1))
    masses = masses.masked_fill(best < least, 0)
    reached = masses.cumsum(-1, dtype=torch.float64)
    total = reached[:, -1:]
    if filters.open and whole is None:
        whole = row_totals((scores - peak).exp())[:, None]
    if whole is not None:
        total = torch.where(filters.top_k < vocab_size, total, whole)
    place = torch.searchsorted(reached, filters.top_p * total).clamp(max=width - 1)
    floor = masses.gather(-1, place).masked_fill(filters.top_p == 1, 0)
    floor = torch.maximum(floor, filters.min_p.to(floor.dtype))  # the peak's mass is one
    masses = masses.masked_fill(masses < floor, 0)
    total = masses.cumsum(-1, dtype=torch.float64)[:, -1:]
    probs = torch.zeros_like(scores).scatter_(-1, index, masses / total.to(masses.dtype))
    if width < vocab_size:
        rows = (masses[:, -1] > 0).nonzero()[:, 0]
        if len(rows):
            wider = filters.of_rows(rows, _WIDER * width)
            probs[rows], _ = _filtered(scores[rows], wider, None if whole is None else whole[rows])
    return probs, reached[:, -1]


def _largest(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest of values [R, V] in falling order, and where they stand, [R, count].

    A few are all in the `count` blocks with the largest maxima: only those are searched. All are
    sorted, on the host by NumPy, which is several times as fast.
    """
    vocab_size = values.shape[-1]
    if count == vocab_size and values.device.type == "cpu":
        order = torch.from_numpy(np.argsort(-values.numpy()))
        return values.gather(-1, order), order
    if 2 * count * BLOCK > vocab_size:
        found = values.topk(count, -1)
        return found.values, found.indices
    whole = vocab_size // BLOCK * BLOCK
    maxima = values[:, :whole].unflatten(-1, (-1, BLOCK)).amax(-1)
    within = torch.arange(BLOCK, device=values.device)
    places = (maxima.topk(count, -1).indices[..., None] * BLOCK + within).flatten(1)
    rest = torch.arange(whole, vocab_size, device=values.device)
    places = torch.cat([places, rest.expand(len(values), -1)], -1)
    found = values.gather(-1, places).topk(count, -1)
    return found.values, places.gather(-1, found.indices)
