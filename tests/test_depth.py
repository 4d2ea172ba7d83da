"""Depth policies, on rounds whose acceptance and times are made up: no clock is read.

What is random is seeded: a test passes or fails alike each time, and none alarms falsely.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import outrider
from outrider import SamplingParams
from outrider.certify import exact_distribution
from outrider.certify.reference import distance, target_distribution
from outrider.engine.calibration import DEPTHS
from outrider.policies import AdaptiveDepth, FixedDepth, Levels, purse
from outrider.policies.costs import Costs
from outrider.policies.lines import Line
from outrider.policies.round import Round
from outrider.policies.sureness import WorthAStep, worth_a_step
from outrider.runtimes.tabular import TabularModel, mock_pair
from outrider.types.acceptance import Acceptance, Chances, expected_tokens
from outrider.types.protocols import Policy
from outrider.types.records import DraftPlan, Prefix, RoundRecord, SequenceState


@dataclass
class World:
    """Times in plain rounds of the target, and how likely drafted tokens are kept."""

    chance: Callable[[int, int], float]  # of the token at an output position and a place
    step: float = 0.13
    token: float = 0.04
    rest: float = 0.08
    noise: float = 0.1
    prefill: float = 3.0
    alone: float = 0.0  # what a forward of one token a row takes beyond the line
    slow: float = 1.0  # by how much the machine is slower than usual


def decode(
    policy: Policy,
    world: World,
    tokens: int = 256,
    rows: int = 1,
    params: SamplingParams | None = None,
    random: int = 0,
    warm: bool = True,
    prompt: int = 50,
) -> tuple[float, list[SequenceState]]:
    """Decode made-up sequences; the time they took, and their states."""
    rng = np.random.default_rng(random)
    asked = params or SamplingParams(max_tokens=tokens)
    if warm:
        calibrate(policy, world, rng)
    states = [
        SequenceState(Prefix(i, range(prompt)), prompt, asked, frozenset(), i) for i in range(rows)
    ]
    total = 0.0
    while any(state.finish_reason is None for state in states):
        live = [state for state in states if state.finish_reason is None]
        after, record = played(policy, world, live, rng)
        policy.observe(after, record)
        total += record.total_s
        fresh = {state.prefix.sequence_id: state for state in after}
        states = [fresh.get(state.prefix.sequence_id, state) for state in states]
    return total, states


def played(policy, world, states, rng):
    depths = policy.plan(states).depth.tolist()
    after, accepted, emitted = [], [], []
    for state, depth in zip(states, depths, strict=True):
        position = state.prefix.length - state.prompt_length
        kept = 0
        while kept < depth and rng.random() < world.chance(position + kept, kept):
            kept += 1
        new = [0] * (kept + 1)
        over = "length" if len(new) >= state.remaining else None
        known = state.acceptance.after(depth, kept) if policy.learns else state.acceptance
        after.append(state.advanced(new, depth, over, known, ()))
        accepted.append(kept)
        emitted.append(len(new))
    width = max(depths)
    behind = any(d and not any(s.depths[-1:]) for s, d in zip(states, depths, strict=True))
    fresh = any(state.round == 0 for state in states)

    def about(seconds: float) -> float:
        return world.slow * seconds * float(np.exp(world.noise * rng.standard_normal()))

    draft = about(world.step * (width + 0.5 * behind)) if width else 0.0
    if any(d and not any(s.depths) for s, d in zip(states, depths, strict=True)):
        draft += world.slow * world.prefill * world.step
    forward = 1 + world.token * (len(states) * (width + 1) - 1) + world.alone * (width == 0)
    target = about(forward) + fresh * world.prefill
    rest = about(world.rest)
    record = RoundRecord(
        sequence_ids=tuple(state.prefix.sequence_id for state in states),
        drafted=tuple(depths),
        depth=tuple(depths),
        accepted=tuple(accepted),
        emitted=tuple(emitted),
        bonus=tuple(k == d for k, d in zip(accepted, depths, strict=True)),
        ceiling=(None,) * len(states),
        first_ceiling=(None,) * len(states),
        draft_failed=False,
        looked_up=(False,) * len(states),
        ended=(False,) * len(states),
        entropies=((),) * len(states),
        cached=(0,) * len(states),
        draft_s=draft,
        target_s=target,
        total_s=draft + target + rest,
    )
    return after, record


def calibrate(policy, world, rng, slow=None) -> None:
    """As `outrider.engine.calibration`: what rounds cost is measured, what they keep is not looked at.

    `slow` says how slow the machine is in each round, in place of the world's.
    """
    if not isinstance(policy, AdaptiveDepth):
        return
    depths = DEPTHS
    params = SamplingParams(max_tokens=100, depths=depths)
    states = [SequenceState(Prefix(-1, range(16)), 16, params, frozenset(), 0)]
    made_up = replace(world, chance=steady(0.0))
    for number in range(len(depths)):
        now = made_up if slow is None else replace(made_up, slow=slow[number])
        states, record = played(policy, now, states, rng)
        policy.measure(states, record)


def steady(rate: float) -> Callable[[int, int], float]:
    return lambda position, place: rate


def adaptive(most: int = 16) -> AdaptiveDepth:
    return AdaptiveDepth(Levels(most))


def fixed(k: int) -> FixedDepth:
    return FixedDepth(Levels(k))


def mean_time(make, world, runs=20, **kw) -> float:
    return float(np.mean([decode(make(), world, random=i, **kw)[0] for i in range(runs)]))


def least_loss(rate: float, rows: int) -> float:
    """What drafts that keep so few cost at least, beside plain rounds, by forty texts.

    Two standard errors less than their mean: of a policy that loses what is allowed, one in forty
    is thought to lose more.
    """
    world = World(steady(rate))
    plain = mean_time(lambda: fixed(0), world, runs=10, rows=rows)
    times = [decode(adaptive(), world, random=i, rows=rows)[0] for i in range(40)]
    error = np.std(times, ddof=1) / np.sqrt(len(times))
    return 1 - plain / float(np.mean(times) - 2 * error)


def test_the_policy_of_the_readme() -> None:
    readme = (Path(__file__).parent.parent / "README.md").read_text()
    code = readme.split("### Proof")[1].split("```python\n")[3].split("```")[0]
    names: dict[str, Any] = {}
    exec(code, names)
    target, draft = mock_pair(3)
    decoder = outrider.SpeculativeDecoder(target, draft, policy=names["Sparing"]())
    params = SamplingParams(max_tokens=3)
    found = exact_distribution(decoder, (0, 1), params)
    assert distance(found, target_distribution(target, (0, 1), params)) < 1e-12
    out = decoder.generate((0, 1), SamplingParams(max_tokens=80, seed=1))
    assert out.depths[:8] == (6,) * 8
    assert set(out.depths[8:-2]) == {2}


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (None, "the policy returned a NoneType; expected a DraftPlan"),
        ([2], "the policy returned a list; expected a DraftPlan"),
        (
            DraftPlan([2]),
            r"the policy planned depth=\[2\]; expected .* an integer NumPy array \[1\]",
        ),
        (DraftPlan(np.array([2.5])), r"planned depth=array\(\[2.5\]\)"),
        (DraftPlan(np.array([2, 2])), r"planned depths of shape \(2,\)"),
        (DraftPlan(np.array([-1])), r"planned -1 tokens for row 0; expected 0..4"),
        (DraftPlan(np.array([100_000])), r"planned 100000 tokens for row 0; expected 0..4"),
    ],
)
def test_a_plan_that_cannot_be_carried_out_is_refused(plan: Any, message: str) -> None:
    """Before anything is drafted by it."""

    class Planned:
        learns = False

        def plan(self, states: Any) -> Any:
            return plan

        def observe(self, states: Any, record: Any) -> None:
            raise AssertionError("a round was done")

    decoder = outrider.SpeculativeDecoder(*mock_pair(4), policy=Planned())
    with pytest.raises(outrider.errors.InvalidConfigError, match=message):
        decoder.generate([1], SamplingParams(max_tokens=5))


@pytest.mark.parametrize("policy", ["fixed", AdaptiveDepth, object()])
def test_what_is_no_policy_is_refused(policy: object) -> None:
    with pytest.raises(outrider.errors.InvalidConfigError, match=r"policy=.*learns, plan and obs"):
        outrider.SpeculativeDecoder(*mock_pair(4), policy=policy)


@pytest.mark.parametrize("rate", [0.0, 0.05, 0.1, 0.2])
@pytest.mark.parametrize("rows", [1, 4, 16])
def test_drafts_that_fail_cost_less_than_two_percent(rate, rows) -> None:
    """Planted below: three times as many tries cost more."""
    assert least_loss(rate, rows) <= 0.02


def test_three_times_as_many_tries_would_cost_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.policies.adaptive.ONE_FIRST", 3 * purse.ONE_FIRST)
    monkeypatch.setattr(purse, "_GRANT", 3 * purse._GRANT)
    assert least_loss(0.1, 4) > 0.02


@pytest.mark.parametrize(("step", "rows"), [(0.7, 1), (0.125, 8), (0.3, 4)])
def test_drafts_that_failed_for_long_are_tried_again(step: float, rows: int) -> None:
    """Whatever a trial costs."""
    policy = adaptive()
    decode(policy, replace(World(steady(0.0)), step=step), tokens=2000, rows=rows)
    good = replace(World(steady(0.99)), step=step)
    plain = decode(fixed(0), good, tokens=2000, rows=rows)[0]
    assert decode(policy, good, tokens=2000, rows=rows, warm=False)[0] < 0.9 * plain


def test_rounds_of_seeded_rows_are_no_trials() -> None:
    policy = adaptive()
    decode(policy, World(steady(0.0)), tokens=300)
    plain = SequenceState(Prefix(0, [1]), 1, SamplingParams(max_tokens=50), frozenset(), 0)
    seeded = replace(plain, params=SamplingParams(max_tokens=50, seed=1))
    policy.plan([plain])
    policy.plan([seeded])
    assert not policy._trying


class TestWorthAStep:
    """Two rows, the first sure of itself, the second not."""

    CHANCES = Chances(tuple(np.linspace(1, 0, 11)), 0.9)
    TIMES = 1 + 0.2 * np.arange(6)
    ENTROPIES = np.array([[0.0], [4.5]])
    BOTH = np.array([True, True])

    def rule(self, *paces: float | None) -> WorthAStep:
        made = worth_a_step([self.CHANCES] * 2, paces, [self.TIMES, self.TIMES])
        assert made is not None
        return made

    def test_each_goes_by_itself(self) -> None:
        assert self.rule(2.0, 2.0)(self.ENTROPIES, self.BOTH).tolist() == [True, False]
        # .9 of the sure one's next tokens are kept, and .09 of the other's; a step takes .2.
        assert self.rule(4.6, 0.4)(self.ENTROPIES, self.BOTH).tolist() == [False, True]

    def test_a_row_without_a_pace_goes_as_deep_as_planned(self) -> None:
        assert self.rule(4.6, None)(self.ENTROPIES, self.BOTH).tolist() == [False, True]
        assert worth_a_step([self.CHANCES] * 2, [None, None], [self.TIMES] * 2) is None

    def test_a_row_that_drafts_no_further_takes_no_step(self) -> None:
        second = np.array([False, True])
        assert self.rule(2.0, None)(self.ENTROPIES, second).tolist() == [False, True]


def test_rounds_that_are_measured_tell_what_they_cost_and_nothing_else() -> None:
    """Whatever they keep, costs and plans are the same, and are not where they are observed."""
    params = SamplingParams(max_tokens=100, depths=(0, 0, 1, 4, 4, 4, 4, 4))
    asked = SequenceState(Prefix(0, [1]), 1, SamplingParams(max_tokens=200), frozenset(), 0)
    depths: dict[str, list[int]] = {"measure": [], "observe": []}
    for learn, found in depths.items():
        for rate in (0.0, 1.0):
            policy, rng = adaptive(), np.random.default_rng(0)
            states = [SequenceState(Prefix(-1, range(16)), 16, params, frozenset(), 0)]
            for _ in range(8):
                states, record = played(policy, World(steady(rate), noise=0.0), states, rng)
                getattr(policy, learn)(states, record)
            assert policy.calibrated
            found.append(int(policy.plan([asked]).depth[0]))
    assert depths["measure"][0] == depths["measure"][1] > 0
    assert depths["observe"][0] < depths["observe"][1]


@pytest.mark.parametrize("part", ["draft_s", "target_s", "other_s"])
@pytest.mark.parametrize("slow", range(len(DEPTHS)))
def test_one_slow_moment_in_calibration_does_not_turn_drafting_off(part: str, slow: int) -> None:
    policy, world = adaptive(4), World(steady(0.9), noise=0.05)
    rng = np.random.default_rng(0)
    params = SamplingParams(max_tokens=100, depths=DEPTHS)
    states = [SequenceState(Prefix(-1, range(16)), 16, params, frozenset(), 0)]
    while states[0].round < len(DEPTHS):
        number = states[0].round
        states, record = played(policy, World(steady(0.0), noise=0.05), states, rng)
        if number == slow:
            seconds = {} if part == "other_s" else {part: getattr(record, part) + 100}
            record = replace(record, total_s=record.total_s + 100, **seconds)
        policy.measure(states, record)
    plain = mean_time(lambda: fixed(0), world, runs=2)
    assert plain / decode(policy, world, warm=False)[0] > 1.2


class TestSlowStretches:
    """Of a machine that is then as it was before: what it cost is forgotten."""

    LOSING = World(steady(0.5), step=0.6, token=0.1)
    PAYING = World(steady(0.8), step=0.15, token=0.03)

    @pytest.mark.parametrize("tokens", [5, 8, 11, 14, 20, 40])
    def test_while_decoding_plainly(self, tokens: int) -> None:
        policy = AdaptiveDepth(Levels(8))
        decode(policy, self.LOSING)
        decode(policy, replace(self.LOSING, slow=3), tokens=tokens, warm=False)
        decode(policy, self.LOSING, tokens=300, warm=False)
        plain = decode(fixed(0), self.LOSING, tokens=1000)[0]
        assert plain / decode(policy, self.LOSING, tokens=1000, warm=False)[0] >= 0.97

    @pytest.mark.parametrize("tokens", [50, 80, 120, 200])
    @pytest.mark.parametrize("slow", [3, 10])
    def test_while_drafting(self, tokens: int, slow: float) -> None:
        policy = AdaptiveDepth(Levels(8))
        decode(policy, self.PAYING)
        decode(policy, replace(self.PAYING, slow=slow), tokens=tokens, warm=False)
        decode(policy, self.PAYING, tokens=600, warm=False)
        best = min(decode(fixed(k), self.PAYING, tokens=1000)[0] for k in (3, 4, 5))
        assert best / decode(policy, self.PAYING, tokens=1000, warm=False)[0] >= 0.93

    @pytest.mark.parametrize("slow", [4, 8])
    @pytest.mark.parametrize("random", range(6))
    def test_while_costs_are_first_measured(self, slow: float, random: int) -> None:
        policy = AdaptiveDepth(Levels(8))
        calibrate(policy, replace(self.PAYING, slow=slow), np.random.default_rng(random))
        decode(policy, self.PAYING, tokens=600, warm=False, random=random)
        best = min(decode(fixed(k), self.PAYING, tokens=1000)[0] for k in (3, 4, 5))
        assert best / decode(policy, self.PAYING, tokens=1000, warm=False)[0] >= 0.93

    @pytest.mark.parametrize("slow", [3, 15])
    @pytest.mark.parametrize("tokens", [1, 10, 40])
    def test_from_the_start_on(self, slow: float, tokens: int) -> None:
        """Drafts of depths that are new then must not look cheap beside plain rounds before."""
        close = replace(self.PAYING, chance=steady(0.4), token=0.1)
        for world, least in ((self.LOSING, 0.97), (close, 1.03)):
            times = []
            for random in range(8):
                policy, busy = AdaptiveDepth(Levels(16)), replace(world, slow=slow)
                calibrate(policy, busy, np.random.default_rng(random))
                decode(policy, busy, tokens=tokens, warm=False, random=random)
                times.append(decode(policy, world, tokens=256, warm=False, random=random)[0])
            plain = mean_time(lambda: fixed(0), world, tokens=256, runs=8)
            assert plain / np.mean(times) >= least
            assert plain / max(times) >= 0.95

    @pytest.mark.parametrize(
        ("rate", "all_met", "least"),
        [(0.4, True, 0.95), (0.8, True, 0.95), (0.4, False, 0.96), (0.8, False, 0.93)],
    )
    def test_in_bursts_while_costs_are_first_measured(
        self, rate: float, all_met: bool, least: float
    ) -> None:
        """Rounds of the calibration take up to tens of times as long, all of them or some."""
        world, times = World(steady(rate), step=0.15, token=0.03), []
        for random in range(16):
            policy, rng = AdaptiveDepth(Levels(16)), np.random.default_rng(random)
            noise = rng.standard_normal(99)
            met = np.convolve(np.abs(noise) if all_met else noise, 0.8 ** np.arange(9), "valid")
            calibrate(policy, world, rng, np.exp(0.7 * met if all_met else np.abs(met)))
            times.append(decode(policy, world, tokens=512, warm=False, random=random)[0])
        best = min(mean_time(lambda k=k: fixed(k), world, tokens=512, runs=4) for k in (1, 2, 4, 5))
        assert best / np.mean(times) >= least

    def test_a_try_that_met_one_is_not_the_last(self) -> None:
        policy, failing = adaptive(), World(steady(0.0))
        decode(policy, failing, tokens=500)
        for _ in range(200):
            _, states = decode(policy, failing, tokens=2, warm=False)
            if any(states[0].depths):
                break
        policy._purse.spend(300.0)
        found = decode(policy, failing, tokens=1600, warm=False)[1]
        assert any(found[0].depths)


@pytest.mark.parametrize("random", range(12))
def test_a_few_refusals_do_not_keep_drafts_short(random: int) -> None:
    policy = AdaptiveDepth(Levels(8))
    world = World(steady(0.8), step=0.15, token=0.03)
    _, states = decode(policy, world, tokens=1200, random=random)
    assert np.mean(states[0].depths[-200:]) > 2


@pytest.mark.parametrize("rounds", [2, 4, 16])
def test_short_answers_buy_no_tries(rounds: int) -> None:
    """A request that may take 512 rounds, and takes a few, pays for tries with those alone."""
    policy, rng = adaptive(), np.random.default_rng(0)
    world = World(steady(0.0), step=0.3, noise=0.0, prefill=0.5)
    calibrate(policy, world, rng)
    decode(policy, world, warm=False)
    asked, total = SamplingParams(max_tokens=512), 0.0
    for i in range(600 // rounds):
        states = [SequenceState(Prefix(i, range(50)), 50, asked, frozenset(), i)]
        for number in range(rounds):
            states, record = played(policy, world, states, rng)
            if number == rounds - 1:
                states = [replace(states[0], finish_reason="stop")]
            policy.observe(states, record)
            total += record.total_s - world.prefill * (number == 0)
    assert 600 * (1 + world.rest) / total >= 0.98


def test_a_row_tries_again_beside_a_mate_that_drafts() -> None:
    """The mate's steps are taken in any case, and its tokens are its own."""
    policy, rng = adaptive(), np.random.default_rng(0)
    world = World(lambda position, _: 0.95 * (position >= 150))
    calibrate(policy, world, rng)
    asked = SamplingParams(max_tokens=4000)
    states = [
        SequenceState(Prefix(0, range(50)), 50, asked, frozenset(), 0),
        # Of a thousand tokens, all of whose drafts are kept.
        SequenceState(
            Prefix(1, range(1050)), 50, replace(asked, max_tokens=20000, seed=1), frozenset(), 1
        ),
    ]
    while states[0].finish_reason is None and states[0].round < 1200:
        states, record = played(policy, world, states, rng)
        policy.observe(states, record)
    assert np.mean(np.array(states[0].depths[-300:]) > 0) > 0.5


