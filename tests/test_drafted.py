"""Which rows of a batch draft: rounds are made up, no clock is read.

What is random is seeded: a test passes or fails alike each time, and none alarms falsely.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from outrider import SamplingParams
from outrider.policies import AdaptiveDepth, Levels
from outrider.policies.choices import Choices
from outrider.policies.costs import Costs, Prices
from outrider.policies.drafted import Drafted
from outrider.policies.purse import Purse
from outrider.policies.round import Round
from outrider.types.acceptance import NOTHING_KNOWN
from outrider.types.records import Prefix, RoundRecord, SequenceState

from .test_depth import World, calibrate, played, steady

WORLD = World(steady(0.6), step=0.05, token=0.05, rest=0.05, noise=0.0)


def emits(chance: float, most: int = 3) -> list[float]:
    """What a row emits at each depth."""
    return [sum(chance**i for i in range(depth + 1)) for depth in range(most + 1)]


def times(rows: int, step: float, token: float, most: int = 3) -> np.ndarray:
    """Of rounds beside a plain one, where so many rows draft so many tokens."""
    some, deep = np.arange(1, rows + 1)[:, None], np.arange(1, most + 1)
    return 1 + step * deep + token * some * deep


def test_as_many_rows_draft_as_bring_most_in_the_time() -> None:
    """Of all numbers of rows and depths, tried one by one: all, unless fewer are 1% better."""
    rng, rested = np.random.default_rng(0), 0
    for _ in range(50):
        rows = int(rng.integers(2, 7))
        each = np.array([emits(chance) for chance in rng.uniform(0, 0.9, rows)])
        weights = rng.uniform(0.3, 1, rows)
        weights *= rows / weights.sum()
        took = times(rows, rng.uniform(0, 0.3), rng.uniform(0, 0.1))
        found = Drafted.some_of(each, weights, 1.0, took, took - 1, 2)
        fewer, together = 0.0, 0.0
        for depth in (1, 2):
            gains = np.sort(weights * (each[:, depth] - 1))[::-1].cumsum()
            *some, every = (rows + gains) / took[:, depth - 1]
            fewer, together = max(fewer, *some), max(together, every)
        rates = np.array(found.tokens) / found.seconds
        best = fewer if fewer > 1.01 * together else together
        rested += not all(found.rows)
        assert max(rates[1:3]) == pytest.approx(best)
        assert rates[0] == rows
        chosen = np.array(found.rows)
        assert np.allclose(found.tokens, rows + (weights[:, None] * (each - 1))[chosen].sum(0))
    assert 10 < rested < 40


def test_all_draft_where_all_are_alike_and_none_where_they_rest() -> None:
    each = np.array([emits(0.6)] * 4)
    even, took = np.ones(4), times(4, 0.2, 0.02)
    assert all(Drafted.some_of(each, even, 1.0, took, took - 1, 3).rows)
    last = np.array([3.7, 0.1, 0.1, 0.1])
    found = Drafted.some_of(each, last, 1.0, took, took - 1, 3)
    assert found.rows == [True, False, False, False]


def batch(left: list[int]) -> list[SequenceState]:
    """Sequences with so many tokens left, that all end by their length."""
    params = SamplingParams(max_tokens=200, ignore_eos=True)
    return [
        SequenceState(Prefix(name, range(9 + 200 - own)), 9, params, frozenset(), name, depths=(0,))
        for name, own in enumerate(left)
    ]


@pytest.mark.parametrize(("ragged", "left"), [(True, True), (True, False), (False, True)])
def test_rows_that_are_ahead_rest(ragged: bool, left: bool) -> None:
    """Where a batch waits for its last row, and a row that drafts nothing is not padded for."""
    rng = np.random.default_rng(0)
    policy = AdaptiveDepth(Levels(4), ragged=ragged)
    calibrate(policy, WORLD, rng)
    states = batch([150] * 4)
    for _ in range(40):
        states, record = played(policy, WORLD, states, rng)
        policy.observe(states, record)
    ahead = batch([100, 10, 10, 10])
    if not left:
        ahead = [replace(state, stop_ids=frozenset({1})) for state in ahead]
    known = [
        replace(new, acceptance=old.acceptance) for new, old in zip(ahead, states, strict=True)
    ]
    depths = policy.plan(known).depth.tolist()
    assert depths[0] > 0
    assert (max(depths[1:]) == 0) == (ragged and left)


def turn(
    policy: AdaptiveDepth, states: list[SequenceState], kept: dict[int, float], rng: Any
) -> tuple[list[SequenceState], RoundRecord]:
    """A round of rows that each keep tokens at a rate of their own, verified without padding."""
    depths = policy.plan(states).depth.tolist()
    accepted, after = [], []
    for state, depth in zip(states, depths, strict=True):
        refused = rng.random(depth) >= kept[state.prefix.sequence_id]
        accepted.append(int(np.append(refused, True).argmax()))
        known = state.acceptance.after(depth, accepted[-1])
        over = "length" if accepted[-1] + 1 >= state.remaining else None
        after.append(state.advanced([0] * (accepted[-1] + 1), depth, over, known, ()))
    rows, drafting = len(states), sum(depth > 0 for depth in depths)
    draft_s = max(depths) * (0.05 + 0.01 * drafting)
    target_s = 0.3 + 0.05 * rows + 0.02 * sum(depths)
    record = RoundRecord(
        sequence_ids=tuple(state.prefix.sequence_id for state in states),
        drafted=tuple(depths),
        depth=tuple(depths),
        accepted=tuple(accepted),
        emitted=tuple(count + 1 for count in accepted),
        bonus=tuple(count == depth for count, depth in zip(accepted, depths, strict=True)),
        ceiling=(None,) * rows,
        first_ceiling=(None,) * rows,
        draft_failed=False,
        looked_up=(False,) * rows,
        ended=(False,) * rows,
        entropies=((),) * rows,
        cached=(0,) * rows,
        draft_s=draft_s,
        target_s=target_s,
        total_s=draft_s + target_s,
    )
    return after, record


def closed_batch(ends_known: bool, seed: int) -> tuple[float, int]:
    """Seconds of a batch of rows that keep unlike, and in how many rounds some drafted, not all.

    Where nobody knows when rows end, none rests, but for those that have one token left.

    Args:
        ends_known: whether somebody does.
        seed: of what is kept.
    """
    rng = np.random.default_rng(seed)
    policy = AdaptiveDepth(Levels(4), ragged=True)
    alone = batch([150])
    for depth in (0, 1, 2) * 6:
        asked = replace(alone[0], params=replace(alone[0].params, depths=(0, *[depth] * 99)))
        alone, record = turn(policy, [asked], {0: 0.0}, rng)
        policy.measure(alone, record)
    live, kept = batch([180] * 8), {name: 0.56 + 0.02 * (name - 3.5) for name in range(8)}
    if not ends_known:
        live = [replace(state, stop_ids=frozenset({1})) for state in live]
    seconds, parted = 0.0, 0
    while live:
        live, record = turn(policy, live, kept, rng)
        policy.observe(live, record)
        seconds += record.total_s
        parted += 0 < sum(depth > 0 for depth in record.depth) < len(live)
        live = [state for state in live if state.finish_reason is None]
    return seconds, parted


def test_a_batch_ends_sooner_if_rows_that_are_ahead_may_rest() -> None:
    """By a made-up clock; 32 batches each, of some 90 rounds."""
    known, rested = np.mean([closed_batch(True, seed) for seed in range(32)], 0)
    unknown, ended = np.mean([closed_batch(False, seed) for seed in range(32)], 0)
    assert known < 0.99 * unknown
    assert rested > 2 * ended


def test_rounds_in_which_some_draft_cost_what_was_measured() -> None:
    """Between the numbers of rows that were, and more tokens where more rows draft."""
    costs = Costs()
    for rows, width, stepping in ((1, 0, 0), (4, 0, 0), (1, 1, 1), (4, 1, 2), (4, 1, 4)) * 9:
        drafted = width * stepping
        done = Round(rows, width, width, False, 0, rows, 0, False, 0, 0.0, 0.0, 0.0)
        costs.add(
            replace(
                done,
                spared=width * rows - drafted,
                stepping=stepping or None,
                draft_s=0.1 * bool(width) + 0.05 * stepping,
                target_s=0.5 + 0.125 * (rows + drafted),
            )
        )
    one, two, three, four = costs.of_some(4, 1)[0][:, 0].tolist()
    assert two == pytest.approx(0.2 + 0.5 + 0.125 * 6, rel=0.03)
    assert four == pytest.approx(0.3 + 0.5 + 0.125 * 8, rel=0.03)
    assert three == pytest.approx(0.5 * (two + four), rel=0.05)
    assert one < two < three < four


def test_rounds_in_which_few_of_many_draft_take_no_less_than_plain_ones() -> None:
    """As many tokens are known from fewer rows, where a row takes more than a drafted token."""
    costs = Costs()
    sizes = [(16, 0), (16, 1), *((1, width) for width in (0, 1, 2, 4, 8))]
    for rows, width in sizes * 9:
        target = 5.0 + 0.75 * rows + 0.25 * rows * width
        done = Round(rows, width, width, False, 0, rows, 0, False, 0, 0.5 * width, target, 0.0)
        costs.add(done)
    plain, whole = 5.0 + 0.75 * 16, 5.0 + 16.0
    for some, took in enumerate(costs.of_some(16, 1)[0][:, 0].tolist(), 1):
        assert took > 0.99 * (plain + some / 16 * (whole - plain) + 0.5)


def test_what_was_measured_of_rounds_in_which_some_draft_stands() -> None:
    """Where a few tokens more take next to nothing; and as all rows take by themselves."""
    costs = Costs()
    for drafted, target in ((0, 1.0), (1, 1.05), (4, 1.6)) * 60:
        spared, draft = 4 * bool(drafted) - drafted, 0.1 * bool(drafted)
        done = Round(4, bool(drafted), bool(drafted), False, 0, 4, 0, False, 0, draft, target, 0.0)
        costs.add(replace(done, spared=spared, stepping=drafted or None))
    found = costs.of_some(4, 1)[0][:, 0]
    assert found[0] == pytest.approx(1.15, rel=0.02)
    assert found[3] == pytest.approx(costs.prices(4, [0, 1]).rounds[1], rel=1e-9)
    quick = Costs()
    for width, target in ((0, 1.2), (1, 1.0)) * 60:
        draft = 0.1 * width
        quick.add(Round(4, width, width, False, 0, 4, 0, False, 0, draft, target, 0.0))
    assert quick.of_some(4, 1)[0][3, 0] == pytest.approx(
        quick.prices(4, [0, 1]).rounds[1], rel=1e-9
    )


def test_as_many_tokens_of_fewer_rows_do_not_overrule_what_was_measured() -> None:
    """Two of sixteen rows, then nine rows that draft one each: eighteen tokens both."""
    costs = Costs()

    def add(rows: int, drafted: int, target: float, times: int) -> None:
        width = int(drafted > 0)
        done = Round(rows, width, width, False, 0, rows, 0, False, 0, 0.0, target, 0.0)
        for _ in range(times):
            costs.add(replace(done, spared=width * rows - drafted, stepping=drafted or None))

    add(16, 0, 17.0, 12)
    add(16, 16, 21.0, 12)
    add(16, 2, 18.5, 12)
    for _ in range(40):
        add(9, 0, 11.75, 2)
        add(9, 9, 14.0, 1)
    assert costs.of_some(16, 1)[0][1, 0] == pytest.approx(18.5, rel=0.03)


def test_no_round_in_which_some_draft_takes_less_than_a_plain_one_unless_measured() -> None:
    """Of sixteen rows only plain rounds are known, of four all depths."""
    costs = Costs()
    for rows, width in [(16, 0), *((4, width) for width in (0, 1, 3, 7))] * 9:
        target = 5.0 + 0.75 * rows + 0.25 * rows * width
        costs.add(Round(rows, width, width, False, 0, rows, 0, False, 0, 0.0, target, 0.0))
    plain = float(costs.prices(16, [0]).rounds[0])
    assert (costs.of_some(16, 1)[0][:-1, 0] >= 0.999 * plain).all()


def test_what_was_measured_of_some_rows_long_ago_is_forgotten() -> None:
    """Sizes that come later take its place: the line from plain rounds to those of all stands."""
    costs = Costs()

    def add(rows: int, drafted: int, target: float) -> None:
        width = int(drafted > 0)
        done = Round(rows, width, width, False, 0, rows, 0, False, 0, 0.0, target, 0.0)
        for _ in range(4):
            costs.add(replace(done, spared=width * rows - drafted, stepping=drafted or None))

    for drafted, target in ((0, 1.0), (2, 1.0), (4, 2.0)):
        add(4, drafted, target)
    assert costs.of_some(4, 1)[0][1, 0] < 1.3
    for drafted in range(1, 31):
        add(31, drafted, 9.0)
    for rows, drafted, target in ((4, 0, 1.0), (4, 4, 2.0), (3, 3, 1.0)):
        add(rows, drafted, target)
    half, whole = costs.of_some(4, 1)[0][[1, 3], 0]
    # As many tokens of three rows say nothing of four.
    assert half > 0.999 * (costs.prices(4, [0]).rounds[0] + whole) / 2


def test_what_was_read_on_for_a_try_is_made_use_of() -> None:
    """Tries right after it may lose as much again; not where more is to be read, or later."""
    purse = Purse()
    for _ in range(600):
        purse.fill(True, (), 1)
    assert purse.affords(1.0)
    purse.spend(1.0, 0.75)
    assert purse.affords(0.25, True), "0.5 is left of what reading took"
    assert not purse.affords(0.75, True)
    assert not purse.affords(0.25, False)
    purse.fill(False, (), 1)
    purse.spend(0.25)
    assert purse.affords(0.25, True)
    purse.fill(False, (), 1)
    purse.spend(0.25)
    assert not purse.affords(0.25, True)
    purse.spend(1.0, 0.75)
    assert purse.affords(0.25, True)
    purse.fill(True, (), 1)
    assert not purse.affords(0.25, True)
    # A hiccup gives credit for no more than reading may take.
    purse.spend(100.0, 99.75)
    assert purse.affords(2.0, True)
    assert not purse.affords(2.5, True)


def test_rows_of_a_mixed_batch_do_not_rest() -> None:
    """Nor is it told what their tokens count: it is not known when the others end."""
    rng = np.random.default_rng(0)
    policy = AdaptiveDepth(Levels(4), ragged=True, looks_up=True)
    calibrate(policy, WORLD, rng)
    states = batch([150] * 3)
    for _ in range(40):
        states, record = played(policy, WORLD, states, rng)
        policy.observe(states, record)
    common = {"max_tokens": 200, "ignore_eos": True}
    for asked in ({"seed": 1, "temperature": 1.0}, {"depths": (0,) * 200}):
        params = SamplingParams(**common, **asked)
        first = replace(states[0], params=params, prefix=Prefix(99, range(100)))
        plan = policy.plan([first, *states[1:]])
        assert plan.worth is not None
        assert plan.worth.together is not None
        assert plan.worth.together.weights is None
        assert (plan.model_steps[1:] > 0).all()


def test_nothing_is_left_of_what_tokens_counted_once_others_join() -> None:
    """A decision stands; whether the batch is waited for may change meanwhile."""
    policy = AdaptiveDepth(Levels(4), ragged=True, looks_up=True)
    last = policy._ending
    states = batch([100, 10, 10])
    prices = Costs().prices(3, range(5))
    told = Choices([], prices, np.ones(5), 0.0, 0.0, 1.0, 0.0, 5, spread=4.0)
    weighed = last.weighed(told, states)
    assert weighed.weights is not None
    last.happened(states[:2], [1, 1])
    last.happened(states[1:], [1, 1])
    weighed = last.weighed(weighed, states)
    assert weighed.weights is None
    assert weighed.spread == np.inf


def test_drafts_of_no_length_are_planned_as_such() -> None:
    policy = AdaptiveDepth(Levels(0), ragged=True)
    rng = np.random.default_rng(0)
    states = batch([100, 10, 10])
    asked = [replace(each, params=replace(each.params, depths=(0, 1, 0, 1, 0))) for each in states]
    for _ in range(4):
        asked, record = played(policy, WORLD, asked, rng)
        policy.observe(asked, record)
    assert policy.calibrated
    assert policy.plan(states).depth.tolist() == [0, 0, 0]


def test_what_a_few_rows_draft_is_read_for_them_alone() -> None:
    """Those that come first in a batch and rest take nothing of what reading may take."""
    prices = Prices(4, np.arange(2), np.ones(2), np.zeros(2), step=2.0, token=0.01)
    new = [replace(state, acceptance=NOTHING_KNOWN) for state in batch([150] * 4)]
    first = Purse().worth_reading(new, prices, 1.0, 0)
    last = Purse().worth_reading(new, prices, 1.0, 0, [False, False, False, True])
    assert first == [True, False, False, False]
    assert last == [False, False, False, True]
