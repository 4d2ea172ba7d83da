"""Make of logits the distributions that tokens are drawn from, for requests that differ.

The order and the meaning of the filters are transformers': temperature, top-k, top-p, min-p, then
one renormalisation. Tokens tied with the last one that top-k or top-p keeps are kept as well, so
the distribution does not depend on the order a sort happens to leave them in.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..config.params import SamplingParams
from ..random import row_totals
from ..types.records import Distributions

DTYPES = (torch.float32, torch.float64)
"""What dense distributions are made in."""

_WIDER = 4
"""How many times as many entries are looked at where those looked at before were not enough."""


_MARGIN = 128
"""So many more entries than top-k keeps are looked at first. It bounds work alone: rows that keep
all of these are looked at again."""


@dataclass(frozen=True, slots=True)
class PackedParams:
    """The sampling parameters of B requests as tensors; None where no request asks for it.

    Attributes:
        all_greedy: every row is greedy, so that distributions are point_masses.
        greedy: int64 [n], rows that are greedy among rows that are not.
        temperature: float64 [B], 1 of greedy rows.
        filters: float64 [B, 3]: top-k, the vocabulary's width where unused; top-p, 1 where unused;
            min-p, 0 where unused.
        plain: int64 [n], rows without a filter among rows that have one.
        width: how many of the largest entries filters look at first, above every top-k in use.
        nucleus: whether top-p is used without top-k.
    """

    all_greedy: bool
    greedy: Tensor | None = None
    temperature: Tensor | None = None
    filters: Tensor | None = None
    plain: Tensor | None = None
    width: int = 0
    nucleus: bool = False

    @staticmethod
    def pack(
        params: Sequence[SamplingParams], vocab_size: int, device: torch.device
    ) -> PackedParams:
        """Pack the parameters of B requests, for a vocabulary's size and a device."""
        if all(p.greedy for p in params):
            return GREEDY

        def rows(chosen: Iterable[bool]) -> Tensor | None:
            found = [row for row, one in enumerate(chosen) if one]
            return torch.tensor(found, device=device) if found else None

        temperature = torch.tensor([p.temperature or 1.0 for p in params], dtype=torch.float64)
        filters = [(min(p.top_k or vocab_size, vocab_size), p.top_p, p.min_p) for p in params]
        unused = (vocab_size, 1.0, 0.0)
        most = max((k for k, _, _ in filters if k < vocab_size), default=0)
        # What is made of rows without a filter is not used: one entry is soon found.
        columns = [each if each != unused else (1, 1.0, 0.0) for each in filters]
        used = any(each != unused for each in filters)
        return PackedParams(
            all_greedy=False,
            greedy=rows(p.greedy for p in params),
            temperature=None if bool((temperature == 1).all()) else temperature.to(device),
            filters=torch.tensor(columns, dtype=torch.float64, device=device) if used else None,
            plain=rows(each == unused for each in filters),
            # Elsewhere than on the host asking whether that was enough would wait for the device.
            width=most + _MARGIN if device.type == "cpu" else vocab_size,
            nucleus=any(k == vocab_size and p < 1 for k, p, _ in filters),
        )


GREEDY = PackedParams(all_greedy=True)
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
        shape = (-1, *[1] * (logits.ndim - 1))
        scores = scores / params.temperature.to(scores.dtype).view(shape)
    if params.filters is None:
        # A copy is overwritten: to fill new memory can take longer than the softmax.
        probs = torch.softmax(scores, -1, out=None if scores is logits else scores)
        check = probs[..., 0].clone()
    else:
        flat = scores.flatten(0, -2)
        filters = params.filters.repeat_interleave(len(flat) // len(logits), 0)
        totals = row_totals((flat - flat.amax(-1, keepdim=True)).exp()) if params.nucleus else None
        made, check = _filtered(flat, filters, totals, params.width)
        probs, check = made.view_as(scores), check.view(scores.shape[:-1])
        if params.plain is not None:
            probs[params.plain] = scores[params.plain].softmax(-1)
    if params.greedy is not None:
        best = logits[params.greedy].argmax(-1, keepdim=True)
        none = probs.new_zeros(*best.shape[:-1], probs.shape[-1])
        probs[params.greedy] = none.scatter_(-1, best, 1)
    return Distributions(probs=probs), check


def _filtered(
    scores: Tensor, filters: Tensor, totals: Tensor | None, width: int
) -> tuple[Tensor, Tensor]:
    """Make the distributions [R, V] that filters [R, 3] leave of scores [R, V].

    Only the `width` largest are looked at; rows whose filters keep all of these are looked at
    again. Masses are relative to the largest; `totals` [R] are those of all tokens, for top-p
    without top-k.

    Returns:
        The distributions, and a finite check of each row, [R], as of `distributions`.
    """
    vocab_size = scores.shape[-1]
    width = width if 16 * width <= vocab_size else vocab_size
    top_k, top_p, min_p = filters.split(1, dim=1)
    best, index = scores.topk(width, -1)
    masses = (best - best[:, :1]).exp()
    least = best.gather(-1, (top_k.long() - 1).clamp(max=width - 1))
    masses = masses.masked_fill(best < least, 0)
    # Others may be tied with the k-th; what they add counts for top-p.
    tied = (masses[:, -1] > 0) & (top_k[:, 0] < vocab_size)
    reached = masses.cumsum(-1, dtype=torch.float64)
    total = reached[:, -1:]
    if totals is not None:
        total = torch.where(top_k < vocab_size, total, totals[:, None])
    place = torch.searchsorted(reached, top_p * total).clamp(max=width - 1)
    floor = masses.gather(-1, place).masked_fill(top_p == 1, 0)
    masses = masses.masked_fill(masses < torch.maximum(floor, min_p.to(floor.dtype)), 0)
    total = masses.cumsum(-1, dtype=torch.float64)[:, -1:]
    probs = torch.zeros_like(scores).scatter_(-1, index, masses / total.to(masses.dtype))
    # On other devices than the host all are looked at.
    if width < vocab_size and len(rows := (tied | (masses[:, -1] > 0)).nonzero()[:, 0]):
        left = None if totals is None else totals[rows]
        probs[rows], _ = _filtered(scores[rows], filters[rows], left, _WIDER * width)
    return probs, reached[:, -1]