def test_where_nothing_can_be_drafted_nothing_is_tried() -> None:
    _, states = decode(AdaptiveDepth(Levels(0)), World(steady(0.0)), tokens=1200)
    assert not any(states[0].depths)


def test_mates_that_draft_do_not_keep_others_from_it() -> None:
    """Where drafting gains little, a plain round is looked for, which mates do not allow."""
    policy, world = adaptive(), World(steady(0.4), step=0.1, token=0.05)
    shared = SamplingParams(max_tokens=400)
    seeded = replace(shared, max_tokens=4000, seed=1)
    rng = np.random.default_rng(0)
    calibrate(policy, world, rng)
    states = [
        SequenceState(Prefix(i, range(50)), 50, asked, frozenset(), i)
        for i, asked in enumerate((shared, seeded))
    ]
    depths = []
    while states[0].finish_reason is None:
        states, record = played(policy, world, states, rng)
        policy.observe(states, record)
        depths.append(record.depth[0])
    assert np.mean(np.array(depths[100:]) > 0) > 0.5


def test_a_clock_that_stands_still_or_runs_back_is_got_over() -> None:
    line = Line()
    for seconds in (0.0, -1e-6, 0.0, 0.0):
        line.add(1, seconds)
    policy = adaptive()
    still = World(steady(0.5), 0.0, 0.0, 0.0)
    states = [SequenceState(Prefix(0, [1]), 1, SamplingParams(max_tokens=50), frozenset(), 0)]
    rng = np.random.default_rng(0)
    for _ in range(8):
        states, record = played(policy, still, states, rng)
        policy.observe(states, replace(record, draft_s=0.0, target_s=0.0, total_s=0.0))
    # A round of no time is no division by it.
    assert policy.plan(states).depth[0] <= 16
    for _ in range(100):
        line.add(1, 5.0)
    assert line.at(1) == pytest.approx(5, rel=0.01)


