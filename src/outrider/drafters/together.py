"""Which rows of a batch take looked-up tokens, decided for all that share a forward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..records import DraftPlan
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


def decide(found: Sequence[Candidate], plan: DraftPlan) -> Together:
    """What the rows that decide together do; without any where each is for itself, as in trees.

    A forward is as wide as its widest row and waits for its slowest draft. So a token of one row
    beyond what the others draft is paid for by all of them, tokens up to there are free, and steps
    are saved where no row takes any. Of three ways the one with the most tokens beyond what is
    emitted in its time anyway is taken, at the width where that is most: the round as planned; the
    model for the rows of which it promises more than what was looked up; or no step at all.

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
    # What each row emits if the forward has room for 1, 2, ... of its tokens, [rows, widest].
    emits = 1 + chances.cumsum(1)
    widths = worth.widths[1 : widest + 1]
    reading = worth.backlog * (plan.model_steps[rows] > 0)
    margin = _MARGIN if len(rows) == 1 else _OF_MANY
    gains = emits - margin * worth.planned[rows, None] - reading[:, None]
    wider = (widths - worth.covered).clip(0)
    beside = gains.clip(0).sum(0) - wider
    best = int(beside.argmax())
    stepping = float(beside[best]) if plan.model_steps[rows].any() else 0.0
    alone = emits.sum(0) - widths - (margin - 1) * worth.widths[0] - reading.sum()
    if alone.max() > max(stepping, 0.0):
        most = int(alone.argmax()) + 1
        return Together({row: found[row].within(most, most) for row in taken}, False)
    if stepping > 0:
        gaining = [row for row, gain in zip(taken, gains[:, best], strict=True) if gain > 0]
        taken |= {row: found[row].within(best + 1, best + 1) for row in gaining}
    return Together(taken, True)
