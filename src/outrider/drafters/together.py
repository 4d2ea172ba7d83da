"""Which rows of a batch take looked-up tokens, decided for all that share a forward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..types.records import DraftPlan
from ..types.worth import SharedWorth
from .candidate import Candidate

_MARGIN = 1.1
"""How much better looked-up tokens have to look: what looks best is mostly estimated too high."""

_OF_MANY = 1.2
"""The same for several rows: they end apart, and what looks best is chosen from more."""


@dataclass(frozen=True, slots=True)
class Together:
    """What rows that decide together do.

    Attributes:
        taken: what each of them proposes, nothing included.
        stepping: whether the model drafts, as planned, for those that propose nothing.
    """

    taken: dict[int, Candidate]
    stepping: bool


@dataclass(frozen=True, slots=True)
class _Way:
    """How many looked-up tokens each row takes, int64 [rows], and what that gains, in tokens."""

    lengths: NDArray[np.int64]
    gain: float


def decide(found: Sequence[Candidate], plan: DraftPlan) -> Together:
    """What the rows that decide together do; without any where each is for itself, as in trees.

    A forward waits for its slowest draft, so that steps are saved where no row takes any. Of three
    ways the one with the most tokens beyond what is emitted in its time anyway is taken: the round
    as planned; the model for the rows of which it promises more than what was looked up; or no step
    at all.

    Args:
        found: the candidate of each row, a chain.
        plan: the plan, with what looked-up tokens have to bring.
    """
    worth = None if plan.worth is None else plan.worth.together
    if worth is None or plan.levels is not None:
        return Together({}, True)
    rows = np.flatnonzero(~np.isnan(worth.planned))
    taken = dict.fromkeys(rows.tolist(), Candidate.nothing())
    widest = max((len(found[row]) for row in taken), default=0)
    if not widest:
        return Together(taken, True)
    chances = np.zeros((len(rows), widest))
    for place, row in enumerate(taken):
        chances[place, : len(found[row])] = found[row].chances
    margin = _MARGIN if len(rows) == 1 else _OF_MANY
    steps = plan.model_steps[rows] > 0
    # Beyond the token that each emits in any case.
    needed = margin * worth.planned[rows] - 1
    if worth.weights is not None:
        weights = worth.weights[rows]
        chances = _counted(chances, weights, worth.certain, worth.spread)
        needed *= weights
    needed += worth.backlog * steps
    reading_on = worth.reading_on * steps.any()
    resting = len(rows) - (margin - 1) * worth.widths[0] - worth.backlog * steps.sum() - reading_on
    alone = (_wide_alone if worth.ragged is None else _alone)(chances, float(resting), worth)
    beside = _paid_beside(chances, needed, steps, worth)
    stepping = beside.gain if steps.any() else 0.0
    stays = alone.gain <= max(stepping, 0.0)
    chosen = beside if stays else alone
    if not stays or stepping > 0:
        for row, length in zip(rows.tolist(), chosen.lengths.tolist(), strict=True):
            taken[row] = found[row].within(length, length)
    return Together(taken, stays)


def _counted(
    chances: NDArray[np.float64], weights: NDArray[np.float64], certain: float, spread: float
) -> NDArray[np.float64]:
    """What tokens that are kept bring the end of a batch nearer by: see `SharedWorth.weights`.

    A row that is ahead of what all come to by then is less likely to be the last.

    Args:
        chances: how likely each row's tokens are to be kept, float64 [rows, widest].
        weights: of each row, [rows].
        certain, spread: see `SharedWorth`.
    """
    before = chances.cumsum(1) - chances
    ahead = (before - np.average(before, axis=0, weights=weights)).clip(0)
    # No token counts for more than one that it follows.
    counts = certain + (weights[:, None] - certain) * np.exp(-ahead / spread)
    return np.minimum.accumulate(chances * counts, 1)


def _paid_beside(
    chances: NDArray[np.float64],
    needed: NDArray[np.float64],
    steps: NDArray[np.bool_],
    worth: SharedWorth,
) -> _Way:
    """Beside the model's steps, of which a row that takes tokens has some to make up for.

    Args:
        chances, needed, worth: see `_wide_beside`.
        steps: for which rows the model would draft, bool [rows].
    """

    def beside(chances: NDArray[np.float64]) -> _Way:
        if worth.ragged is None:
            return _wide_beside(chances, needed, worth)
        return _beside(chances, needed, steps, worth)

    found = beside(chances)
    if not steps[found.lengths > 0].any():
        return found
    paid = _Way(found.lengths, found.gain - worth.reading_on)
    idle = beside(np.where(steps[:, None], 0.0, chances))
    return max(paid, idle, key=lambda way: way.gain)


def _wide_beside(
    chances: NDArray[np.float64], needed: NDArray[np.float64], worth: SharedWorth
) -> _Way:
    """Beside the model's steps, where a forward is as wide as its widest row.

    A token of one row beyond what the others draft is paid for by all of them, and tokens up to
    there are free.

    Args:
        chances: how likely each row's tokens are to be kept, float64 [rows, widest].
        needed: how many of them each row has to keep, float64 [rows].
        worth: what time is worth.
    """
    widest = chances.shape[1]
    gains = chances.cumsum(1) - needed[:, None]
    wider = (worth.widths[1 : widest + 1] - worth.covered).clip(0)
    total = gains.clip(0).sum(0) - wider
    best = int(total.argmax())
    return _Way(np.where(gains[:, best] > 0, best + 1, 0), float(total[best]))


def _wide_alone(chances: NDArray[np.float64], resting: float, worth: SharedWorth) -> _Way:
    """Without a step of the model, where a forward is as wide as its widest row.

    Args:
        chances: see `_wide_beside`.
        resting: what is emitted without any of them, less what is asked for beforehand.
        worth: what time is worth.
    """
    rows, widest = chances.shape
    total = resting + chances.sum(0).cumsum() - worth.widths[1 : widest + 1]
    best = int(total.argmax())
    return _Way(np.full(rows, best + 1), float(total[best]))


def _beside(
    chances: NDArray[np.float64],
    needed: NDArray[np.float64],
    steps: NDArray[np.bool_],
    worth: SharedWorth,
) -> _Way:
    """Beside the model's steps, where a forward takes what all its tokens take.

    Each row takes the tokens that are likelier to be kept than what one's verification is worth,
    which is told by what more tokens than planned cost, and is rid of what the model would draft.

    Args:
        chances, needed, worth: see `_wide_beside`.
        steps: for which rows the model would draft, bool [rows].
    """
    assert worth.ragged is not None
    planned, most = worth.ragged, len(worth.widths) - 1
    shorter = min(planned, most - 1)
    more = worth.widths[-1] - np.interp(shorter, np.arange(most + 1), worth.widths)
    token = max(float(more) / (most - shorter) / len(chances), 0.0)
    own = (chances - token).cumsum(1)
    gains = own.max(1) + token * planned * steps - needed
    gains = np.where(chances[:, 0] > 0, gains, 0.0)
    lengths = np.where(gains > 0, own.argmax(1) + 1, 0)
    return _Way(lengths, float(gains.clip(0).sum()))


def _alone(chances: NDArray[np.float64], resting: float, worth: SharedWorth) -> _Way:
    """Without a step of the model, where a forward takes what all its tokens take.

    The likeliest tokens of all rows: a row's are no likelier than those before them.
    """
    rows, widest = chances.shape
    order = np.argsort(-chances, axis=None, kind="stable")[: np.count_nonzero(chances)]
    counts = np.arange(1, len(order) + 1)
    costs = np.interp(counts / rows, np.arange(len(worth.widths)), worth.widths)
    total = resting + chances.ravel()[order].cumsum() - costs
    if not len(total):
        return _Way(np.zeros(rows, dtype=np.int64), -np.inf)
    best = int(total.argmax())
    return _Way(np.bincount(order[: best + 1] // widest, minlength=rows), float(total[best]))