@pytest.mark.parametrize(("before", "least"), [(0.7, 0.97), (0.9, 0.96)])
def test_a_text_on_which_drafts_fail_after_one_on_which_they_did_not(before, least) -> None:
    """What others kept is soon outweighed: 256 tokens lose a few percent, once."""
    world, times, plain = World(steady(0.0)), [], []
    for i in range(8):
        policy = adaptive()
        decode(policy, World(steady(before)), tokens=512, random=100 + i)
        times.append(decode(policy, world, random=i, warm=False)[0])
        plain.append(decode(fixed(0), world, random=i, warm=False)[0])
    assert np.mean(plain) / np.mean(times) >= least


def test_a_draft_dearer_than_the_target_is_never_tried() -> None:
    _, states = decode(adaptive(), World(steady(1.0), step=2.0))
    assert not any(states[0].depths)


@pytest.mark.parametrize("rate", [0.3, 0.5, 0.7, 0.9])
@pytest.mark.parametrize("rows", [1, 4])
def test_the_depth_comes_within_five_percent_of_the_best_fixed_one(rate, rows) -> None:
    world = World(steady(rate))
    fixed_times = [mean_time(lambda k=k: fixed(k), world, runs=8, rows=rows) for k in range(13)]
    policy = adaptive()
    times = [decode(policy, world, random=i, rows=rows, warm=i == 0)[0] for i in range(10)]
    assert min(fixed_times) / np.mean(times[2:]) >= 0.95


