"""The knowledge of a policy that has measured costs, on rounds that are made up: no clock is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from ..config.params import SamplingParams
from ..policies.base import Policy
from ..types.records import MODEL, Prefix, RoundRecord, RowOutcome, SequenceState

_ROUNDS = ((0, 0), (0, 0), (0, 0), (1, 1), (1, 0), (2, 1), (2, 2), (3, 1), (3, 0), (0, 0), (0, 0))
"""How many tokens in a row each round drafted, and how many it kept: of one sequence, then of four.

So few are kept that it depends on a text's own rounds how far it is drafted for.
"""

_STEP_S, _TOKEN_S = 0.15, 0.04
"""A step of the drafter, and a token more for the target, beside a plain forward."""

_CONFIDENCE = 0.7
"""The draft's confidence in every token of these rounds."""


def taught(policy: Policy, deepest: int) -> Any:
    """Return the knowledge of a policy that has been through the made-up rounds.

    Args:
        policy: of any kind.
        deepest: the most tokens that it drafts in a row.
    """
    *_, (knowledge, _) = lessons(policy, deepest)
    return knowledge


def lessons(policy: Policy, deepest: int) -> Iterator[tuple[Any, list[SequenceState]]]:
    """Give the knowledge and the sequences after each of the made-up rounds."""
    knowledge = policy.start()
    params = SamplingParams(max_tokens=100)
    for rows in (1, 4):
        states = [
            SequenceState(Prefix(-1 - row, range(16)), 16, params, frozenset(), row)
            for row in range(rows)
        ]
        for asked, most in _ROUNDS:
            depth = min(asked, deepest)
            kept = min(most, depth)
            states = [_after(policy, state, depth, kept) for state in states]
            knowledge = policy.observe(knowledge, states, _round(states, depth, kept))
            yield knowledge, states


def _after(policy: Policy, state: SequenceState, depth: int, kept: int) -> SequenceState:
    outcome = RowOutcome(MODEL, depth, kept, (_CONFIDENCE,) * depth)
    return replace(
        state,
        prefix=state.prefix.extended([0] * (kept + 1)),
        depths=(*state.depths, depth),
        history=policy.remember(state.history, outcome),
    )


def _round(states: Sequence[SequenceState], depth: int, kept: int) -> RoundRecord:
    """Make up what a round took that drafted so deep for each of these sequences."""
    rows = len(states)
    target_s = 1 + _TOKEN_S * (rows * (depth + 1) - 1)
    draft_s = _STEP_S * depth
    return RoundRecord(
        sequence_ids=tuple(state.prefix.sequence_id for state in states),
        drafted=(depth,) * rows,
        depth=(depth,) * rows,
        accepted=(kept,) * rows,
        emitted=(kept + 1,) * rows,
        bonus=(kept == depth,) * rows,
        ceiling=(None,) * rows,
        first_ceiling=(None,) * rows,
        draft_failed=False,
        sources=(MODEL,) * rows,
        confidence=((_CONFIDENCE,) * depth,) * rows,
        cached=(0,) * rows,
        draft_s=draft_s,
        target_s=target_s,
        total_s=draft_s + target_s,
    )
