"""How near an adaptive depth comes to the best fixed one; on a simulated clock."""

from __future__ import annotations

import numpy as np
import pytest

from outrider import SpeculativeConfig
from outrider.policies import AdaptiveDepth, FixedDepth, Policy, Shape
from outrider.policies.adaptive import best_depths
from tests.support.simulated import World, decode, sequences

DEEPEST = 16
ACCEPTANCE = (0.3, 0.5, 0.7, 0.9)
COSTS = (0.05, 0.125, 0.3)


def expected(acceptance: float, depth: float) -> float:
    return float((1 - acceptance ** (depth + 1)) / (1 - acceptance))


def share_of_best(policy: Policy, world: World, rows: int, seed: int, rounds: int = 224) -> float:
    """Expected tokens a second after 64 rounds, beside those of the best fixed depth."""
    assert isinstance(world.acceptance, float)
    run = decode(policy, world, sequences(rows, 10**6), seed=seed, rounds=rounds)
    tokens = [expected(world.acceptance, depth) for depth in run.depths[64:]]
    reached = np.mean(tokens) / (np.mean(run.seconds[64:]) / world.plain_s)
    best = max(
        expected(world.acceptance, depth)
        / (1 + world.steps(depth) * world.step + depth * rows * world.token)
        for depth in range(DEEPEST + 1)
    )
    return float(reached / best)


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("acceptance", ACCEPTANCE)
@pytest.mark.slow
def test_adaptive_reaches_95_percent_of_the_best_fixed_depth(
    acceptance: float, cost: float
) -> None:
    # The seeds are fixed, so that this fails or passes alike each time. The mean over them is held
    # to .95, each of them to .85.
    world = World(acceptance=acceptance, step=cost, noise=0.05)
    shares = [share_of_best(AdaptiveDepth(Shape(DEEPEST)), world, 1, seed) for seed in range(3)]
    shares.append(share_of_best(AdaptiveDepth(Shape(DEEPEST)), world, 4, 3))
    assert np.mean(shares) >= 0.95
    assert min(shares) >= 0.85


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.slow
def test_a_step_that_drafts_all_tokens_is_paid_once(rows: int) -> None:
    world = World(acceptance=0.8, step=0.4, blocks=True, noise=0.05)
    blocks = AdaptiveDepth(Shape(DEEPEST), steps=world.steps)
    assert share_of_best(blocks, world, rows, 0) >= 0.93
    # As if it took a step a token, drafts are too short.
    assert share_of_best(AdaptiveDepth(Shape(DEEPEST)), world, rows, 0) < 0.9


def test_that_notices_a_depth_that_is_not_adapted() -> None:
    world = World(acceptance=0.3, step=0.3)
    assert share_of_best(FixedDepth(Shape(4)), world, 1, 0) < 0.9


@pytest.mark.slow
def test_confidence_that_tells_something_gains_beyond_the_best_fixed_depth() -> None:
    world = World(acceptance=0.6, step=0.2, spread=0.35)
    told = decode(AdaptiveDepth(Shape(DEEPEST)), world, sequences(1, 10**6), rounds=600)
    fixed = [
        decode(FixedDepth(Shape(depth)), world, sequences(1, 10**6), rounds=600)
        for depth in range(1, 6)
    ]
    rates = [sum(run.emitted[100:]) / sum(run.seconds[100:]) for run in fixed]
    assert sum(told.emitted[100:]) / sum(told.seconds[100:]) > 1.02 * max(rates)


def test_the_planned_depth_is_the_best_of_all_by_enumeration() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        rows, depth = int(rng.integers(1, 5)), int(rng.integers(1, 8))
        rates, most = rng.random((rows, depth)), rng.integers(0, depth + 1, rows)
        seconds = 1 + np.cumsum(np.concatenate([[0.0], rng.random(depth)]))
        speeds = []
        for k in range(depth + 1):
            tokens = float(rows)
            for row in range(rows):
                for j in range(1, min(k, int(most[row])) + 1):
                    tokens += float(np.prod(rates[row, :j]))
            speeds.append(tokens / seconds[k])
        (best,), (rate,) = best_depths(
            np.zeros(rows, dtype=np.int64), rates, most, seconds[None], np.array([depth])
        )
        assert best == int(np.argmax(speeds))
        assert rate == pytest.approx(max(speeds), rel=1e-12)


def test_a_row_brings_nothing_beyond_the_tokens_that_remain() -> None:
    policy = AdaptiveDepth(Shape(DEEPEST))
    run = decode(policy, World(acceptance=0.9), sequences(2, 10**6), rounds=200)
    ending = sequences(2, 3)
    plan = policy.plan(run.knowledge, [run.states[0], ending[0]])
    assert plan.depth[1] == 2
    assert plan.depth[0] > 2
    assert policy.plan(run.knowledge, sequences(1, 1)).depth.tolist() == [0]


def test_trees_are_planned_by_their_levels() -> None:
    shape = Shape.of(SpeculativeConfig(tree_shape=(3, 2, 1)))
    policy = AdaptiveDepth(shape)
    run = decode(policy, World(acceptance=0.9, token=0.01), sequences(1, 10**6), rounds=100)
    assert max(run.depths) == 3
    assert {len(plan.depth) for plan in run.plans} == {1}
    assert run.plans[-1].tree == shape.tree
    dear = decode(policy, World(acceptance=0.9, token=0.3), sequences(1, 10**6), rounds=100)
    assert np.mean(dear.depths[30:]) < 1
