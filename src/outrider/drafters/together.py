"""Which rows of a batch take looked-up tokens, decided for all that share a forward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..records import DraftPlan
from .candidate import Candidate

_MARGIN = 1.1
"""How much better looked-up tokens have to look: what looks best is mostly estimated too high."""


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

    A forward is as wide as its widest row and waits for its slowest draft. So tokens of one row
    cost all of them, and steps are saved where no row takes any. Of three ways the one with the
    most tokens in its time is taken: the round as planned; the model for the rows of which it
    promises more than what was looked up, in the time of the planned round; or no step at all.

    Args:
        found: the candidate of each row, a chain.
        plan: the plan, with what looked-up tokens have to bring.
    """
    worth = plan.worth
    if worth is None or worth.planned is None or plan.levels is not None:
        return Together({}, True)
    rows = np.flatnonzero(~np.isnan(worth.planned)).tolist()
    parts = {row: found[row].worthwhile(1.0, float(worth.token[row])) for row in rows}
    emits = {row: 1 + float((part.chances - worth.token[row]).sum()) for row, part in parts.items()}
    nothing = Candidate.nothing()
    taken, more = dict.fromkeys(rows, nothing), 0.0
    if any(plan.model_steps[row] for row in rows):
        gains = {row: emits[row] - _MARGIN * float(worth.planned[row]) for row in rows}
        taken = {row: parts[row] if gain > 0 else nothing for row, gain in gains.items()}
        more = sum(max(gain, 0.0) for gain in gains.values()) / float(worth.planned[rows].sum())
    if rows and sum(emits.values()) / float(worth.plain[rows].sum()) - _MARGIN > more:
        return Together(parts, False)
    return Together(taken, True)