def test_a_depth_that_never_changes_does_not_come_that_close() -> None:
    """What the tests above measure can fail: four is far off at both ends."""
    for rate, best in ((0.1, 0), (0.9, 8)):
        world = World(steady(rate))
        times = [mean_time(lambda k=k: fixed(k), world, runs=8) for k in (best, 4)]
        assert times[0] / times[1] < 0.95


def test_drafting_stops_when_it_stops_paying_and_starts_again() -> None:
    tried: list[int] = []

    def turns(position: int, place: int) -> float:
        if place == 0:
            tried.append(position)
        return 0.02 if 100 <= position < 600 else 0.95

    decode(adaptive(), World(turns), tokens=1000)
    late, back = (sum(low <= position < low + 200 for position in tried) for low in (400, 700))
    assert late <= 20
    # Each round covers several tokens once drafts are kept again.
    assert 20 <= back <= 120


def test_a_long_prompt_is_not_read_by_the_drafter_for_a_few_tokens() -> None:
    policy = adaptive()
    world = World(steady(0.9), token=0.02)
    decode(policy, world, rows=2)
    short, long = (
        SequenceState(
            Prefix(9, range(length)), length, SamplingParams(max_tokens=9), frozenset(), 0
        )
        for length in (4, 4000)
    )
    depths = policy.plan([short, long]).depth.tolist()
    assert depths[0] > 0
    assert depths[1] == 0


