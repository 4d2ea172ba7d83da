"""That a plan changes nothing, in whatever order rounds are planned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.policies import AdaptiveDepth, ConfidenceDepth, FixedDepth, Policy, Shape
from outrider.types.records import DraftPlan, SequenceState
from tests.support.simulated import World, decode, sequences

Case = tuple[Any, Sequence[SequenceState]]
SHAPE = Shape(6)


class Remembering(AdaptiveDepth):
    """A planted fault: what one plan says depends on the plan before."""

    def plan(self, knowledge: Any, states: Sequence[SequenceState]) -> DraftPlan:
        self.last = getattr(self, "last", 0) + 1
        plan = super().plan(knowledge, states)
        return replace(plan, depth=np.maximum(0, plan.depth - self.last % 2))


POLICIES = {
    "adaptive": AdaptiveDepth(SHAPE),
    "looking up": AdaptiveDepth(SHAPE, looks_up=True),
    "confidence": ConfidenceDepth(SHAPE, 0.125),
    "fixed": FixedDepth(SHAPE),
}


def cases(policy: Policy) -> list[Case]:
    """Knowledge and sequences after different numbers of rounds that went well or badly."""
    made: list[Case] = [(policy.start(), sequences(2))]
    for acceptance in (0.0, 0.9):
        for rounds in (3, 50):
            world = World(acceptance=acceptance, lookup=lambda n: (n % 3, 0.5))
            params = {"seed": 5} if rounds == 3 else {}
            run = decode(policy, world, sequences(2, 10**4, **params), rounds=rounds)
            made.append((run.knowledge, run.states))
    return made


def answers(plan: DraftPlan) -> list[Any]:
    """All that a plan says, its stop rule asked in several ways."""
    said: list[Any] = [plan.depth.tolist(), plan.model_depth.tolist(), plan.tree]
    if plan.stop is not None:
        rows = len(plan.depth)
        for width in (1, 3):
            told = np.full((rows, width), 0.7)
            said.append(plan.stop.continues(told, np.ones(rows, dtype=np.bool_)).tolist())
        said.append(plan.stop.kept("ngram", np.tile(np.linspace(0, 1, 9), (rows, 1))).tolist())
        said += [plan.stop.lookup(row, np.array([0.9, 0.5])) for row in range(rows)]
    return said


def disagreements(policy: Policy, order: Sequence[int], made: list[Case]) -> int:
    """How many plans differ from the first one of the same case."""
    first: dict[int, list[Any]] = {}
    count = 0
    for index in order:
        case = index % len(made)
        said = answers(policy.plan(*made[case]))
        count += first.setdefault(case, said) != said
    return count


@pytest.mark.slow
@pytest.mark.parametrize("name", POLICIES)
def test_plans_in_any_order_change_nothing(name: str) -> None:
    policy = POLICIES[name]
    made = cases(policy)
    alone = [answers(policy.plan(*case)) for case in made]

    @settings(max_examples=25, deadline=None, derandomize=True, database=None)
    @given(st.lists(st.integers(0, len(made) - 1), min_size=2, max_size=12))
    def interleaved(order: list[int]) -> None:
        assert not disagreements(policy, order, made)
        assert [answers(policy.plan(*case)) for case in made] == alone

    interleaved()


def test_a_plan_that_is_remembered_is_noticed() -> None:
    policy = Remembering(SHAPE)
    made = cases(policy)
    assert disagreements(policy, [1, 2, 3, 4, 0, 1, 2, 3, 4, 0] * 2, made)


@pytest.mark.parametrize("name", POLICIES)
def test_knowledge_and_history_are_values(name: str) -> None:
    policy = POLICIES[name]
    first, second = cases(policy), cases(policy)
    assert first[1][0] == second[1][0]
    for knowledge, states in first:
        hash(knowledge)
        hash(tuple(state.history for state in states))


def test_observing_leaves_the_knowledge_before_as_it_was() -> None:
    policy = AdaptiveDepth(SHAPE)
    run = decode(policy, World(), sequences(2, 10**4), rounds=10)
    before, code = run.knowledge, repr(run.knowledge)
    after = policy.observe(before, run.states, run.records[-1])
    assert after != before
    assert repr(before) == code
