"""The knowledge of a policy that has measured costs, on made-up rounds: no clock is read."""

from __future__ import annotations

from typing import Any

from ..config.params import SamplingParams
from ..policies.base import Policy
from ..types.records import Prefix, SequenceState
from .kits.policy import play

_ROUNDS = ((0, 0), (0, 0), (0, 0), (1, 1), (1, 0), (2, 1), (2, 2), (3, 1), (3, 0), (0, 0), (0, 0))
"""How many tokens in a row each round drafted, and how many it kept: of one sequence, then of four.

So few are kept that it depends on a text's own rounds how far it is drafted for.
"""


def taught(policy: Policy, deepest: int) -> Any:
    """Return the knowledge of a policy that has been through the made-up rounds.

    Args:
        policy: of any kind.
        deepest: the most tokens that it drafts in a row.
    """
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
            states, record = play(policy, states, [depth] * rows, [kept] * rows, confidence=0.7)
            knowledge = policy.observe(knowledge, states, record)
    return knowledge
