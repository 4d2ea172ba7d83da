"""The depth of a sequence that is planned by itself, so that its text repeats."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from ..types.acceptance import expected_tokens
from ..types.records import SequenceState
from .choices import Choice
from .purse import SHARE


def own_choice(state: SequenceState, deepest: int, cost_ratio: float, ends_early: bool) -> Choice:
    """By the sequence's own history and the cost ratio; forwards cost the same, however wide.

    Args:
        state: of the sequence.
        deepest: the most tokens in a row.
        cost_ratio: a draft step beside a plain forward of the target.
        ends_early: whether its drafts end where the plan says so.
    """
    expected = expected_tokens(state.acceptance.chances(deepest))
    rates = [tokens / (1 + k * cost_ratio) for k, tokens in enumerate(expected)]
    best = max(range(len(rates)), key=rates.__getitem__)
    choice = Choice(best, rates[best], 0.0, best)
    if best and ends_early:
        # Beyond what pays on average; where the draft is unsure it ends before.
        return replace(choice, steps=min(deepest, 2 * best + 1), pace=rates[best])
    if best or not deepest or cost_ratio >= 1:
        return choice
    pause = ceil(cost_ratio / SHARE)
    # By the round, since those in which the drafter failed have no depth to be known by.
    trial = int(state.round % (pause + 1) == pause)
    return replace(choice, steps=trial, likely=trial)
