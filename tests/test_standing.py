"""Decisions that stand for a few rounds, and what drafting has to gain: no clock is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from outrider import SamplingParams, SpeculativeConfig, SpeculativeDecoder
from outrider.certify import exact_distribution
from outrider.policies import AdaptiveDepth, Levels
from outrider.policies.choices import Choices, Decision
from outrider.policies.costs import Prices
from outrider.policies.standing import DRAFTING, PLAIN, PLAIN_AT_MOST, Standing
from outrider.runtimes.tabular import TabularModel
from outrider.types.records import Prefix, RoundRecord, SequenceState

from .recorded import Machine, Player, texts
from .test_costs import Planned
from .test_depth import World, calibrate, decode, mean_time, played, steady

NOWHERE = np.zeros(1)
PRICES = Prices(1, np.zeros(1, dtype=np.int64), NOWHERE, NOWHERE)
DECIDED = Choices([], PRICES, NOWHERE, 0.0, 0.0, 1.0, 0.0, stands=DRAFTING)


def at(rounds: int, *names: int) -> list[SequenceState]:
    """Sequences that have been through so many rounds, of one token each."""
    params = SamplingParams(max_tokens=100)
    start = SequenceState(Prefix(0, [1]), 1, params, frozenset(), 0)
    grown = []
    for name in names:
        state = replace(start, prefix=Prefix(name, [1]))
        for _ in range(rounds):
            state = state.advanced([0], 0, None, state.acceptance, ())
        grown.append(state)
    return grown


@pytest.mark.parametrize("rounds", [DRAFTING, PLAIN])
def test_a_decision_stands_for_some_more_rounds_of_the_same_sequences(rounds: int) -> None:
    standing, decided = Standing(), replace(DECIDED, stands=rounds)
    standing.decide(at(8, 1, 2), decided)
    standing.happened(at(9, 1, 2))
    assert standing.choices(at(9, 1, 2)) is decided
    assert standing.choices(at(8 + rounds, 1, 2)) is decided
    assert standing.choices(at(9 + rounds, 1, 2)) is None
    assert standing.choices(at(9, 1)) is None
    assert standing.choices(at(9, 1, 3)) is None
    # One of them has waited while the other went on.
    assert standing.choices([*at(9, 1), *at(10, 2)]) is None
    # They were with others for a while.
    assert standing.choices(at(500, 1, 2)) is None
    standing.end()
    assert standing.choices(at(9, 1, 2)) is None


@pytest.mark.parametrize(("names", "enough"), [((1,), 8), ((1, 2), 4), ((1, 2, 3, 4, 5), 4)])
def test_several_sequences_settle_sooner_than_one(names: tuple[int, ...], enough: int) -> None:
    standing = Standing()
    for rounds, stands in ((enough - 1, False), (enough, True)):
        standing.decide(at(rounds, *names), DECIDED)
        standing.happened(at(rounds + 1, *names))
        assert (standing.choices(at(rounds + 1, *names)) is not None) == stands


def test_what_is_planned_and_not_done_an_exception_or_early_does_not_stand() -> None:
    standing = Standing()
    standing.decide(at(8, 1), DECIDED)
    assert standing.choices(at(9, 1)) is None
    for rounds, choices in ((8, replace(DECIDED, stands=0)), (7, DECIDED)):
        standing.decide(at(rounds, 1), choices)
        standing.happened(at(rounds + 1, 1))
        assert standing.choices(at(rounds + 1, 1)) is None


def test_texts_that_outlast_their_first_decisions_keep_their_distribution() -> None:
    """Enumeration plans each state many times, in between others, and has to find one plan."""

    def distribution(first: list[float], later: list[float]) -> TabularModel:
        def follow(tokens: tuple[int, ...]) -> list[float]:
            return first if len(tokens) < 9 else later

        return TabularModel(follow, 2)

    target, draft = distribution([1.0, 0.0], [0.7, 0.3]), distribution([0.5, 0.5], [0.6, 0.4])
    config = SpeculativeConfig(
        num_speculative_tokens=2,
        depth="adaptive",
        cost_ratio=0.3,
        verification="token",
        strict=True,
    )
    decoder = SpeculativeDecoder(target, draft, config=config)
    found = exact_distribution(decoder, [1], SamplingParams(max_tokens=12))
    assert sum(found.values()) == pytest.approx(1.0, abs=1e-12)
    for text, chance in found.items():
        kept = [0.7 if token == 0 else 0.3 for token in text[8:]]
        assert chance == pytest.approx(float(np.prod(kept)), abs=1e-12)


def test_most_rounds_go_by_a_decision_that_stands() -> None:
    """And a batch that changes does not."""
    policy, world, rng = AdaptiveDepth(Levels(4)), World(steady(0.8)), np.random.default_rng(0)
    calibrate(policy, world, rng)
    stood = []
    choices = policy._standing.choices

    def counted(states: Sequence[SequenceState]) -> Choices | None:
        stood.append(choices(states))
        return stood[-1]

    policy._standing.choices = counted
    states = [
        SequenceState(Prefix(7, range(50)), 50, SamplingParams(max_tokens=300), frozenset(), 0)
    ]
    while all(state.finish_reason is None for state in states):
        states, record = played(policy, world, states, rng)
        policy.observe(states, record)
    assert not any(stood[:8])
    assert np.mean([one is not None for one in stood]) > 0.6


def test_a_drafter_that_cannot_pay_is_thought_about_the_more_rarely() -> None:
    """Its step takes twice a plain round: for long no try can be paid for."""
    policy, world, rng = (
        AdaptiveDepth(Levels(4)),
        World(steady(0.9), step=2.0),
        np.random.default_rng(0),
    )
    calibrate(policy, world, rng)
    decided = []
    decision = policy._decision

    def counted(states: Sequence[SequenceState]) -> Decision:
        decided.append(states[0].round)
        return decision(states)

    policy._decision = counted
    states = [
        SequenceState(Prefix(7, range(50)), 50, SamplingParams(max_tokens=256), frozenset(), 0)
    ]
    while all(state.finish_reason is None for state in states):
        states, record = played(policy, world, states, rng)
        policy.observe(states, record)
    assert len(decided) < 8 + 256 / 20
    assert max(np.diff(decided)) == PLAIN_AT_MOST + 1


@pytest.mark.parametrize("rate", [0.15, 0.2, 0.25])
def test_near_where_it_pays_drafting_loses_next_to_nothing(rate: float) -> None:
    """Leniency with a depth that is drafted keeps it a while where plain decoding is as good."""
    world = World(steady(rate))
    plain = mean_time(lambda: AdaptiveDepth(Levels(0)), world, runs=12)
    policy = AdaptiveDepth(Levels(8))
    times = [decode(policy, world, random=i, warm=i == 0)[0] for i in range(14)]
    assert plain / np.mean(times[2:]) >= 0.97


@pytest.mark.parametrize(("step", "drafts"), [(0.3, False), (0.15, True)])
def test_eight_rows_have_to_gain_more_than_five_percent(step: float, drafts: bool) -> None:
    """Drafts gain 5% or 18%; where 2% is enough for any batch, both are drafted for."""
    world = World(steady(0.36), step=step, token=0.0, noise=0.0, rest=0.0, prefill=0.0)
    drafted = []
    for seed in range(4):
        policy = AdaptiveDepth(Levels(1))
        decode(policy, world, rows=8, random=2 * seed)
        _, states = decode(policy, world, rows=8, random=2 * seed + 1, warm=False)
        drafted.append(np.mean(np.array(states[0].depths) > 0))
    assert np.mean(drafted) > 0.7 if drafts else np.mean(drafted) < 0.3


def test_what_ends_drafts_stands_with_the_decision() -> None:
    """A draft is planned deeper than pays on average, and is never to go on without it."""
    policy, rng = AdaptiveDepth(Levels(8), ends_early=True), np.random.default_rng(0)
    world = World(steady(0.7))
    calibrate(policy, world, rng)
    params = SamplingParams(max_tokens=200)
    states = [SequenceState(Prefix(1, range(50)), 50, params, frozenset(), 0)]
    stood, rule = 0, None
    while states[0].round < 60:
        plan = policy.plan(states)
        stands = policy._standing.choices(states) is not None
        assert (plan.keep_going is not None) == (plan.deepest > 1)
        stood += stands and plan.keep_going is rule
        rule = plan.keep_going
        states, record = played(Planned(plan), world, states, rng)
        policy.observe(states, record)
    assert stood > 30


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_drafts_end_apart_from_what_was_planned_in_rows_by_themselves_alone(rows: int) -> None:
    """Rows of a batch take their steps together, and are as deep as was decided for all."""
    policy, rng = AdaptiveDepth(Levels(8), ends_early=True), np.random.default_rng(0)
    world = World(steady(0.8), token=0.005)
    calibrate(policy, world, rng)
    params = SamplingParams(max_tokens=200)
    states = [SequenceState(Prefix(i, range(50)), 50, params, frozenset(), i) for i in range(rows)]
    deep = ending = 0
    for _ in range(30):
        plan = policy.plan(states)
        deep += plan.deepest > 1
        ending += plan.keep_going is not None
        states, record = played(Planned(plan), world, states, rng)
        policy.observe(states, record)
    assert deep > 20
    assert ending == (deep if rows == 1 else 0)


class Prompt(AdaptiveDepth):
    """Learns from every round at once."""

    def _waits(self, states: Sequence[SequenceState], record: RoundRecord) -> bool:
        return False


@pytest.mark.parametrize("kind", ["random", "code"])
def test_rounds_that_wait_are_learnt_from_as_if_they_had_not(kind: str) -> None:
    """Before anything is decided that looks at them: all is drafted, and takes, the same."""
    waiting = {True: 0, False: 0}

    class Counting(AdaptiveDepth):
        def _waits(self, states: Sequence[SequenceState], record: RoundRecord) -> bool:
            waits = super()._waits(states, record)
            waiting[any(record.drafted)] += waits
            return waits

    took = [
        Player(policy(Levels(4), coupled=True, ends_early=True), Machine(), 3).seconds(
            texts(kind, 0.8), 0.8
        )
        for policy in (Prompt, Counting)
    ]
    assert took[0] == took[1]
    assert waiting[kind == "code"] > 50


def test_a_round_that_overthrows_what_is_known_does_not_wait() -> None:
    """One that drafted and took a tenth of the time is to be told apart by a plain one, next."""
    policy, world, rng = AdaptiveDepth(Levels(4)), World(steady(0.8)), np.random.default_rng(0)
    calibrate(policy, world, rng)
    params = SamplingParams(max_tokens=300)
    states = [SequenceState(Prefix(1, range(50)), 50, params, frozenset(), 0)]
    while not (policy._later and any(policy._later[-1][1].drafted)):
        assert states[0].finish_reason is None, "no round that drafted was learnt from later"
        states, record = played(policy, world, states, rng)
        policy.observe(states, record)
    plan = policy.plan(states)
    assert policy._settled
    assert plan.deepest
    policy.observe(states, replace(record, draft_s=0.0, target_s=0.0, total_s=record.total_s / 10))
    assert not policy._later
    assert policy.plan(states).deepest == 0
