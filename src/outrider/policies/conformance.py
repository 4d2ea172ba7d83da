"""Check that a policy keeps its contract; for policies of your own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..config.params import SamplingParams
from ..types.finding import Finding
from ..types.prefix import Prefix
from ..types.records import MODEL, DraftPlan, RoundRecord, RowOutcome, SequenceState
from .base import Policy

ROUNDS = 12
_DEEPEST_REPLAY = 2

Plans = list[tuple[Any, list[SequenceState], DraftPlan]]


def check_policy(policy: Policy) -> tuple[Finding, ...]:
    """Check a policy over some made-up rounds.

    Args:
        policy: the policy; it is planned with and learns, but has no state to spoil.

    Returns:
        One finding for each property. A policy that raises fails the property that it was asked
        for, and those that build on it.
    """
    plans: Plans = []

    def rounds() -> None:
        plans.extend(_rounds(policy))

    checks: list[tuple[str, Callable[[], None]]] = [
        ("plans some rounds and learns from them", rounds),
        ("one int64 depth for each sequence", lambda: _each(plans, _shaped)),
        ("depths are in 0..remaining - 1", lambda: _each(plans, _in_range)),
        ("a tree has as many levels as its deepest row", lambda: _each(plans, _has_levels)),
        ("plan changes nothing", lambda: _pure(policy, plans)),
        ("knowledge and histories are hashable", lambda: _hashable(plans)),
        ("recorded depths are replayed", lambda: _replays(policy, plans)),
        ("the stop rule answers in the right shapes", lambda: _each(plans, _stops)),
        ("the stop rule is pure", lambda: _each(plans, _stops_purely)),
        ("recorded depths are not ended early", lambda: _replays_whole(policy, plans)),
    ]
    return tuple(_finding(name, check) for name, check in checks)


def _finding(name: str, check: Callable[[], None]) -> Finding:
    try:
        check()
    except AssertionError as failure:
        return Finding(name, False, str(failure))
    except Exception as error:
        return Finding(name, False, f"it raises {type(error).__name__}: {error}")
    return Finding(name, True, "")


def _require(holds: object, detail: str) -> None:
    if not holds:
        raise AssertionError(detail)


def _states(rows: int, **params: Any) -> list[SequenceState]:
    """New sequences of different lengths, greedy, sampled and seeded in turn."""
    kinds: list[dict[str, Any]] = [{"temperature": 0.0}, {}, {"seed": 7}]
    states = []
    for row in range(rows):
        asked = SamplingParams(max_tokens=1 + 12 * row, **(kinds[row % 3] | params))
        states.append(SequenceState(Prefix(row, [1, 2, 3]), 3, asked, frozenset(), row))
    return states


def _rounds(policy: Policy) -> Plans:
    """Plan rounds that keep every other token, and learn from them."""
    plans: Plans = []
    for rows in (1, 5):
        knowledge, states = policy.start(), _states(rows)
        for number in range(ROUNDS):
            states = [state for state in states if state.remaining > 0]
            if not states:
                break
            plan = policy.plan(knowledge, states)
            plans.append((knowledge, states, plan))
            states, record = _played(policy, states, plan, number)
            knowledge = policy.observe(knowledge, states, record)
    return plans


def _played(
    policy: Policy, states: Sequence[SequenceState], plan: DraftPlan, number: int
) -> tuple[list[SequenceState], RoundRecord]:
    after, kept, depth = [], [], [int(each) for each in plan.depth]
    for row, state in enumerate(states):
        kept.append(depth[row] if number % 2 else depth[row] // 2)
        confidence = (0.75,) * depth[row]
        outcome = RowOutcome(MODEL, depth[row], kept[row], confidence)
        after.append(
            SequenceState(
                state.prefix.extended([1] * min(kept[row] + 1, state.remaining)),
                state.prompt_length,
                state.params,
                state.stop_ids,
                state.stream_key,
                depths=(*state.depths, depth[row]),
                history=policy.remember(state.history, outcome),
            )
        )
    levels = plan.tree.levels if plan.tree is not None else (1,) * max(depth)
    rows = len(states)
    return after, RoundRecord(
        sequence_ids=tuple(range(rows)),
        drafted=tuple(sum(levels[:each]) for each in depth),
        depth=tuple(depth),
        accepted=tuple(kept),
        emitted=tuple(each + 1 for each in kept),
        bonus=tuple(k == d for k, d in zip(kept, depth, strict=True)),
        ceiling=(None,) * rows,
        first_ceiling=(None,) * rows,
        draft_failed=False,
        sources=(MODEL,) * rows,
        confidence=tuple((0.75,) * each for each in depth),
        cached=(),
        draft_s=1e-3 * max(depth),
        target_s=1e-2,
        total_s=1e-2 + 1e-3 * max(depth),
    )


def _each(plans: Plans, check: Callable[[Sequence[SequenceState], DraftPlan], None]) -> None:
    _require(plans, "no round was planned")
    for _, states, plan in plans:
        check(states, plan)


def _shaped(states: Sequence[SequenceState], plan: DraftPlan) -> None:
    shape, dtype = (len(states),), np.dtype(np.int64)
    for name, depth in (("depth", plan.depth), ("model_depth", plan.model_depth)):
        found = (np.shape(depth), getattr(depth, "dtype", type(depth)))
        _require(found == (shape, dtype), f"{name} is {found}, expected {(shape, dtype)}")


def _in_range(states: Sequence[SequenceState], plan: DraftPlan) -> None:
    for depth, model, state in zip(plan.depth, plan.model_depth, states, strict=True):
        most = max(0, state.remaining - 1)
        _require(0 <= depth <= most, f"depth {depth} where {most} tokens may be drafted")
        _require(0 <= model <= depth, f"model_depth {model} beside a depth of {depth}")


def _has_levels(states: Sequence[SequenceState], plan: DraftPlan) -> None:
    del states
    if plan.tree is not None:
        levels, deepest = plan.tree.levels, plan.deepest
        _require(len(levels) >= deepest, f"{len(levels)} levels for a depth of {deepest}")


def _depths(plan: DraftPlan) -> tuple[list[int], list[int]]:
    return plan.depth.tolist(), plan.model_depth.tolist()


def _pure(policy: Policy, plans: Plans) -> None:
    """Plan all rounds again, in another order."""
    _require(plans, "no round was planned")
    for knowledge, states, plan in [*plans[::-1], *plans[::2]]:
        again = policy.plan(knowledge, states)
        _require(
            _depths(again) == _depths(plan),
            f"the same knowledge and sequences gave {_depths(plan)} and later {_depths(again)}",
        )


def _hashable(plans: Plans) -> None:
    _require(plans, "no round was planned")
    for knowledge, states, _ in plans:
        hash(knowledge)
        hash(tuple(state.history for state in states))


def _replayed(policy: Policy, plans: Plans, depth: int) -> tuple[DraftPlan, Any]:
    _require(plans, "no round was planned")
    states = _states(4, depths=(depth,))[1:]
    return policy.plan(plans[-1][0], states), states


def _replays(policy: Policy, plans: Plans) -> None:
    for asked in (0, _DEEPEST_REPLAY, -_DEEPEST_REPLAY):
        plan, _ = _replayed(policy, plans, asked)
        most = abs(asked) if plan.tree is None else min(abs(asked), len(plan.tree.levels))
        found = plan.depth.tolist()
        _require(found == [most] * 3, f"depths of {asked} were planned as {found}")


def _replays_whole(policy: Policy, plans: Plans) -> None:
    plan, states = _replayed(policy, plans, _DEEPEST_REPLAY)
    if plan.stop is None:
        return
    rows = len(states)
    going = plan.stop.continues(np.zeros((rows, 1)), np.ones(rows, dtype=np.bool_))
    _require(np.all(going), "an unsure draft ends before the recorded depth")
    looked = plan.stop.lookup(0, np.full(_DEEPEST_REPLAY, 0.99))
    _require(not looked, f"{looked} tokens are looked up where a model drafted")
    plan, _ = _replayed(policy, plans, -_DEEPEST_REPLAY)
    assert plan.stop is not None
    looked = plan.stop.lookup(0, np.full(_DEEPEST_REPLAY, 0.01))
    _require(looked == _DEEPEST_REPLAY, f"{looked} of {_DEEPEST_REPLAY} recorded look-ups are made")


def _answers(states: Sequence[SequenceState], plan: DraftPlan) -> list[Any]:
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
        plan.stop.kept(MODEL, confidence, 0),
        plan.stop.kept("ngram", confidence[0], 0),
        *(plan.stop.lookup(row, reach) for row in range(rows)),
    ]


def _stops(states: Sequence[SequenceState], plan: DraftPlan) -> None:
    if plan.stop is None:
        return
    first, second, many, few, *looked = _answers(states, plan)
    for going in (first, second):
        found = (np.shape(going), getattr(going, "dtype", type(going)))
        expected = ((len(states),), np.dtype(np.bool_))
        _require(found == expected, f"continues answers {found}, expected {expected}")
    for kept, shape in ((many, (len(states), 3)), (few, (3,))):
        _require(np.shape(kept) == shape, f"kept has shape {np.shape(kept)}, expected {shape}")
        inside = np.all((np.asarray(kept) >= 0) & (np.asarray(kept) <= 1))
        _require(inside, f"kept holds {kept}, expected probabilities")
    _require(all(0 <= count <= 3 for count in looked), f"lookup chooses {looked} of 3 tokens")


def _stops_purely(states: Sequence[SequenceState], plan: DraftPlan) -> None:
    first, second = _answers(states, plan), _answers(states, plan)
    same = all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    _require(same, "asked the same twice, it answers differently")