@pytest.mark.parametrize("tokens", [256, 1024])
@pytest.mark.parametrize("prefill", [30, 100, 200, 300])
def test_a_drafter_of_which_nothing_is_known_reads_a_long_prompt_for_little(
    prefill: int, tokens: int
) -> None:
    """Its drafts are always wrong; what the target takes for the prompt is left aside.

    An allowance by what drafting is hoped to save loses up to 13% here.
    """
    world = World(steady(0.0), prefill=prefill)
    asked = {"runs": 3, "tokens": tokens, "prompt": int(prefill / world.token)}
    plain = mean_time(lambda: fixed(0), world, **asked) - prefill
    assert plain / (mean_time(adaptive, world, **asked) - prefill) >= 0.98


def test_long_prompts_are_read_once_enough_was_decoded_or_drafts_were_kept() -> None:
    policy, world = adaptive(), World(steady(0.9), prefill=100, noise=0.0)
    calibrate(policy, world, np.random.default_rng(0))
    drafted = []
    for i in range(8):
        _, states = decode(policy, world, random=i, warm=False, prompt=2500)
        drafted.append(any(states[0].depths))
    first = drafted.index(True)
    assert first >= 2
    # From then on it is known what drafts are worth.
    assert all(drafted[first:])


def test_what_reading_a_prompt_costs_is_learnt_from_prompts() -> None:
    """Which many a machine reads for far less a token than it verifies a few drafted ones."""
    world = World(steady(0.6), token=0.1, prefill=12)
    asked = {"runs": 5, "prompt": 600}
    assert world.step * (1 + world.token * 600) > 3 > world.step * world.prefill
    best = min(mean_time(lambda k=k: fixed(k), world, **asked) for k in range(1, 5))
    assert best / mean_time(adaptive, world, **asked) >= 0.95


def test_a_trial_is_not_made_where_reading_for_it_takes_too_long() -> None:
    policy, world = adaptive(), World(steady(0.0), prefill=100, noise=0.0)
    decode(policy, replace(world, prefill=2))
    state = SequenceState(Prefix(9, [0] * 2500), 2500, SamplingParams(), frozenset(), 0)
    state = replace(state, params=SamplingParams(max_tokens=500))
    tried = []
    for _ in range(400):
        depth = int(policy.plan([state]).depth[0])
        tried.append(depth)
        after, record = played(policy, world, [state], np.random.default_rng(0))
        policy.observe(after, record)
        state = replace(after[0], acceptance=Acceptance())
    assert not any(tried)
    short = replace(state, prefix=Prefix(10, [0] * 60), prompt_length=50)
    assert policy.plan([short]).depth.tolist() == [1]


