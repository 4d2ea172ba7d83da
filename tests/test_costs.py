"""What rounds cost, as the adaptive depth believes: times are made up, no clock is read.

What is random is seeded: a test passes or fails alike each time, and none alarms falsely.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from outrider import SamplingParams
from outrider.policies import AdaptiveDepth, Levels, lines
from outrider.policies.costs import Costs, Prices
from outrider.policies.lines import Curve, Line
from outrider.policies.looking import Looking
from outrider.policies.purse import ONE_FIRST, SHARE, Purse
from outrider.policies.round import Round
from outrider.types.acceptance import NOTHING_KNOWN, Acceptance
from outrider.types.records import DraftPlan, Prefix, SequenceState

from .test_depth import World, adaptive, calibrate, decode, played, steady


def concave(tokens: float) -> float:
    """Seconds of a forward as a CPU takes them: a token more costs less, the more there are."""
    return float(tokens**0.5)


def linear(tokens: float) -> float:
    """As where the weights are read once, and then each token counts."""
    return 4 + 0.2 * tokens


def smooth(
    curve: Curve, kinds: NDArray[np.bool_], sizes: NDArray[np.float64]
) -> NDArray[np.float64]:
    """What is expected where single sizes say little beside the others, since all times vary."""
    return curve.told(kinds, sizes, 4.0)[0]


@pytest.mark.parametrize("takes", [concave, linear])
def test_sizes_that_lie_far_off_say_little(takes: Callable[[float], float]) -> None:
    """Wide rounds of sixteen rows, then plain ones of one: a line through all says 5 and more."""
    curve, whole = Curve(), Line()
    for now in range(20):
        for tokens in (32, 48, 64, 144):
            curve.add(True, tokens, takes(tokens), now)
            whole.add(tokens, takes(tokens), now)
    for now in range(20, 30):
        curve.add(False, 1, takes(1), now)
        whole.add(1, takes(1), now)
    (found,) = smooth(curve, np.array([True]), np.array([2.0]))
    assert takes(1) <= found <= 1.6 * takes(2)
    known = np.array([32.0, 48.0, 64.0, 144.0])
    assert smooth(curve, np.ones(4, dtype=bool), known) == pytest.approx(
        [takes(tokens) for tokens in known], rel=0.1
    )
    if takes is concave:
        assert whole.at(np.array(2.0)) > 1.6 * takes(2)


def test_each_kind_is_told_by_its_own_times() -> None:
    curve = Curve()
    for now in range(20):
        curve.add(False, 1, 1.0, now)
        curve.add(True, 2, 2.0, now)
    plain, wide = smooth(curve, np.array([False, True]), np.array([1.0, 2.0]))
    assert plain == pytest.approx(1.0, rel=0.03)
    assert wide == pytest.approx(2.0, rel=0.03)


@pytest.mark.parametrize(("noise", "rel"), [(0.007, 0.01), (0.07, 0.04)])
def test_steps_between_sizes_are_known_as_far_as_times_tell(noise: float, rel: float) -> None:
    """As measured on a processor: three tokens take no longer than two, and four a quarter more."""
    takes = {2: 18.4, 3: 17.7, 4: 22.3, 5: 22.6, 9: 24.3}
    rng, curve = np.random.default_rng(0), Curve()
    for now in range(31):
        for size, each in takes.items():
            curve.add(True, size, each * np.exp(noise * rng.standard_normal()), now)
    sizes = np.array([*takes, 7.0])
    kinds = np.ones(len(sizes), dtype=bool)
    assert curve.told(kinds, sizes, noise)[0][:-1] == pytest.approx([*takes.values()], rel=rel)
    # No curve has such steps: what is not told by its own times is as before.
    assert smooth(curve, kinds, sizes)[1] > 1.08 * takes[3]
    assert curve.told(kinds, sizes, noise)[0][-1] == smooth(curve, kinds, sizes)[-1]


def test_a_size_that_was_measured_beside_other_work_is_not_far_off_the_others() -> None:
    """Ten times as long is no step: see `TestSlowStretches` for what it would cost."""
    curve = Curve()
    for now in range(31):
        for size in (2, 4, 8, 16):
            curve.add(True, size, 10.0 if size == 4 else 1.0, now)
    kinds, sizes = np.ones(1, dtype=bool), np.array([4.0])
    (whole,), (own,) = smooth(curve, kinds, sizes), curve.told(kinds, sizes, 0.001)[0]
    assert whole < own < 1.12 * whole


def test_steps_are_not_made_of_noise() -> None:
    """Of what single times say, about as much counts as makes the error least."""
    rng, error = np.random.default_rng(0), {"own": 0.0, "smooth": 0.0, "trusted": 0.0}
    sizes = np.array([2.0, 3.0, 4.0, 5.0])
    kinds = np.ones(len(sizes), dtype=bool)
    for _ in range(200):
        curve = Curve()
        steps = 0.035 * rng.standard_normal(len(sizes))
        for now in range(5):
            for size, step in zip(sizes, steps, strict=True):
                curve.add(True, size, np.exp(step + 0.1 * rng.standard_normal()), now)
        for name, noise in {"own": 0.1, "smooth": 4.0, "trusted": 0.001}.items():
            found = np.log(curve.told(kinds, sizes, noise)[0])
            error[name] += float(((found - steps) ** 2).sum())
    assert error["own"] < error["smooth"]
    assert error["own"] < 0.9 * error["trusted"]


def test_what_is_larger_than_all_that_was_measured_is_not_thought_to_be_free() -> None:
    curve = Curve()
    for now in range(10):
        for tokens in (1, 2, 4):
            curve.add(True, tokens, 1.0, now)
    same, more = smooth(curve, np.array([True, True]), np.array([4.0, 16.0]))
    assert same == pytest.approx(1.0, rel=0.01)
    assert more == pytest.approx(2.0, rel=0.01)
    assert smooth(Curve(), np.array([True]), np.array([3.0])).tolist() == [0.0]


def test_what_is_scaled_is_told_as_if_measured_so() -> None:
    curves, lines = (Curve(), Curve()), (Line(), Line())
    for now, size in enumerate((1, 2, 4, 8, 2, 4, 2), 1):
        for factor, curve, line in zip((1.0, 0.25), curves, lines, strict=True):
            curve.add(size > 1, size, factor * (3 + size), now)
            line.add(size, factor * (3 + size), now)
    for part in (curves[0], lines[0]):
        part.scale(0.25)
    kinds, sizes = np.array([False, True, True, True]), np.array([1.0, 2.0, 3.0, 16.0])
    for again in (False, True):
        assert smooth(curves[0], kinds, sizes) == pytest.approx(smooth(curves[1], kinds, sizes))
        assert lines[0].at(sizes) == pytest.approx(lines[1].at(sizes))
        for curve, line in zip(curves, lines, strict=True):
            if not again:
                curve.add(True, 4, 2.0, 8)
                line.add(4, 2.0, 8)


def test_old_times_do_not_outvote_a_new_one() -> None:
    curve = Curve()
    for now in range(15):
        curve.add(False, 4, 3.0, now)
    for now in (150, 290):
        curve.add(False, 4, 1.0, now)
    assert smooth(curve, np.array([False]), np.array([4.0])) == pytest.approx(1.0, rel=0.01)


def test_what_is_measured_in_a_slow_stretch_is_compared_at_one_speed() -> None:
    """Plain rounds are measured once in forty, the last time while all took three times as long."""
    costs = Costs()
    for now in range(400):
        slow = 3.0 if 335 <= now < 370 else 1.0
        steps = 0 if now % 40 == 20 else 4
        costs.add(seen(1, steps, slow * 0.25 * steps, target_s=slow * (1.0 + 0.1 * steps)))
        if now in (359, 399):
            prices = costs.prices(1, range(5))
            now_slow = 3.0 if now == 359 else 1.0
            assert prices.verifying[0] == pytest.approx(1.1 * now_slow, rel=0.1)
            assert prices.verifying[4] == pytest.approx(1.5 * now_slow, rel=0.1)
            assert prices.drafting[4] == pytest.approx(1.0 * now_slow, rel=0.1)


def test_what_is_new_after_a_slow_stretch_is_not_thought_fast_for_good() -> None:
    """A batch of sixteen follows one row, which was slow last: its rounds take what they take."""
    costs = Costs()
    for _ in range(100):
        costs.add(seen(1, 0, 0.0, target_s=0.9))
        costs.add(seen(1, 4, 1.0, target_s=1.4))
    for _ in range(6):
        costs.add(seen(1, 0, 0.0, target_s=2.9))
    for _ in range(12):
        costs.add(seen(16, 0, 0.0, target_s=3.9))
    prices = costs.prices(16, range(5))
    assert prices.verifying[0] == pytest.approx(4.0, rel=0.02)
    assert prices.drafting[4] == pytest.approx(1.0, rel=0.02)


@pytest.mark.parametrize("steps", [(4, 4), (5, 7), (0, 0), (2, 8)])
def test_two_fast_rounds_tell_that_the_machine_was_busy_before(steps: tuple[int, int]) -> None:
    """Be they of depths that were measured or of new ones."""
    costs = Costs()
    for _ in range(6):
        costs.add(seen(1, 0, 0.0, target_s=9.0, other_s=1.0))
        costs.add(seen(1, 4, 10.0, target_s=13.0, other_s=1.0))

    def fast(taken: int) -> Round:
        return seen(1, taken, 0.25 * taken, target_s=0.9 + 0.1 * taken)

    costs.add(fast(steps[0]))
    costs.add(fast(steps[1]))
    prices = costs.prices(1, range(5))
    assert prices.rounds[0] == pytest.approx(1.0, rel=0.35)
    assert prices.rounds[4] == pytest.approx(2.4, rel=0.35)
    assert prices.rounds[4] / prices.rounds[0] == pytest.approx(2.4, rel=0.15)


@pytest.mark.parametrize("steps", [4, 5])
def test_a_plain_round_tells_why_another_was_so_fast(steps: int) -> None:
    """The machine was busy when all was measured, or when that depth alone was."""
    for slow_plain in (1.0, 10.0):
        costs = Costs()
        for _ in range(3):
            costs.add(seen(1, 0, 0.0, target_s=slow_plain * 0.9, other_s=slow_plain * 0.1))
            costs.add(seen(1, 4, 10.0, target_s=14.0, other_s=0.0))
        assert not costs.puzzled
        costs.add(seen(1, steps, 0.25 * steps, target_s=1.4, other_s=0.0))
        assert costs.puzzled
        costs.add(seen(1, 0, 0.0, target_s=0.9))
        assert not costs.puzzled
        prices = costs.prices(1, range(steps + 1))
        assert prices.verifying[0] == pytest.approx(1.0, rel=0.1)
        if steps == 4 or slow_plain > 1:
            # Of a depth that is new it is known what it takes, and of the one beside it not.
            assert prices.verifying[steps] == pytest.approx(1.4, rel=0.1)
        assert prices.drafting[steps] == pytest.approx(0.25 * steps, rel=0.4)


def test_a_fast_round_alone_says_what_its_size_takes() -> None:
    """It is counted with the next, and scales nothing."""
    costs = Costs()
    for _ in range(6):
        costs.add(seen(1, 0, 0.0, target_s=10.0))
    for _ in range(4):
        costs.add(seen(1, 4, 1.0, target_s=1.0))
        costs.add(seen(1, 0, 0.0, target_s=10.0))
    verifying = costs.prices(1, range(5)).verifying
    assert (verifying[0], verifying[4]) == pytest.approx((10.1, 1.1), rel=0.1)


def test_one_slow_round_is_not_a_slow_machine() -> None:
    costs = Costs()
    for _ in range(3):
        costs.add(seen(1, 0, 0.0, target_s=0.9))
    costs.add(seen(1, 0, 0.0, target_s=99.9))
    costs.add(seen(1, 4, 1.0, target_s=1.4))
    prices = costs.prices(1, range(5))
    assert prices.verifying[0] == pytest.approx(1.0, rel=0.02)
    assert prices.drafting[4] == pytest.approx(1.0, rel=0.02)


def test_times_do_not_drift_where_rounds_differ_by_chance() -> None:
    """A kind that is hardly measured is compared with what the others took at the same time."""
    costs, rng = Costs(), np.random.default_rng(0)
    found = []
    for now in range(4000):
        steps = 0 if now % 40 == 20 else 4
        noise = float(rng.lognormal(0.0, 0.15))
        costs.add(seen(1, steps, 1.0, target_s=noise * (1.9 if steps else 0.9), other_s=0.0))
        if now >= 400 and now % 40 == 30:
            prices = costs.prices(1, range(5))
            found.append(prices.verifying[4] / prices.verifying[0])
    assert np.median(found) == pytest.approx(1.9 / 0.9, rel=0.05)
    assert np.std(np.log(found)) < 0.12


def test_more_sizes_than_are_remembered_replace_the_oldest() -> None:
    curve = Curve()
    for size in range(1, 60):
        curve.add(True, size, float(size), size)
    assert curve.count(True, 1) == 0
    assert curve.count(True, 59) == 1
    assert smooth(curve, np.array([True]), np.array([50.0])) == pytest.approx(50, rel=0.05)


def seen(
    rows: int,
    steps: int,
    draft_s: float,
    behind: int = 0,
    missing: int = 0,
    target_s: float = 1.0,
    other_s: float = 0.1,
) -> Round:
    return Round(
        rows=rows,
        width=steps,
        steps=steps,
        fresh=False,
        read=0,
        missing=missing or rows,
        behind=behind,
        looked=False,
        caught_up=0,
        draft_s=draft_s,
        target_s=target_s,
        other_s=other_s,
    )


def test_a_step_for_sixteen_rows_is_no_step_for_one() -> None:
    costs = Costs()
    for _ in range(9):
        for steps in (1, 2, 3):
            costs.add(seen(1, steps, 1.0 * steps))
            costs.add(seen(16, steps, 6.0 * steps))
    assert costs.prices(1, range(4)).drafting[1:] == pytest.approx([1, 2, 3], rel=0.12)
    assert costs.prices(16, range(4)).drafting[1:] == pytest.approx([6, 12, 18], rel=0.12)
    # None was made for fifteen.
    assert costs.prices(15, range(4)).drafting[2] == pytest.approx(12, rel=0.12)


def test_what_is_read_on_is_counted_apart() -> None:
    """The first drafts of all have a backlog, and are scaled; later ones tell what it takes."""
    costs = Costs()
    costs.add(seen(4, 1, 9.0, behind=4, missing=24))
    assert costs.prices(4, range(2)).drafting[1] == pytest.approx(3.0)
    for _ in range(9):
        costs.add(seen(4, 1, 3.0))
    for _ in range(3):
        assert costs.prices(4, range(2)).reading_on(3) == 0
        costs.add(seen(4, 1, 9.0, behind=3, missing=24))
    prices = costs.prices(4, range(2))
    assert prices.drafting[1] == pytest.approx(3.0, rel=0.01)
    assert prices.reading_on(3) == pytest.approx(6.0, rel=0.01)


def test_tries_that_seem_to_cost_nothing_are_apart() -> None:
    purse = Purse()
    assert purse.affords(-0.5)
    purse.spend(0.0)
    made = []
    for _ in range(30):
        purse.fill(True, (), 1)
        made.append(purse.affords(-0.5))
        if made[-1]:
            purse.spend(0.0)
    assert [place for place, afforded in enumerate(made) if afforded] == [7, 15, 23]


def test_a_price_that_rises_a_little_each_round_is_paid_some_time() -> None:
    purse, price = Purse(), 1.0
    for _ in range(400):
        purse.fill(True, (), 1)
        price *= 1.0001
        if purse.affords(price):
            return
    raise AssertionError("never afforded")


def test_what_tries_gain_pays_for_more_of_them_up_to_a_bound() -> None:
    purse = Purse()
    purse.fill(True, (), 1)
    purse.spend(-50.0)
    for _ in range(8):
        purse.fill(True, (), 1)
    assert purse.affords(0.5)
    assert not purse.affords(2.0)


@pytest.mark.parametrize("rows", [1, 9])
def test_a_purse_says_when_it_can_pay(rows: int) -> None:
    """After a try that lost what it had, and not a round before."""
    purse = Purse()
    purse.affords(1.5)
    purse.spend(1.0)
    wait = purse.wait(rows)
    assert wait == round(2.5 * rows**0.5 / ONE_FIRST)
    for _ in range(wait - 1):
        purse.fill(True, [], rows)
    assert not purse.affords(1.5)
    for _ in range(2):
        purse.fill(True, [], rows)
    assert purse.affords(1.5)
    assert purse.wait(rows) <= 0


@pytest.mark.parametrize("gains", [True, False])
def test_a_slow_moment_of_plain_rounds_does_not_start_drafting_for_long(gains: bool) -> None:
    """Plain rounds were slow when they were last measured; drafts are never kept, or always."""
    policy, world, rng = (
        AdaptiveDepth(Levels(4)),
        World(steady(0.0), step=0.0),
        np.random.default_rng(0),
    )
    world = replace(world, token=0.05, noise=0.0, prefill=0.0)
    calibrate(policy, world, rng)
    decode(policy, world, tokens=100, warm=False)
    decode(policy, replace(world, slow=1.3), tokens=20, warm=False)
    decode(policy, world, tokens=3, warm=False)
    after = replace(world, chance=steady(1.0 if gains else 0.0))
    _, states = decode(policy, after, tokens=200, warm=False)
    share = np.mean(np.array(states[0].depths) > 0)
    assert share > 0.8 if gains else share < 0.25


def test_a_batch_that_shrinks_is_drafted_for_to_its_end() -> None:
    """Costs of sixteen rows say little of one: its forwards are a quarter as long."""
    policy, rng = AdaptiveDepth(Levels(8)), np.random.default_rng(0)
    world = World(steady(0.8), step=0.1, noise=0.02)
    calibrate(policy, world, rng)

    def shrunk(rows: int) -> World:
        """As many tokens take the power of .6 of their time."""
        return replace(world, token=(16.0**0.6 - 1) / 15 if rows > 8 else 0.1)

    depths: dict[int, list[int]] = {}
    for batch, rows in enumerate((16, 1)):
        params = SamplingParams(max_tokens=200)
        states = [
            SequenceState(Prefix(100 * batch + i, range(50)), 50, params, frozenset(), i)
            for i in range(rows)
        ]
        while all(state.finish_reason is None for state in states):
            states, record = played(policy, shrunk(rows), states, rng)
            policy.observe(states, record)
            depths.setdefault(rows, []).append(max(record.depth))
    assert np.mean(depths[1]) > 1


def test_looking_pauses_where_it_gains_nothing_and_comes_back() -> None:
    looking = Looking()
    looked = []
    for _ in range(200):
        looked.append(looking.wanted())
        looking.count(looked[-1], -0.05)
    assert all(looked[:20])
    assert sum(looked[100:]) == pytest.approx(100 / 8, abs=1)
    while not looking.wanted():
        looking.count(False)
    looking.count(True, 3.0)
    assert all(looking.wanted() or looking.count(True, -0.05) for _ in range(5))


def test_a_policy_looks_less_where_nothing_is_found() -> None:
    """But for rows that are planned by themselves, whose texts would depend on it."""
    world, rng = World(steady(0.3), step=0.3), np.random.default_rng(0)
    for seed, least, most in ((None, 0.1, 0.5), (1, 1.0, 1.0)):
        policy = AdaptiveDepth(Levels(8), looks_up=True)
        calibrate(policy, world, rng)
        params = SamplingParams(max_tokens=300, seed=seed)
        states = [SequenceState(Prefix(0, range(50)), 50, params, frozenset(), 0)]
        looked = []
        while states[0].finish_reason is None:
            plan = policy.plan(states)
            looked.append(plan.looks)
            states, record = planned_round(plan.model_steps.tolist(), world, states, rng)
            policy.observe(states, record)
        assert looked[0]
        assert least <= np.mean(looked) <= most


def planned_round(depths, world, states, rng):
    """A round of the depths that were planned, and of what looking tokens up takes."""

    class Plan:
        learns = True

        def plan(self, states):
            return type("Depths", (), {"depth": np.array(depths)})

    after, record = played(Plan(), world, states, rng)
    more = 0.05 if not max(depths) else 0.0
    return after, replace(record, draft_s=record.draft_s + more, total_s=record.total_s + more)


def test_times_that_vary_do_not_make_wrong_drafts_look_good() -> None:
    """Decisions are judged by what rounds usually take, over 24 seeds: 4% were lost before.

    Each part of a round takes exp(.35 x) of that, for x normal.
    """
    world = World(steady(0.0), step=0.01, token=0.12, noise=0.35)

    def usual(depth: int) -> float:
        return 1 + world.rest + (world.step + world.token) * depth

    took = [
        sum(map(usual, decode(adaptive(), world, random=seed)[1][0].depths)) for seed in range(24)
    ]
    assert 256 * usual(0) / np.mean(took) >= 0.97


def test_doubt_is_the_standard_error_of_a_ratio() -> None:
    """Of two kinds of rounds, 25 and 16 of them, whose logarithms are off by .1.

    On average over 60 seeds, where what is told of a time, and of a ratio, varies by as much, but
    for a quarter: how much rounds differ is told from few of them, at a speed that is a guess.
    """
    done = Round(1, 0, 0, False, 0, 0, 0, False, 0, 0.0, 0.0, 0.0)
    doubts, found = [], []
    for seed in range(60):
        rng, costs = np.random.default_rng(seed), Costs()
        off = 0.1 * rng.standard_normal((25, 2))
        for plain, drafted in off[:16]:
            costs.add(replace(done, target_s=float(np.exp(plain))))
            costs.add(replace(done, width=3, steps=3, target_s=2 * float(np.exp(drafted))))
        for plain, _ in off[16:]:
            costs.add(replace(done, target_s=float(np.exp(plain))))
        prices = costs.prices(1, [0, 3])
        doubts.append(prices.doubts)
        found.append(np.log(prices.verifying[1] / prices.verifying[0]))
        far = costs.prices(64, [0, 3]).doubts
        assert far is not None
        assert far[0] > 2 * prices.doubt()
    medians = 1.25 * 0.1
    expected = [medians / 5, medians * (1 / 25 + 1 / 16) ** 0.5]
    assert np.mean(doubts, 0) == pytest.approx(expected, rel=0.25)
    assert np.std(found) == pytest.approx(expected[1], rel=0.25)


def test_a_plain_round_in_the_place_of_which_tokens_were_looked_up_is_due_a_little_later() -> None:
    """Not in each of the next rounds, in which the model would not be asked either."""
    policy, world = AdaptiveDepth(Levels(8), looks_up=True), World(steady(0.6))
    rng = np.random.default_rng(0)
    calibrate(policy, world, rng)
    params, asked = SamplingParams(max_tokens=1000), []
    states = [SequenceState(Prefix(1, range(50)), 50, params, frozenset(), 0)]
    while states[0].finish_reason is None:
        plan = policy.plan(states)
        asked.append(int(plan.model_steps[0]))
        # Rounds are as wide as planned, as where something is found in each.
        states, record = played(Planned(plan), world, states, rng)
        policy.observe(states, record)
    assert 0 in asked
    assert np.mean(np.array(asked) > 0) > 0.8


class Planned:
    """Plans what it is told to."""

    learns = True

    def __init__(self, plan: DraftPlan) -> None:
        self._plan = plan

    def plan(self, states: list[SequenceState]) -> DraftPlan:
        """The plan."""
        return self._plan


@pytest.mark.parametrize(("rate", "noise", "least"), [(0.5, 0.35, 1.10), (0.6, 0.1, 1.22)])
def test_drafts_that_pay_are_made_where_times_vary(rate: float, noise: float, least: float) -> None:
    """The other side of doubt: by what rounds usually take, over 16 seeds.

    A token is kept with chance .5 or .6, which makes the best depth 1.22 or 1.33 times as fast.
    """
    world = World(steady(rate), token=0.12, noise=noise)

    def usual(depth: int) -> float:
        return 1 + world.rest + (world.step + world.token) * depth

    took = [
        sum(map(usual, decode(adaptive(), world, tokens=512, random=seed)[1][0].depths))
        for seed in range(16)
    ]
    assert 512 * usual(0) / np.mean(took) >= least


def test_refusals_at_one_place_say_something_of_the_next_ones() -> None:
    """A text that keeps nothing, after others that kept nine in ten."""
    others = [0.9] * 8
    fresh = NOTHING_KNOWN.chances(8, others)
    assert fresh == pytest.approx(others)
    refused = NOTHING_KNOWN.after(8, 0).after(8, 0).chances(8, others)
    assert refused[0] < 0.4
    assert max(refused[1:]) < 0.6
    # What keeps as much as others is thought of as they are, and more is not thought of more.
    kept = NOTHING_KNOWN.after(4, 4).after(4, 4).chances(8, others)
    assert kept[4:] == pytest.approx(others[4:])


def test_a_few_refusals_are_chance_where_others_kept_one_in_three() -> None:
    """And are none where they kept nine in ten: see the test before."""
    known, others = NOTHING_KNOWN, [1 / 3] * 4
    for _ in range(4):
        known = known.after(2, 0)
    assert known.chances(4, others)[0] > 0.2
    # In the long run a text's own tokens decide, whatever others kept.
    for _ in range(40):
        known = known.after(2, 0)
    assert known.chances(4, others)[0] < 0.03


@pytest.mark.parametrize("rate", [0.1, 0.35, 0.8])
def test_what_others_kept_makes_the_error_less_where_texts_are_alike(rate: float) -> None:
    """Beside what is thought of a text of which nothing is known, after 6 rounds and after 24."""
    rng, others = np.random.default_rng(0), [rate] * 2
    off = {"others": 0.0, "alone": 0.0}
    for _ in range(400):
        known = NOTHING_KNOWN
        for place in range(24):
            kept = rng.random(2) < rate
            known = known.after(2, int(kept[0]) + int(kept.all()))
            if place in (5, 23):
                off["others"] += (known.chances(2, others)[0] - rate) ** 2
                off["alone"] += (known.chances(2)[0] - rate) ** 2
    assert off["others"] < 0.7 * off["alone"]


def reading(rows: int, tokens: int, known: int = 0, remaining: int = 100) -> list[SequenceState]:
    """Sequences, of which the drafter has read the first few."""
    params = SamplingParams(max_tokens=remaining)
    new = [
        SequenceState(Prefix(i, range(tokens)), tokens, params, frozenset(), i) for i in range(rows)
    ]
    seen = Acceptance().after(1, 0)
    return [replace(state, acceptance=seen) if i < known else state for i, state in enumerate(new)]


def test_as_many_are_read_as_the_guess_allows_until_drafts_are_worth_more() -> None:
    none = np.zeros(1, dtype=np.int64)
    prices = Prices(16, none, np.ones(1), np.zeros(1), token=0.001)
    assert Purse().worth_reading(reading(16, 200), prices, 1.0, 0) == [True] * 12 + [False] * 4
    rest = reading(16, 200, known=12)
    purse = Purse()
    purse.owed = 2.4
    assert purse.worth_reading(rest, prices, 1.0, 0) == [True] * 12 + [False] * 4
    for _ in range(40):
        purse.fill(False, [], 16)
    assert purse.worth_reading(rest, prices, 1.0, 0) == [True] * 13 + [False] * 3
    assert Purse().worth_reading(reading(16, 200, remaining=1000), prices, 1.0, 0) == [True] * 16
    assert not any(Purse().worth_reading(reading(16, 4000), prices, 1.0, 0))
    # Twice as fast, a quarter of what remains may go into it.
    assert all(Purse().worth_reading(reading(16, 200), prices, 2.0, 0))
    assert not any(Purse().worth_reading(reading(16, 2600), prices, 2.0, 0))


def test_nothing_is_read_to_try_drafts_of_a_text_that_is_nearly_over() -> None:
    """Reading takes two plain rounds: ten that are left are not to make up for it."""
    prices = Prices(1, np.zeros(1, dtype=np.int64), np.ones(1), np.zeros(1), token=0.01)
    assert Purse().worth_reading(reading(1, 200, remaining=30), prices, 1.0, 0) == [True]
    assert Purse().worth_reading(reading(1, 200, remaining=10), prices, 1.0, 0) == [False]
    assert Purse().worth_reading(reading(1, 200, remaining=10), prices, 1.0, 500) == [False]
    # Where all texts are short, once in long; and where drafts were kept, for what they save.
    assert Purse().worth_reading(reading(1, 200, remaining=10), prices, 1.0, 512) == [True]
    assert Purse().worth_reading(reading(1, 200, remaining=10), prices, 2.0, 0) == [True]


def test_where_texts_are_short_the_next_is_thought_to_be() -> None:
    """Unless it has gone on for long; half a plain round is a tenth of five."""
    prices = Prices(1, np.zeros(1, dtype=np.int64), np.ones(1), np.zeros(1), token=0.01)
    purse, new = Purse(), reading(1, 50)
    assert purse.worth_reading(new, prices, 1.0, 0) == [True]
    for _ in range(60):
        purse.ended(4)
    assert purse.worth_reading(new, prices, 1.0, 0) == [False]
    assert purse.worth_reading(new, prices, 1.0, 512) == [True]
    gone_on = [replace(new[0], depths=(0,) * 60)]
    assert purse.worth_reading(gone_on, prices, 1.0, 0) == [True]


def test_a_read_during_which_the_machine_stood_still_is_not_owed_for_ever() -> None:
    prices = Prices(1, np.zeros(1, dtype=np.int64), np.ones(1), np.zeros(1), token=0.01)
    purse, new = Purse(), reading(1, 50, remaining=400)
    purse.read(300.0, 0.5)
    assert purse.worth_reading(new, prices, 1.0, 0) == [False]
    rounds = 0
    while not purse.worth_reading(new, prices, 1.0, 0)[0]:
        purse.fill(True, [], 1)
        rounds += 1
    assert 400 < rounds < 600


def test_where_drafts_were_kept_a_guess_reads_for_the_first_alone() -> None:
    """Three in a hundred of fifty rounds are saved, and a prompt takes two."""
    prices = Prices(16, np.zeros(1, dtype=np.int64), np.ones(1), np.zeros(1), token=0.01)
    assert Purse().worth_reading(reading(16, 200), prices, 1.03, 0) == [True] + [False] * 15
    assert not any(Purse().worth_reading(reading(16, 200, known=1), prices, 1.03, 0)[1:])
    assert Purse().worth_reading(reading(16, 200, known=1), prices, 1.0, 0)[1]


def test_what_reading_takes_counts_for_all_rows_of_a_round_and_once() -> None:
    prices = Prices(16, np.zeros(1, dtype=np.int64), np.ones(1), np.zeros(1), token=0.001)
    # One beside fifteen that are planned by themselves: all of them wait for its reading.
    assert not any(Purse().worth_reading(reading(1, 200, remaining=25), prices, 1.3, 0))
    assert all(Purse().worth_reading(reading(1, 100, remaining=25), prices, 1.3, 0))
    # What a text has grown by since was read as it came.
    alone = replace(prices, rows=2)
    old, new = reading(2, 100, known=1, remaining=5000)
    grown = replace(old, prefix=Prefix(0, range(3100)))
    assert Purse().worth_reading([grown, new], alone, 1.0, 0) == [True, True]


def test_a_machine_that_stands_still_for_a_while_is_not_thought_to_be_that_noisy() -> None:
    plain = Round(1, 0, 0, False, 0, 0, 0, False, 0, 0.0, 1.0, 0.0)
    costs = Costs()
    costs.add(replace(plain, width=1, steps=1, missing=1, draft_s=0.1))
    for target_s in [1.0] * 5 + [60.0, 40.0, 50.0]:
        costs.add(replace(plain, target_s=target_s))
    # Eight rounds, each off by a guess of .2.
    assert costs.prices(1, [0, 1]).doubt() == pytest.approx(0.25 / 8**0.5, rel=0.1)


@pytest.mark.parametrize(("length", "share"), [(100, 0.012), (512, 0.0112)])
def test_tries_that_all_fail_take_the_share_that_they_are_said_to(
    length: int, share: float
) -> None:
    """1.2% of the time, of which .2% comes with each new text, all of it where that is short."""
    purse, lost = Purse(), 0.0
    for _ in range(60_000 // length):
        for place in range(length):
            tries = purse.affords(0.5)
            if tries:
                purse.spend(0.5)
                lost += 0.5
            purse.fill(not tries, [length] if place == 0 else (), 1)
        purse.ended(length)
    assert lost / 60_000 == pytest.approx(share, rel=0.05)


def test_tries_pay_for_their_decisions() -> None:
    """What they take in all is the same, be it for drafts or for two decisions each."""
    made = {}
    for decided, lost in ((0.0, 0.5), (0.25, 0.0), (0.1, 0.3)):
        purse, made[decided] = Purse(), 0
        for _ in range(20_000):
            tries = purse.affords(lost)
            made[decided] += tries
            if tries:
                purse.spend(lost, decided=decided)
            purse.fill(not tries, (), 1)
    assert list(made.values()) == pytest.approx([400] * 3, rel=0.05)


def test_a_decision_that_was_slow_once_does_not_put_tries_off() -> None:
    purse = Purse()
    for decided in (0.1, 0.1, 50.0):
        purse.spend(0.1, decided=decided)
    rounds = 0
    while not purse.affords(0.1):
        purse.fill(True, (), 1)
        rounds += 1
    assert rounds < 0.1 * 12 / ONE_FIRST


@pytest.mark.parametrize("share", [ONE_FIRST, SHARE])
def test_tries_of_several_texts_take_by_the_root_less(share: float) -> None:
    shares = []
    for rows in (1, 4, 16):
        purse, lost = Purse(share), 0.0
        for _ in range(20_000):
            tries = purse.affords(0.5)
            if tries:
                purse.spend(0.5)
                lost += 0.5
            purse.fill(not tries, (), rows)
        shares.append(lost / 20_000)
    assert shares == pytest.approx([share, share / 2, share / 4], rel=0.05)


@pytest.mark.parametrize(("measured", "kept"), [(lines._ENOUGH, True), (3, False)])
def test_drafts_that_are_not_made_do_not_look_cheaper_for_that(measured: int, kept: bool) -> None:
    """But for those of which little is known: slow moments would keep drafts away for good."""

    def after(plain: int) -> float:
        """What is thought of drafts of twice as many tokens, which take twice as long."""
        curve = Curve()
        for now in range(measured + plain):
            drafts = now < measured
            curve.add(drafts, 8.0 if drafts else 4.0, 16.0 if drafts else 8.0, now)
        return float(curve.told(np.array([True]), np.array([8.0]), 0.1)[0][0])

    assert after(600) < after(150) < after(1)
    assert (after(150) > 0.93 * 16) == kept


def test_looking_up_in_vain_does_not_tell_what_proposing_takes() -> None:
    """Nor the other way round: a hundredth of a round, and a tenth."""
    costs = Costs()
    for _ in range(9):
        costs.add(replace(seen(4, 0, 0.01), looked=True))
        costs.add(replace(seen(4, 3, 0.1, other_s=0.5), looked=True, found=True, steps=0))
        costs.add(seen(4, 1, 0.3))
    prices = costs.prices(4, range(4))
    assert prices.looking == pytest.approx(0.01, rel=0.1)
    assert prices.looked_up[3] - prices.verifying[3] == pytest.approx(0.09, rel=0.1)
    assert prices.rounds[0] == pytest.approx(1.1, rel=0.05)
    # What was slow is tried again in the end.
    for _ in range(300):
        costs.add(replace(seen(4, 0, 0.01), looked=True))
    prices = costs.prices(4, range(4))
    assert prices.looked_up[3] - prices.verifying[3] == pytest.approx(0.0, abs=0.001)


def test_one_slow_proposal_does_not_tell_what_proposing_takes() -> None:
    costs = Costs()
    for _ in range(5):
        costs.add(replace(seen(4, 0, 0.01), looked=True))
    costs.add(replace(seen(4, 3, 3.0), looked=True, found=True, steps=0))
    prices = costs.prices(4, range(4))
    assert prices.looked_up[3] - prices.verifying[3] < 0.02
