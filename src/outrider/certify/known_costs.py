"""An adaptive depth that has measured its costs, on rounds that are made up: no clock is read."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy

from ..config.params import SamplingParams
from ..policies import AdaptiveDepth, Levels
from ..types.records import DraftPlan, Prefix, RoundRecord, SequenceState

_ROUNDS = ((0, 0), (0, 0), (0, 0), (1, 1), (1, 0), (2, 1), (2, 2), (3, 1), (3, 0), (0, 0), (0, 0))
"""How many tokens in a row each round drafted, and how many it kept: of one sequence, then of four.

So few are kept that it depends on a text's own rounds how far it is drafted for.
"""

_STEP_S, _TOKEN_S = 0.25, 0.04
"""A step of the drafter, and a token more for the target, beside a plain forward."""


class KnownCosts:
    """What a policy plans that knows what rounds take, and what other texts kept.

    Each round is planned by a copy of it, since depths have to be the same on every walk: what it
    decided last may else count for what it decides next.

    Args:
        policy: has seen no round.
        levels: the shape of its drafts.
    """

    def __init__(self, policy: AdaptiveDepth, levels: Levels) -> None:
        self.learns = True
        self._policy = policy
        params = SamplingParams(max_tokens=100)
        for rows in (1, 4):
            states = [
                SequenceState(Prefix(-1 - row, range(16)), 16, params, frozenset(), row)
                for row in range(rows)
            ]
            for asked, most in _ROUNDS:
                depth = min(asked, levels.deepest)
                kept = min(most, depth)
                states = [_after(state, depth, kept) for state in states]
                policy.observe(states, _round(states, depth, kept, levels.width(depth)))
        assert policy.calibrated

    def plan(self, states: Sequence[SequenceState]) -> DraftPlan:
        """The depth of each sequence's next round."""
        return deepcopy(self._policy).plan(states)

    def observe(self, states: Sequence[SequenceState], record: RoundRecord) -> None:
        """Learn nothing: a walk is no text of many."""


def _after(state: SequenceState, depth: int, kept: int) -> SequenceState:
    known = state.acceptance.after(depth, kept)
    return state.advanced([0] * (kept + 1), depth, None, known, ())


def _round(states: Sequence[SequenceState], depth: int, kept: int, width: int) -> RoundRecord:
    """What a round took that drafted so deep and wide for each of these sequences."""
    rows = len(states)
    target_s = 1 + _TOKEN_S * (rows * (width + 1) - 1)
    draft_s = _STEP_S * depth
    return RoundRecord(
        sequence_ids=tuple(state.prefix.sequence_id for state in states),
        drafted=(width,) * rows,
        depth=(depth,) * rows,
        accepted=(kept,) * rows,
        emitted=(kept + 1,) * rows,
        bonus=(kept == depth,) * rows,
        ceiling=(None,) * rows,
        first_ceiling=(None,) * rows,
        draft_failed=False,
        looked_up=(False,) * rows,
        ended=(False,) * rows,
        entropies=((),) * rows,
        cached=(0,) * rows,
        draft_s=draft_s,
        target_s=target_s,
        total_s=draft_s + target_s,
    )
