"""What a seeded row's depth may depend on, and that recorded depths are repeated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from outrider import SpeculativeConfig
from outrider.policies import AdaptiveDepth, ConfidenceDepth, FixedDepth, Policy, Shape
from outrider.types.records import SequenceState
from tests.support.simulated import World, decode, sequences

SHAPE = Shape(8)
SEEDED: dict[str, Any] = {"seed": 11, "temperature": 1.0}


def adaptive(**more: Any) -> AdaptiveDepth:
    return AdaptiveDepth(SHAPE, **more)


def drafts_of_the_first(
    policy: Policy, world: World, states: Sequence[SequenceState], knowledge: Any = None
) -> tuple[int, ...]:
    return decode(policy, world, states, rounds=60, knowledge=knowledge).states[0].depths


def mates(**params: Any) -> list[SequenceState]:
    return sequences(3, 10**4, first=1, **params)


def settings(looks_up: bool = False) -> dict[str, tuple[World, list[SequenceState], Any]]:
    """The same seeded request on machines, beside mates, and after rounds of other requests."""
    world = World(acceptance=0.7, spread=0.25, lookup=lambda n: (3 * (n % 2 * looks_up), 0.5))
    learnt = decode(adaptive(), World(acceptance=0.0), mates(), rounds=40).knowledge
    own = sequences(1, 10**4, **SEEDED)
    return {
        "alone": (world, own, None),
        "slow steps": (replace(world, step=3.0, noise=0.3), own, None),
        "sampled mates": (world, own + mates(), None),
        "greedy mates": (world, own + mates(temperature=0.0), None),
        "seeded mates": (world, own + mates(seed=1), None),
        "ending mates": (world, own + sequences(2, 5, first=1), None),
        "after others": (world, own, learnt),
    }


@pytest.mark.parametrize("looks_up", [False, True])
@pytest.mark.parametrize("setting", list(settings())[1:])
def test_a_seeded_row_is_drafted_alike_on_any_machine_beside_anything(
    setting: str, looks_up: bool
) -> None:
    policy = adaptive(looks_up=looks_up)
    made = settings(looks_up)
    alone = drafts_of_the_first(policy, *made["alone"])
    assert drafts_of_the_first(policy, *made[setting]) == alone
    assert len(set(alone)) > 2
    assert looks_up == (min(alone) < 0)


class Sharing(AdaptiveDepth):
    """A planted fault: seeded rows go by what all have taught."""

    def _alone(self, state: SequenceState) -> bool:
        return False


def test_a_seeded_row_that_shares_is_noticed() -> None:
    made = settings()
    for policy in (Sharing(SHAPE), adaptive(coupled=True)):
        alone = drafts_of_the_first(policy, *made["alone"])
        assert drafts_of_the_first(policy, *made["after others"]) != alone


@pytest.mark.parametrize("params", [{"temperature": 0.0, "seed": 3}, {"temperature": 1.0}])
def test_greedy_and_unseeded_rows_go_by_measured_costs(params: dict[str, Any]) -> None:
    world = World(acceptance=0.7, step=3.0)
    run = decode(adaptive(), world, sequences(1, 10**4, **params), rounds=60)
    assert max(run.depths[10:30]) == 0


@pytest.mark.slow
def test_a_seeded_row_that_drafts_badly_stops_and_tries_again() -> None:
    world = World(acceptance=lambda number: 0.0 if number < 150 else 0.9)
    run = decode(adaptive(), world, sequences(1, 10**4, **SEEDED), rounds=700)
    assert np.mean(run.depths[60:150]) < 0.2
    assert np.mean(run.depths[-50:]) > 1


@pytest.mark.parametrize(
    "policy",
    [adaptive(looks_up=True), ConfidenceDepth(SHAPE, 0.125, looks_up=True)],
    ids=["adaptive", "confidence"],
)
@pytest.mark.parametrize("first", [SEEDED, {"temperature": 0.0}], ids=["seeded", "greedy"])
def test_recorded_depths_are_repeated_exactly(policy: Policy, first: dict[str, Any]) -> None:
    world = World(acceptance=0.6, spread=0.3, lookup=lambda n: (4 * (n % 3 == 0), 0.7))
    recorded = decode(policy, world, sequences(2, 60, **first)).states
    assert any(depth < 0 for state in recorded for depth in state.depths)
    again = [
        replace(state, params=replace(state.params, depths=old.depths))
        for state, old in zip(sequences(2, 60, **first), recorded, strict=True)
    ]
    slow = replace(world, step=4.0)
    learnt = decode(policy, slow, mates(), rounds=30).knowledge
    replayed = decode(policy, slow, again, knowledge=learnt).states
    assert [state.depths for state in replayed] == [state.depths for state in recorded]


@pytest.mark.parametrize("policy", [adaptive(), FixedDepth(SHAPE), ConfidenceDepth(SHAPE, 0.125)])
def test_a_replay_may_be_deeper_than_the_configuration_but_not_than_the_request(
    policy: Policy,
) -> None:
    states = [sequences(1, tokens, depths=(20, 3))[0] for tokens in (64, 12, 1)]
    plan = policy.plan(policy.start(), states)
    assert plan.depth.tolist() == [20, 11, 0]
    assert plan.model_depth.tolist() == [20, 11, 0]
    if plan.stop is not None:
        told = np.zeros((3, 12))
        assert plan.stop.continues(told, np.array([True, False, False]))[0]


def test_a_replayed_tree_is_no_deeper_than_its_shape() -> None:
    policy = AdaptiveDepth(Shape.of(SpeculativeConfig(tree_shape=(2, 2))))
    assert policy.plan(policy.start(), sequences(1, 64, depths=(5,))).depth.tolist() == [2]
