"""The conformance kit of policies: plans are pure, in range, and replay what was recorded.

Rounds are made up: no clock is read and nothing is drafted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from random import Random
from typing import Any

import numpy as np

from ...config.params import SamplingParams
from ...engine.validation import check_plan
from ...policies.base import Policy
from ...types.finding import Finding
from ...types.records import MODEL, DraftPlan, Prefix, RoundRecord, RowOutcome, SequenceState
from .runner import require, run

ROUNDS = 12
_DEEPEST_REPLAY = 2

_STEP_S, _TOKEN_S = 0.15, 0.04
"""A step of the drafter, and a token more for the target, beside a plain forward of a second."""

Planned = tuple[Any, list[SequenceState], DraftPlan]
"""Knowledge, sequences, and what was planned for them."""

States = Sequence[SequenceState]


def check_policy(policy: Policy) -> tuple[Finding, ...]:
    """Check a policy over some made-up rounds.

    Args:
        policy: the policy; it is planned with and learns, but has no state to spoil.

    Returns:
        One finding for each property. A policy that raises fails the property that it was asked
        for, and those that build on it.
    """
    plans: list[Planned] = []

    def each(check: Callable[[States, DraftPlan], None]) -> Callable[[], None]:
        def every() -> None:
            for _, states, plan in _some(plans):
                check(states, plan)

        return every

    return run(
        [
            ("plans fit rounds, and are learnt from", lambda: plans.extend(rounds(policy))),
            ("plan changes nothing", lambda: _pure(policy, plans)),
            ("knowledge and histories are hashable", lambda: _hashable(plans)),
            ("recorded depths are replayed", lambda: _replays(policy, plans)),
            ("the stop rule answers in the right shapes", each(_stops)),
            ("the stop rule is pure", each(_stops_purely)),
            ("recorded depths are not ended early", lambda: _replays_whole(policy, plans)),
        ]
    )


def play(
    policy: Policy,
    states: States,
    depth: Sequence[int],
    kept: Sequence[int],
    *,
    levels: Sequence[int] | None = None,
    confidence: float = 0.75,
) -> tuple[list[SequenceState], RoundRecord]:
    """Make up a round that drafted and kept so many tokens in a row for each sequence.

    Trees have that many nodes at each of their `levels`. The draft has the same confidence in every
    token.

    Returns:
        The sequences after it, and its record, for `Policy.observe`.
    """
    rows, sizes = len(states), levels or (1,) * max(depth)
    confidences = tuple((confidence,) * each for each in depth)
    after = [
        replace(
            state,
            prefix=state.prefix.extended([1] * min(kept[row] + 1, state.remaining)),
            depths=(*state.depths, depth[row]),
            history=policy.remember(
                state.history, RowOutcome(MODEL, depth[row], kept[row], confidences[row])
            ),
        )
        for row, state in enumerate(states)
    ]
    target_s = 1 + _TOKEN_S * (rows * (max(depth) + 1) - 1)
    draft_s = _STEP_S * max(depth)
    return after, RoundRecord(
        sequence_ids=tuple(state.prefix.sequence_id for state in states),
        drafted=tuple(sum(sizes[:each]) for each in depth),
        depth=tuple(depth),
        accepted=tuple(kept),
        emitted=tuple(each + 1 for each in kept),
        bonus=tuple(k == d for k, d in zip(kept, depth, strict=True)),
        ceiling=(None,) * rows,
        draft_failed=False,
        sources=(MODEL,) * rows,
        confidence=confidences,
        cached=(0,) * rows,
        draft_s=draft_s,
        target_s=target_s,
        total_s=draft_s + target_s,
    )


def _states(rows: int, **params: Any) -> list[SequenceState]:
    """New sequences of different lengths, greedy, sampled and seeded in turn."""
    kinds: list[dict[str, Any]] = [{"temperature": 0.0}, {}, {"seed": 7}]
    states = []
    for row in range(rows):
        asked = SamplingParams(max_tokens=1 + 12 * row, **(kinds[row % 3] | params))
        states.append(SequenceState(Prefix(row, [1, 2, 3]), 3, asked, frozenset(), row))
    return states


def rounds(policy: Policy) -> list[Planned]:
    """Plan made-up rounds that keep all tokens or half of them, and learn from them."""
    plans: list[Planned] = []
    for rows in (1, 5):
        knowledge, states = policy.start(), _states(rows)
        for number in range(ROUNDS):
            states = [state for state in states if state.remaining > 0]
            if not states:
                break
            plan = policy.plan(knowledge, states)
            check_plan(plan, states)
            plans.append((knowledge, states, plan))
            depth = [int(each) for each in plan.depth]
            kept = depth if number % 2 else [each // 2 for each in depth]
            levels = None if plan.tree is None else plan.tree.levels
            states, record = play(policy, states, depth, kept, levels=levels)
            knowledge = policy.observe(knowledge, states, record)
    return plans


def _some(plans: list[Planned]) -> list[Planned]:
    require(plans, "not measured: no round was planned")
    return plans


def _pure(policy: Policy, plans: list[Planned]) -> None:
    """Plan all rounds again, in several other orders."""
    orders = [_some(plans)[::-1], *(Random(seed).sample(plans, len(plans)) for seed in range(4))]
    for knowledge, states, plan in chain(*orders):
        before = repr((knowledge, states))
        found, expected = (
            (each.depth.tolist(), each.model_depth.tolist(), each.tree)
            for each in (policy.plan(knowledge, states), plan)
        )
        require(
            found == expected,
            f"the same knowledge and sequences gave {expected} and later {found}",
        )
        require(repr((knowledge, states)) == before, "planning changes what it is given")


def _hashable(plans: list[Planned]) -> None:
    for knowledge, states, _ in _some(plans):
        hash(knowledge)
        hash(tuple(state.history for state in states))


def _replayed(policy: Policy, plans: list[Planned], depth: int) -> DraftPlan:
    """Plan for three sequences whose requests ask for a depth."""
    return policy.plan(_some(plans)[-1][0], _states(4, depths=(depth,))[1:])


def _replays(policy: Policy, plans: list[Planned]) -> None:
    for asked in (0, _DEEPEST_REPLAY, -_DEEPEST_REPLAY):
        plan = _replayed(policy, plans, asked)
        least = abs(asked) if plan.tree is None else min(abs(asked), len(plan.tree.levels))
        found = plan.depth.tolist()
        planned = min(found) >= least if asked < 0 else found == [least] * 3
        require(planned, f"depths of {asked} were planned as {found}")


def _replays_whole(policy: Policy, plans: list[Planned]) -> None:
    stop = _replayed(policy, plans, _DEEPEST_REPLAY).stop
    if stop is None:
        return
    going = stop.continues(np.zeros((3, 1)), np.ones(3, dtype=np.bool_))
    require(np.all(going), "an unsure draft ends before the recorded depth")
    looked = stop.lookup(0, np.full(_DEEPEST_REPLAY, 0.99))
    require(not looked, f"{looked} tokens are looked up where a model drafted")
    stop = _replayed(policy, plans, -_DEEPEST_REPLAY).stop
    looked = 0 if stop is None else stop.lookup(0, np.full(_DEEPEST_REPLAY, 0.01))
    require(looked == _DEEPEST_REPLAY, f"{looked} of {_DEEPEST_REPLAY} recorded look-ups are made")


def _answers(states: States, plan: DraftPlan) -> list[Any]:
    """Ask a stop rule everything."""
    if plan.stop is None:
        return []
    rows = len(states)
    confidence = np.tile(np.linspace(0.1, 0.9, 3), (rows, 1))
    drafting = np.arange(rows) % 2 == 0
    reach = np.array([0.9, 0.8, 0.1])
    return [
        plan.stop.continues(confidence[:, :1], drafting),
        plan.stop.continues(np.full((rows, 3), np.nan), drafting),
        plan.stop.kept(MODEL, confidence),
        plan.stop.kept("ngram", confidence[:, :1]),
        *(plan.stop.lookup(row, reach) for row in range(rows)),
    ]


def _stops(states: States, plan: DraftPlan) -> None:
    if plan.stop is None:
        return
    first, second, many, few, *looked = _answers(states, plan)
    for going in (first, second):
        found = (np.shape(going), getattr(going, "dtype", type(going)))
        expected = ((len(states),), np.dtype(np.bool_))
        require(found == expected, f"continues answers {found}, expected {expected}")
    for kept, shape in ((many, (len(states), 3)), (few, (len(states), 1))):
        require(np.shape(kept) == shape, f"kept has shape {np.shape(kept)}, expected {shape}")
        inside = np.all((np.asarray(kept) >= 0) & (np.asarray(kept) <= 1))
        require(inside, f"kept holds {kept}, expected probabilities")
    require(all(0 <= count <= 3 for count in looked), f"lookup chooses {looked} of 3 tokens")


def _stops_purely(states: States, plan: DraftPlan) -> None:
    first, second = _answers(states, plan), _answers(states, plan)
    same = all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    require(same, "asked the same twice, it answers differently")
