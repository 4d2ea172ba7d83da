"""What planning takes: told apart from what rounds cost, and paid for by tries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from outrider import SamplingParams, SpeculativeConfig, SpeculativeDecoder
from outrider.engine import rounds
from outrider.engine.calibration import DEPTHS
from outrider.policies import AdaptiveDepth, FixedDepth, Levels
from outrider.runtimes.tabular import TabularModel
from outrider.types.protocols import DraftContext
from outrider.types.records import (
    Distributions,
    DraftPlan,
    DraftProposal,
    Prefix,
    RoundRecord,
    SequenceState,
    TargetScores,
)

from .test_calibration import decoder
from .test_depth import World, calibrate, played, steady
from .test_tune import Clock


class Slow(FixedDepth):
    """Takes five seconds to plan."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(Levels(2))
        self._clock = clock

    def plan(self, states: Sequence[SequenceState]) -> DraftPlan:
        self._clock.now += 5
        return super().plan(states)


class Drafter:
    """Takes two seconds to draft, or to fail at it."""

    vocab_size = None

    def __init__(self, clock: Clock, fails: bool) -> None:
        self._clock, self._fails = clock, fails

    def propose(
        self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: DraftContext
    ) -> DraftProposal:
        self._clock.now += 2
        if self._fails:
            raise ValueError("no drafts today")
        tokens = torch.zeros(len(prefixes), plan.deepest, dtype=torch.int64)
        return DraftProposal(tokens, plan.depth, Distributions(point_masses=tokens))


class Target(TabularModel):
    """Takes a second for a forward."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(lambda prefix: np.full(3, 1 / 3), 3)
        self._clock = clock

    def verify(self, prefixes: Sequence[Prefix], proposal: DraftProposal) -> TargetScores:
        self._clock.now += 1
        return super().verify(prefixes, proposal)


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.filterwarnings("ignore:the drafter:RuntimeWarning")
def test_a_record_tells_what_planning_took(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, records = Clock(), list[RoundRecord]()
    monkeypatch.setattr(rounds, "perf_counter", clock)
    made = SpeculativeDecoder(
        Target(clock),
        Drafter(clock, fails),
        config=SpeculativeConfig(),
        policy=Slow(clock),
        on_round=records.append,
    )
    made.generate([1, 2], SamplingParams(max_tokens=9))
    drafted = [record for record in records if any(record.drafted) or fails][:-1]
    assert drafted
    for record in drafted:
        assert record.draft_failed == fails
        assert (record.plan_s, record.target_s, record.total_s) == (5, 1, 8)
        assert fails or record.draft_s == 2


def test_calibration_does_not_count_planning(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, plan, verify = Clock(), AdaptiveDepth.plan, type(decoder().target).verify

    def planned(self, states) -> DraftPlan:
        clock.now += 5
        return plan(self, states)

    def verified(self, prefixes, proposal) -> TargetScores:
        clock.now += 1
        return verify(self, prefixes, proposal)

    made_of = type(decoder().target)
    monkeypatch.setattr(rounds, "perf_counter", clock)
    monkeypatch.setattr(AdaptiveDepth, "plan", planned)
    monkeypatch.setattr(made_of, "verify", verified)
    policy = decoder().policy
    assert isinstance(policy, AdaptiveDepth)
    assert policy.calibrated
    assert policy._costs.prices(1, [0, 1]).verifying == pytest.approx([1, 1], rel=0.01)


def test_what_planning_takes_is_no_part_of_what_rounds_cost() -> None:
    """Plain rounds among others are planned anew, and the others by what stands: all look alike."""
    found = []
    for planning in (0.0, 0.4):
        policy, rng = AdaptiveDepth(Levels(4)), np.random.default_rng(0)
        params = SamplingParams(max_tokens=100, depths=DEPTHS)
        states = [SequenceState(Prefix(-1, range(16)), 16, params, frozenset(), 0)]
        while states[0].round < len(DEPTHS):
            states, record = played(policy, World(steady(0.5), noise=0.0), states, rng)
            plan_s = 0.0 if any(record.drafted) else planning
            policy.measure(states, replace(record, total_s=record.total_s + plan_s, plan_s=plan_s))
        prices = policy._costs.prices(1, range(5))
        total_s = 0.3 * float(prices.verifying[0]) + planning
        fast = replace(record, draft_s=0.0, total_s=total_s, plan_s=planning)
        assert prices.startling(fast, ragged=True)
        found.append(prices.rounds)
    assert found[0] == pytest.approx(found[1], rel=1e-9)


def tries(plan_s: float, fails: bool) -> int:
    """How many of 2,000 rounds drafted, or failed to, where drafts are never kept."""
    policy, world, rng = AdaptiveDepth(Levels(4)), World(steady(0.0)), np.random.default_rng(0)
    calibrate(policy, world, rng)
    params, made = SamplingParams(max_tokens=2000), 0
    states = [SequenceState(Prefix(7, range(50)), 50, params, frozenset(), 0)]
    while states[0].finish_reason is None:
        states, record = played(policy, world, states, rng)
        made += any(record.drafted)
        failed = any(record.drafted) and fails
        total_s = record.total_s + plan_s
        policy.observe(states, replace(record, total_s=total_s, plan_s=plan_s, draft_failed=failed))
    return made


@pytest.mark.parametrize("fails", [False, True])
def test_tries_are_the_rarer_the_longer_it_takes_to_decide(fails: bool) -> None:
    free, dear = tries(0.0, fails), tries(0.3, fails)
    assert dear < 0.6 * free
    assert dear > 0.1 * free


@pytest.mark.parametrize("fails", [False, True])
def test_a_try_is_charged_two_decisions_and_no_more(fails: bool) -> None:
    """But for the first, which may have been slow."""
    left = {}
    for plan_s in (0.0, 0.3):
        policy, world, rng = AdaptiveDepth(Levels(4)), World(steady(0.0)), np.random.default_rng(0)
        calibrate(policy, replace(world, noise=0.0), rng)
        plain_s = float(policy._costs.prices(1, [0]).rounds[0])
        params = SamplingParams(max_tokens=50, depths=(0,))
        states = [SequenceState(Prefix(7, range(50)), 50, params, frozenset(), 0)]
        states, record = played(policy, replace(world, noise=0.0), states, rng)
        record = replace(record, drafted=(1,), depth=(1,), draft_s=0.1, draft_failed=fails)
        for _ in range(3):
            policy._trying = True
            states = [replace(states[0], depths=(0, 1))]
            total_s = 1.2 * plain_s + plan_s
            policy.observe(states, replace(record, total_s=total_s, plan_s=plan_s))
        left[plan_s] = policy._purse._filled
    assert left[0.0] - left[0.3] == pytest.approx(2 * 2 * 0.3 / plain_s, rel=0.02)