def test_a_try_that_nothing_is_read_for_is_no_exception() -> None:
    """That nothing is drafted stands as it does elsewhere, and is not decided every round."""
    policy, world = adaptive(), World(steady(0.0), prefill=100, noise=0.0)
    decode(policy, replace(world, prefill=2))
    params = SamplingParams(max_tokens=500)
    states = [SequenceState(Prefix(9, [0] * 2500), 2500, params, frozenset(), 0)]
    decided = 0
    for _ in range(400):
        decided += policy._standing.choices(states) is None
        states, record = played(policy, world, states, np.random.default_rng(0))
        policy.observe(states, record)
    assert decided < 100


def test_the_last_token_is_never_drafted_and_replays_are_followed() -> None:
    policy = adaptive()
    decode(policy, World(steady(0.95)))
    params = SamplingParams(max_tokens=3, depths=(1, 2))
    state = SequenceState(Prefix(0, [1]), 1, params, frozenset(), 0)
    assert policy.plan([state]).depth.tolist() == [1]
    last = SequenceState(Prefix(0, [1]), 1, SamplingParams(max_tokens=1), frozenset(), 0)
    assert policy.plan([last]).depth.tolist() == [0]


def test_a_seeded_request_is_planned_by_its_own_history_alone() -> None:
    fresh, learnt = adaptive(), adaptive()
    decode(learnt, World(steady(0.9)))
    asked = SamplingParams(max_tokens=200, seed=1)
    found = []
    for policy in (fresh, learnt):
        state = SequenceState(Prefix(0, [1]), 1, asked, frozenset(), 0)
        depths = []
        for accepted in (16, 3, 0, 0, 1, 0, 0, 0, 0, 0):
            mates = [SequenceState(Prefix(7, [1]), 1, SamplingParams(), frozenset(), 0)]
            depth = int(policy.plan([*mates, state]).depth[1])
            kept = min(depth, accepted)
            known = state.acceptance.after(depth, kept)
            state = state.advanced([0] * (kept + 1), depth, None, known, ())
            depths.append(depth)
        found.append(depths)
    assert found[0] == found[1]
    assert len(set(found[0])) > 2
    shared = SequenceState(Prefix(0, [1]), 1, SamplingParams(max_tokens=200), frozenset(), 0)
    assert fresh.plan([shared]).depth.tolist() != learnt.plan([shared]).depth.tolist()


@pytest.mark.parametrize("ends_early", [False, True])
def test_one_token_is_drafted_until_one_was_kept(ends_early: bool) -> None:
    policy, rng = AdaptiveDepth(Levels(8), ends_early=ends_early), np.random.default_rng(0)
    never, always = World(steady(0.0), noise=0.0), World(steady(1.0), noise=0.0)
    calibrate(policy, always, rng)
    params = SamplingParams(max_tokens=99)
    states = [SequenceState(Prefix(0, range(9)), 9, params, frozenset(), 0)]
    for world in (never, never, always):
        assert policy.plan(states).depth.tolist() == [1]
        states, record = played(policy, world, states, rng)
        policy.observe(states, record)
    assert policy.plan(states).deepest > 1


def test_what_a_row_itself_has_kept_is_enough_to_draft_deeper() -> None:
    """Enumeration teaches a policy nothing but by the rows' own states."""
    policy, rng = adaptive(), np.random.default_rng(0)
    calibrate(policy, World(steady(1.0), noise=0.0), rng)
    start = SequenceState(Prefix(0, range(9)), 9, SamplingParams(max_tokens=99), frozenset(), 0)
    kept = start.advanced([0, 0], 1, None, start.acceptance.after(1, 1), ())
    assert policy.plan([start]).deepest == 1
    assert policy.plan([kept]).deepest > 1


def test_a_draft_whose_steps_are_no_tokens_begins_as_deep_as_expected_to_pay() -> None:
    policy = AdaptiveDepth(Levels(8), one_first=False)
    calibrate(policy, World(steady(1.0), noise=0.0), np.random.default_rng(0))
    start = SequenceState(Prefix(0, range(9)), 9, SamplingParams(max_tokens=99), frozenset(), 0)
    assert policy.plan([start]).deepest > 1


def test_a_seeded_request_that_stopped_drafting_tries_again_now_and_then() -> None:
    policy = adaptive()
    state = SequenceState(Prefix(0, [1]), 1, SamplingParams(max_tokens=400, seed=1), frozenset(), 0)
    for _ in range(150):
        depth = int(policy.plan([state]).depth[0])
        state = state.advanced([0], depth, None, state.acceptance.after(depth, 0), ())
    tried = np.flatnonzero(state.depths[50:])
    assert 3 <= len(tried) <= 10


def test_what_reached_a_token_is_counted_and_not_what_was_cut_short() -> None:
    known = Acceptance().after(3, 3).after(3, 1).after(0, 0).after(1, 1)
    assert known.reached == pytest.approx((1 + 0.99 * (1 + 0.99), 0.99 * (1 + 0.99), 0.99**2))
    assert known.kept == pytest.approx((1 + 0.99 * (1 + 0.99), 0.99**2, 0.99**2))
    assert expected_tokens([0.5, 0.5]) == [1.0, 1.5, 1.75]


def distribution(prefix: tuple[int, ...]) -> np.ndarray:
    weights = np.array([1.0 + (len(prefix) + i * prefix[-1]) % 3 for i in range(3)])
    return weights / weights.sum()


def draft_distribution(prefix: tuple[int, ...]) -> np.ndarray:
    weights = np.array([2.0, 1.0, 1.0 + prefix[-1]])
    return weights / weights.sum()


