"""The parts of a policy: costs, acceptance, look-ups, AdaEDL's rule, shapes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from outrider import SpeculativeConfig
from outrider.engine.compatibility import policy_of
from outrider.policies import AdaptiveDepth, ConfidenceDepth, FixedDepth, Shape
from outrider.policies.acceptance import Acceptance, rates
from outrider.policies.costs import MEMORY, PRIOR_WEIGHT, RoundCosts
from outrider.types.records import MODEL, RowOutcome
from tests.support.drafter_traits import Drafter
from tests.support.simulated import World, decode, sequences


def test_costs_of_known_rounds_are_found() -> None:
    costs = RoundCosts(2).add_plain(0.01)
    rng = np.random.default_rng(0)
    for _ in range(400):
        tokens, steps = float(2 * rng.integers(2, 9)), float(rng.integers(1, 8))
        seconds, drafting = 0.009 + 0.0005 * tokens + 0.002 * steps, 0.002 * steps
        costs = costs.add_drafted(seconds, drafting, tokens, steps)
    assert costs.seconds(10, 4) == pytest.approx(0.022, rel=0.01)
    assert costs.coefficients[1:] == pytest.approx((0.0005, 0.002), rel=0.05)


def test_one_hiccup_changes_little() -> None:
    costs = RoundCosts(1).add_plain(0.01)
    for _ in range(100):
        costs = costs.add_drafted(0.0125, 0.002, 3.0, 2.0)
    assert costs.clipped(10.0, 3.0, 2.0) < 0.04
    assert costs.clipped(0.013, 3.0, 2.0) == 0.013


def test_costs_are_the_prior_until_a_round_was_timed() -> None:
    prior = RoundCosts(4, 0.3)
    assert prior.seconds(8, 1) == pytest.approx(1.32)
    assert prior.add_plain(0.01).seconds(8, 1) == pytest.approx(0.0132)


def test_a_step_and_a_token_are_told_apart_at_one_depth() -> None:
    costs = RoundCosts(8).add_plain(0.01)
    for _ in range(100):
        costs = costs.add_drafted(0.0126, 0.001, 16.0, 1.0)
    assert costs.coefficients[1:] == pytest.approx((0.0002, 0.001), rel=0.02)


def test_looking_up_is_no_part_of_a_step() -> None:
    costs = RoundCosts(1, 0.3).add_plain(0.01)
    for _ in range(100):
        costs = costs.add_drafted(0.015, 0.004, 3.0, 0.0)
    assert costs.seconds(3, 0) == pytest.approx(0.015, rel=0.02)
    assert costs.coefficients[2] == pytest.approx(0.003)


def test_costs_are_the_best_that_are_not_negative() -> None:
    rng = np.random.default_rng(1)
    zeros = np.zeros(2)
    for _ in range(200):
        tokens, rest = rng.integers(2, 9, 6).astype(float), rng.exponential(0.01, 6)
        costs = RoundCosts(1, token_ratio=0.1).add_plain(0.01)
        for x, y in zip(tokens, rest, strict=True):
            costs = costs.add_drafted(float(y), 0.0, float(x), 1.0)
        found = np.array(costs.coefficients[:2])
        weight = [*(1 - 1 / MEMORY) ** np.arange(5, -1, -1), PRIOR_WEIGHT, PRIOR_WEIGHT]
        columns = np.stack([np.ones(8), [*tokens, 1, 2]], 1)
        slope = (columns.T * weight) @ (columns @ found - [*rest, 0.01, 0.011])
        assert (found >= 0).all()
        assert (slope >= -1e-12).all()
        assert abs(slope @ found) < 1e-12
        zeros += found == 0
    assert (zeros > 5).all()


def test_rates_follow_what_was_kept() -> None:
    known = Acceptance()
    rng = np.random.default_rng(2)
    for _ in range(1000):
        told = tuple(np.where(rng.random(4) < 0.5, 0.95, 0.3).tolist())
        kept = int(np.cumprod(rng.random(4) < np.array(told)).sum())
        known = known.add([RowOutcome(MODEL, 4, kept, told)])
    by_confidence, by_position = rates([known], [Acceptance()], MODEL, 2)
    assert by_confidence[0, [2, 7]] == pytest.approx([0.3, 0.95], abs=0.1)
    assert by_position[0] == pytest.approx(0.625, abs=0.1)
    other, _ = rates([known], [Acceptance()], "ngram")
    assert other[0] == pytest.approx((np.arange(8) + 0.5) / 8)


def test_a_sequence_of_its_own_kind_is_told_from_the_others() -> None:
    everyone = Acceptance().add([RowOutcome(MODEL, 2, 2)] * 100)
    own = Acceptance()
    for _ in range(60):
        own = own.add([RowOutcome(MODEL, 2, 0)])
    _, by_position = rates([everyone], [own, Acceptance()], MODEL, 1)
    assert by_position[0] < 0.35
    assert by_position[1] > 0.85
    _, alone = rates([own], [Acceptance()], MODEL, 1)
    assert alone[0] < by_position[0]


def test_what_lies_behind_a_stop_token_was_not_refused() -> None:
    policy = AdaptiveDepth(Shape(8))
    run = decode(policy, World(acceptance=1.0), sequences(1, 10**5), rounds=5)
    assert run.depths[-1] > 0
    ended = replace(run.states[0], finish_reason="stop")
    cut = replace(run.records[-1], accepted=(0,))
    after = policy.observe(run.knowledge, [ended], cut)
    assert after.acceptance == run.knowledge.acceptance


def looking_up(lookup: Any, acceptance: float = 0.5, **more: Any) -> list[tuple[int, ...]]:
    world = World(acceptance=acceptance, lookup=lookup, **more)
    policy = AdaptiveDepth(Shape(8), looks_up=True)
    run = decode(policy, world, sequences(1, 10**5), rounds=300)
    return [(record.depth[0], record.sources[0] == MODEL) for record in run.records[100:]]


def test_looked_up_tokens_that_are_kept_take_the_place_of_the_models() -> None:
    rounds = looking_up(lambda n: (8, 0.95))
    assert np.mean([not model for _, model in rounds]) > 0.9


def test_looked_up_tokens_that_are_not_kept_are_left_to_the_model() -> None:
    rounds = looking_up(lambda n: (8, 0.1), acceptance=0.8)
    assert np.mean([not model for _, model in rounds]) < 0.1


def test_look_ups_go_on_where_a_models_draft_does_not_pay() -> None:
    rounds = looking_up(lambda n: (8 * (n % 4 == 0), 0.9), step=2.0)
    assert np.mean([depth > 4 and not model for depth, model in rounds]) > 0.2
    assert np.mean([depth > 0 and model for depth, model in rounds]) < 0.05


def test_a_drafter_that_only_looks_up_has_no_model_to_beat() -> None:
    policy = policy_of(SpeculativeConfig(), Drafter(looks_up=True, vocab_size=None))
    plan = policy.plan(policy.start(), sequences(2, 64))
    assert plan.model_depth.tolist() == [0, 0]
    assert plan.depth.tolist() == [16, 16]
    assert plan.stop is not None
    assert plan.stop.lookup(0, np.array([0.5, 0.4, 0.001])) == 2


def test_adaedl_stops_where_another_token_lowers_tokens_per_second() -> None:
    policy = ConfidenceDepth(Shape(8), 0.25)
    plan = policy.plan(None, sequences(1, 64))
    assert plan.stop is not None
    rng = np.random.default_rng(3)
    for _ in range(200):
        told = rng.random((1, 3))
        reached = np.cumprod(told[0])
        now = (1 + reached.sum()) / (1 + 3 * 0.25)
        more = (1 + reached.sum() + reached[-1] * told[0, -1]) / (1 + 4 * 0.25)
        assert plan.stop.continues(told, np.array([True]))[0] == (more >= now)
    assert plan.stop.continues(np.full((1, 2), np.nan), np.array([True]))[0]


@pytest.mark.parametrize(("ratio", "depth"), [(1.0, 8), (1.5, 0)])
def test_adaedl_drafts_nothing_where_a_step_costs_more_than_a_round(
    ratio: float, depth: int
) -> None:
    plan = ConfidenceDepth(Shape(8), ratio).plan(None, sequences(1, 64))
    assert plan.depth.tolist() == [depth]


@pytest.mark.parametrize(
    ("config", "levels"),
    [
        ({}, None),
        ({"tree_shape": (3, 2)}, (3, 6)),
        ({"tree_budget": 7, "num_speculative_tokens": 3}, (3, 2, 2)),
    ],
)
def test_shapes_of_drafts(config: dict[str, Any], levels: tuple[int, ...] | None) -> None:
    policy = policy_of(SpeculativeConfig(depth="fixed", **config), Drafter())
    plan = policy.plan(None, sequences(1, 64) + sequences(1, 2))
    assert (None if plan.tree is None else plan.tree.levels) == levels
    assert plan.depth.tolist() == [4 if levels is None else len(levels), 1]
    assert plan.stop is None


def test_the_cost_ratio_is_the_configurations_then_the_drafters() -> None:
    for config, own, depth in ((2.0, 0.1, 0), (None, 2.0, 0), (None, 0.1, 4), (None, None, 4)):
        asked = SpeculativeConfig(depth="confidence", cost_ratio=config, num_speculative_tokens=4)
        plan = policy_of(asked, Drafter(cost_ratio=own)).plan(None, sequences(1, 64))
        assert plan.depth.tolist() == [depth]
    assert isinstance(policy_of(SpeculativeConfig(), None), FixedDepth)