@pytest.mark.parametrize("verification", ["block", "token"])
@pytest.mark.parametrize("tree_shape", [None, (2, 1, 1)])
@pytest.mark.parametrize("seed", [None, 3])
def test_the_distribution_is_exact_whatever_depth_history_asks_for(
    verification, tree_shape, seed
) -> None:
    config = outrider.SpeculativeConfig(
        num_speculative_tokens=3,
        verification=verification,
        depth="adaptive",
        cost_ratio=0.4,
        tree_shape=tree_shape,
    )
    params = SamplingParams(max_tokens=4, seed=seed)
    decoder = outrider.SpeculativeDecoder(
        TabularModel(distribution, 3), TabularModel(draft_distribution, 3), config=config
    )
    plain = outrider.SpeculativeDecoder(TabularModel(distribution, 3))
    found, expected = (exact_distribution(made, [1], params) for made in (decoder, plain))
    assert max(abs(found[output] - expected[output]) for output in expected) < 1e-12


@pytest.mark.parametrize("cost_ratio", [0.3, 0.4, 0.6])
def test_depths_that_depend_on_the_batch_can_be_enumerated(cost_ratio) -> None:
    """Rows share a depth, and a branch has other mates each time it is walked, unless alone."""
    config = outrider.SpeculativeConfig(
        num_speculative_tokens=3, depth="adaptive", cost_ratio=cost_ratio
    )
    decoder = outrider.SpeculativeDecoder(
        TabularModel(distribution, 3), TabularModel(draft_distribution, 3), config=config
    )
    plain = outrider.SpeculativeDecoder(TabularModel(distribution, 3))
    found, expected = (
        exact_distribution(made, [1], SamplingParams(max_tokens=5)) for made in (decoder, plain)
    )
    assert max(abs(found[output] - expected[output]) for output in expected) < 1e-12


def test_the_depth_of_a_seeded_request_follows_what_was_kept() -> None:
    """So that the test above walks more than one depth."""
    config = outrider.SpeculativeConfig(num_speculative_tokens=3, depth="adaptive", cost_ratio=0.4)
    decoder = outrider.SpeculativeDecoder(
        TabularModel(distribution, 3), TabularModel(draft_distribution, 3), config=config
    )
    params = [SamplingParams(max_tokens=8, seed=seed) for seed in range(20)]
    depths = {output.depths[1] for output in decoder.generate([[1]] * 20, params)}
    assert len(depths) > 1


def looking(most: int = 8) -> AdaptiveDepth:
    return AdaptiveDepth(Levels(most), looks_up=True)


def test_looked_up_tokens_have_to_bring_what_the_best_plan_without_them_would() -> None:
    policy = looking()
    # Costs are measured, and drafts of the model hardly ever kept.
    decode(policy, World(steady(0.02)), tokens=300)
    # Nor is one tried.
    policy._purse.spend(2.0)
    states = [
        SequenceState(Prefix(i, [1]), 1, SamplingParams(max_tokens=40), frozenset(), 0)
        for i in range(2)
    ]
    plan = policy.plan(states)
    assert plan.depth.tolist() == [8, 8]
    assert plan.steps is not None
    assert plan.steps.tolist() == [0, 0]
    assert plan.worth is not None
    # A plain round emits one token, and a forward of one token more costs two of 25 for two rows.
    assert plan.worth.plain == pytest.approx([1, 1], abs=0.01)
    assert plan.worth.token == pytest.approx([0.04 * 2, 0.04 * 2], abs=0.04)


def test_where_the_model_pays_looked_up_tokens_have_to_bring_more() -> None:
    policy = looking()
    decode(policy, World(steady(0.9)), tokens=300)
    state = SequenceState(Prefix(0, [1]), 1, SamplingParams(max_tokens=40), frozenset(), 0)
    plan = policy.plan([state])
    assert plan.steps is not None
    assert plan.worth is not None
    assert plan.steps[0] >= 4
    assert plan.worth.plain[0] > 1.8


def test_seeded_rows_take_what_is_looked_up_by_the_cost_ratio() -> None:
    params = SamplingParams(max_tokens=40, seed=1)
    state = SequenceState(Prefix(0, [1]), 1, params, frozenset(), 0)
    fresh, learnt = looking(), looking()
    decode(learnt, World(steady(0.1)))
    for policy in (fresh, learnt):
        plan = policy.plan([state])
        assert plan.worth is not None
        assert plan.worth.plain == pytest.approx(fresh.plan([state]).worth.plain)
        assert plan.worth.token.tolist() == [0]


def test_replayed_rows_take_whatever_is_looked_up() -> None:
    """Once a step of a model was measured, which a calibration replays."""
    params = SamplingParams(max_tokens=40, depths=(3,))
    state = SequenceState(Prefix(0, [1]), 1, params, frozenset(), 0)
    policy = looking()
    for expected in (np.inf, 0):
        plan = policy.plan([state])
        assert plan.depth.tolist() == [3]
        assert plan.worth is not None
        assert plan.worth.plain.tolist() == [expected]
        decode(policy, World(steady(0.5)))


def test_rounds_of_looked_up_tokens_say_nothing_of_the_model() -> None:
    policy = looking()
    state = SequenceState(Prefix(0, [1]), 1, SamplingParams(max_tokens=90), frozenset(), 0)
    before = policy.plan([state])
    for _ in range(5):
        state = state.advanced([0], 8, None, state.acceptance, ())
        record = RoundRecord(
            sequence_ids=(0,),
            drafted=(8,),
            depth=(8,),
            accepted=(0,),
            emitted=(1,),
            bonus=(False,),
            ceiling=(None,),
            first_ceiling=(None,),
            draft_failed=False,
            looked_up=(True,),
            ended=(False,),
            entropies=((),),
            cached=(0,),
            draft_s=0.0,
            target_s=1.3,
            total_s=1.4,
        )
        policy.observe([state], record)
    assert policy.plan([state]).steps.tolist() == before.steps.tolist()


def test_a_failed_round_counts_against_the_rows_that_were_to_draft_alone() -> None:
    """A row that was planned to draft nothing says nothing of what drafts are worth."""
    policy = adaptive(4)
    asked = SequenceState(
        Prefix(0, [1]), 1, SamplingParams(max_tokens=90, depths=(0,) * 9), frozenset(), 0
    )
    shared = SequenceState(Prefix(1, [1]), 1, SamplingParams(max_tokens=90), frozenset(), 0)
    both = [asked, shared]
    assert policy.plan(both).depth.tolist()[0] == 0 < policy.plan(both).depth.tolist()[1]
    after, record = played(policy, World(steady(0.5)), both, np.random.default_rng(0))
    none = (0,) * 2
    failed = replace(record, drafted=none, depth=none, accepted=none, draft_failed=True)
    policy.observe(after, failed)
    assert policy._shown.acceptance == Acceptance().after(1, 0, weight=2**-0.5)
    assert policy.plan([asked]).depth.tolist() == [0]
    alone = {
        name: getattr(failed, name)[:1] for name in ("sequence_ids", "depth", "accepted", "emitted")
    }
    policy.observe(after[:1], replace(failed, **alone))
    assert policy._shown.acceptance == Acceptance().after(1, 0, weight=2**-0.5)


@pytest.mark.parametrize(("reason", "counts"), [("length", True), ("stop", False), (None, True)])
def test_the_last_round_tells_what_was_kept_unless_a_stop_cut_it(reason, counts) -> None:
    """The shorter outputs are, the more rounds are their last, and those have kept the most."""
    policy = adaptive()
    before = policy._shown.acceptance = Acceptance().after(1, 1)
    start = SequenceState(Prefix(0, range(9)), 9, SamplingParams(max_tokens=4), frozenset(), 0)
    (state,), record = played(policy, World(steady(1.0)), [start], np.random.default_rng(0))
    assert record.accepted == (3,)
    policy.observe([replace(state, finish_reason=reason)], record)
    assert policy._shown.acceptance == (before.after(3, 3) if counts else before)


def test_looking_tokens_up_is_counted_where_no_step_is_taken() -> None:
    """In vain before a plain round, or for use; what a model's drafts take is without it."""

    def seen(width: int, steps: int, draft_s: float, read: int = 0) -> Round:
        done = Round(2, width, steps, read > 0, read, 2, 0, True, 0, draft_s, 1.0, 0.25)
        return replace(done, found=width > steps)

    costs = Costs()
    costs.add(seen(0, 0, 9.0, read=20))
    for _ in range(3):
        costs.add(seen(0, 0, 0.5))
        costs.add(seen(3, 0, 0.5))
        costs.add(seen(3, 3, 2.0))
    assert costs.prices(2, [0]).looking == pytest.approx(0.5)
    assert costs.prices(2, [0]).rounds[0] == pytest.approx(1.0 + 0.25)
    assert costs.prices(2, range(4)).looked_up[3] == pytest.approx(1.0 + 0.25)
    assert costs.prices(2, range(4)).rounds[3] == pytest.approx(1.0 + 1.5 + 0.25)


def test_drafts_that_take_as_long_however_deep_are_measured_as_such() -> None:
    line = Line(0.5)
    for _ in range(5):
        for steps in (2, 4, 8):
            line.add(steps, 1.0)
    assert line.at(1) == pytest.approx(1)
    assert line.at(16) == pytest.approx(1)
    # While one depth alone is measured, half of each step's share is thought to grow with it.
    for _ in range(300):
        line.add(4, 1.0)
    assert line.at(8) == pytest.approx(1.5, rel=0.001)


def test_reading_is_what_it_took_the_drafter_most_often() -> None:
    """Prompts that the target found in its cache say little, and a slow moment nothing."""

    def seen(caught_up: int, draft_s: float, read: int, target_s: float) -> Round:
        missing = max(caught_up, 1)
        return Round(1, 1, 1, read > 0, read, missing, 0, True, caught_up, draft_s, target_s, 0.1)

    costs = Costs()
    costs.add(Round(1, 0, 0, False, 0, 0, 0, True, 0, 0.0, 1.0, 0.1))
    costs.add(seen(0, 0.2, 0, 1.1))
    for _ in range(3):
        costs.add(seen(0, 0.2, 1000, 10.0))
    assert costs.prices(1, [0, 1]).reading(1000) == pytest.approx(0.2 * 10, rel=0.2)
    costs.add(seen(0, 0.2, 1000, 1.0))
    assert costs.prices(1, [0, 1]).reading(1000) == pytest.approx(0.2 * 10, rel=0.2)
    for reading_s in (4.0, 400.0, 4.0):
        costs.add(seen(1000, 0.2 + reading_s, 0, 1.1))
    assert costs.prices(1, [0, 1]).reading(1000) == pytest.approx(4.0, rel=0.1)
    assert costs.prices(1, [0, 1]).reading(1) == pytest.approx(0.2, rel=0.1)


@pytest.mark.parametrize("alone", [-0.35, 0.4])
def test_forwards_of_one_token_may_cost_otherwise_than_wider_ones(alone: float) -> None:
    """Drafting pays where they cost more than the others lead to expect, and not where less."""
    world = World(steady(0.35), step=0.25, token=0.1, alone=alone)
    plain = mean_time(lambda: fixed(0), world, runs=8)
    best = min(plain, mean_time(lambda: fixed(1), world, runs=8))
    assert (best < plain) == (alone > 0)
    assert best / mean_time(adaptive, world, runs=8) >= 0.95
