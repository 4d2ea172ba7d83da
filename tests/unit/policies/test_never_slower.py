"""What an adaptive depth loses at worst, and that it finds a drafter again; simulated time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest

from outrider.policies import AdaptiveDepth, FixedDepth, Policy, Shape
from outrider.policies.account import LAST_WAIT, Account
from outrider.policies.costs import CLIP
from outrider.types.records import MODEL
from tests.support.simulated import Run, World, decode, play, sequences

pytestmark = pytest.mark.slow

HOPELESS = {
    "never right": World(acceptance=0.0),
    "never right, and dear": World(acceptance=0.0, step=0.5),
    "twice the target's cost": World(acceptance=0.7, step=2.0, token=0.001),
    "ten times the target's cost, and never right": World(acceptance=0.0, step=10.0),
    "about even": World(acceptance=0.25, step=0.25),
}
CASES = [
    ("never right", 1, 4096),
    ("never right", 16, 384),
    ("never right, and dear", 4, 512),
    ("twice the target's cost", 1, 4096),
    ("twice the target's cost", 4, 512),
    ("twice the target's cost", 16, 384),
    ("ten times the target's cost, and never right", 1, 512),
    ("about even", 4, 512),
]


def adaptive(**more: Any) -> Policy:
    return AdaptiveDepth(Shape(16), **more)


def losses(run: Run, world: World, rows: int) -> np.ndarray:
    """Rounds lost beside plain decoding of as many tokens, beyond what is allowed, at each round.

    Allowed are 4 plain rounds and 2% of the time so far.
    """
    spent = np.cumsum(run.seconds) / world.plain_s - world.prefill
    return spent - np.cumsum(run.emitted) / rows - (4 + 0.02 * spent)


def unexpected(world: World, rows: int) -> float:
    """Plain rounds that are lost before the cost of a draft is known.

    Two rounds draft; and one more where that cost is out of proportion, which is believed the
    second time.
    """
    drafted = world.step + rows * world.token
    return (2 + (drafted > CLIP)) * drafted


@pytest.mark.parametrize(("name", "rows", "rounds"), CASES)
def test_a_drafter_that_cannot_pay_costs_two_percent_and_four_rounds_at_most(
    name: str, rows: int, rounds: int
) -> None:
    world = HOPELESS[name]
    unknown = max(0.0, unexpected(world, rows) - 4)
    run = decode(adaptive(), world, sequences(rows, 10**6), rounds=rounds)
    assert losses(run, world, rows).max() <= unknown
    assert any(run.depths)


def test_noisy_times_change_nothing_about_that() -> None:
    world = World(acceptance=0.0, step=0.5, noise=0.1)
    run = decode(adaptive(), world, sequences(4, 10**6), rounds=1024)
    assert losses(run, world, 4).max() <= 0


def forgetful(knowledge: Any) -> Any:
    """Strike out all losses."""
    return replace(knowledge, account=replace(knowledge.account, loss=0.0))


def unforgiving(knowledge: Any) -> Any:
    """Never let a loss be repaid."""
    lost = knowledge.account.loss > 2 * knowledge.sizes[0].plain
    account = Account(seconds=-1e9, loss=1.0) if lost else knowledge.account
    return replace(knowledge, account=account)


def observed(policy: Policy, change: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda *arguments: change(policy.observe(*arguments))


def test_the_bound_notices_an_account_that_forgets() -> None:
    world = World(acceptance=0.0, step=2.0)
    policy = adaptive()
    faulty = observed(policy, forgetful)
    run = decode(policy, world, sequences(1, 10**6), rounds=256, observe=faulty)
    assert losses(run, world, 1).max() > 1


def test_the_bound_notices_a_fixed_depth() -> None:
    world = HOPELESS["never right"]
    run = decode(FixedDepth(Shape(4)), world, sequences(1, 10**6), rounds=64)
    assert losses(run, world, 1).max() > 10


LATE = World(acceptance=lambda number: 0.0 if number < 500 else 0.9)


def found(policy: Policy, observe: Callable[..., Any] | None = None, rows: int = 1) -> bool:
    """Whether the last of many rounds draft, most of them deep."""
    run = decode(policy, LATE, sequences(rows, 10**6), rounds=1600, observe=observe)
    return float(np.mean(run.depths[-100:])) > 3


@pytest.mark.parametrize("rows", [1, 4])
def test_a_drafter_that_becomes_good_after_500_bad_rounds_is_found(rows: int) -> None:
    assert found(adaptive(), rows=rows)


@pytest.mark.parametrize("rows", [1, 4])
def test_it_is_found_where_asking_for_a_plan_costs_more_than_may_be_lost(rows: int) -> None:
    """As in rounds of a small model: it must not keep a loss from being repaid."""
    world = replace(LATE, asking=0.05)
    run = decode(adaptive(), world, sequences(rows, 10**6), rounds=1600)
    assert float(np.mean(run.depths[-100:])) > 3


@pytest.mark.parametrize("number", [1, 2])
def test_a_round_that_hangs_before_costs_are_known_ends_no_draft(number: int) -> None:
    policy, world = adaptive(), World(acceptance=0.8, asking=0.05)
    observe = hanging(policy, number)
    run = decode(policy, world, sequences(1, 10**6), rounds=800, observe=observe)
    assert np.mean(run.depths[-100:]) > 2


def test_that_notices_an_account_that_is_never_repaid() -> None:
    policy = adaptive()
    assert not found(policy, observed(policy, unforgiving))


def test_a_drafter_that_becomes_useless_loses_little_more_than_it_may() -> None:
    world = World(acceptance=lambda number: 0.9 if number < 500 else 0.0)
    run = decode(adaptive(), world, sequences(1, 10**6), rounds=1500)
    late = np.array(run.seconds[500:]) / world.plain_s
    # What was gained before makes up for as many rounds again as may be lost.
    assert late.sum() - len(late) <= 8 + 0.02 * sum(run.seconds) / world.plain_s


def test_a_drafter_that_was_found_again_is_given_up_again() -> None:
    world = World(acceptance=lambda number: 0.9 * (500 <= number < 3000))
    run = decode(adaptive(), world, sequences(1, 10**6), rounds=5000)
    assert np.mean(run.depths[2000:3000]) > 3
    assert sum(depth > 0 for depth in run.depths[-500:]) < 25


def test_while_drafting_one_round_in_64_is_plain() -> None:
    run = decode(adaptive(), World(acceptance=0.8), sequences(1, 10**6), rounds=400)
    plain = [number for number, depth in enumerate(run.depths) if not depth]
    assert len(plain) <= 2 + 400 // 64
    assert np.diff(plain)[-3:].tolist() == [64, 64, 64]


def test_probes_become_rare() -> None:
    run = decode(adaptive(), World(acceptance=0.0), sequences(1, 10**6), rounds=3000)
    late = run.depths[1500:]
    assert 0 < sum(depth > 0 for depth in late) <= 2 * (1 + 1500 // 512)
    assert max(late) == 1


def test_rounds_that_read_a_prompt_spoil_no_time() -> None:
    world = World(acceptance=0.8, prefill=100.0)
    policy = adaptive()
    knowledge = policy.start()
    for first in range(20):
        knowledge = decode(
            policy, world, sequences(1, 40, first=first), knowledge=knowledge
        ).knowledge
    costs = knowledge.sizes[0]
    assert costs.plain == pytest.approx(world.plain_s)
    assert costs.seconds(4, 3) == pytest.approx(world.plain_s * 1.435, rel=0.05)


@pytest.mark.parametrize("found", [0, 8])
def test_a_draft_model_reads_a_prompt_while_the_target_does(found: int) -> None:
    """Whatever can be looked up in the first round: later the draft alone would take the time."""
    world = World(acceptance=0.8, late_prefill=8.0, lookup=lambda n: (0 if n else found, 0.9))
    run = decode(adaptive(looks_up=True), world, sequences(1, 100))
    assert run.depths[0] == 1
    assert run.records[0].sources == (MODEL,)
    assert np.mean(run.depths[5:]) > 2


@pytest.mark.parametrize("acceptance", [0.0, 0.7])
@pytest.mark.parametrize("looks_up", [False, True])
def test_times_may_be_anything(acceptance: float, looks_up: bool) -> None:
    """Rounds of a busy machine, from a tenth to ten times their length; columns for nothing."""
    for rows in (1, 4):
        world = World(
            acceptance=acceptance, token=0.0, step=0.0, noise=1.2, lookup=lambda n: (n % 5, 0.1)
        )
        policy = AdaptiveDepth(Shape(16), looks_up=looks_up)
        run = decode(policy, world, sequences(rows, 10**4), rounds=400, seed=rows)
        assert len(run.depths) == 400


def test_batches_of_many_sizes_share_what_may_be_lost() -> None:
    policy, world = adaptive(), HOPELESS["twice the target's cost"]
    knowledge, lost = policy.start(), 0.0
    for number in range(200):
        rows = 1 << number % 5
        run = decode(
            policy, world, sequences(rows, 10**6), rounds=8, seed=number, knowledge=knowledge
        )
        knowledge, spent = run.knowledge, sum(run.seconds) / world.plain_s - world.prefill
        lost += 0.98 * spent - sum(run.emitted) / rows
        assert lost <= 4


def closed_loop(
    policy: Policy, world: World, rows: int, tokens: Callable[[int], int], rounds: int
) -> tuple[float, float, int]:
    """Decode requests of so many tokens, by their number; where one ends the next enters.

    Returns:
        The most plain rounds lost at any time beyond 2% of the time, beside plain decoding that
        prefills as many prompts; the plain rounds of all; and how many rounds drafted.
    """
    numbers, clock = count(rows), np.random.default_rng(0)
    states = [sequences(1, tokens(number), number)[0] for number in range(rows)]
    knowledge, lost, spent, most, drafted = policy.start(), 0.0, 0.0, 0.0, 0
    for number in range(rounds):
        plan = policy.plan(knowledge, states)
        prefill = world.prefill * any(state.round == 0 for state in states)
        states, record, seconds = play(policy, world, states, plan, number, 0, clock)
        knowledge = policy.observe(knowledge, states, record)
        spent += seconds / world.plain_s
        lost += seconds / world.plain_s - prefill - sum(record.emitted) / rows
        most = max(most, lost - 0.02 * spent)
        drafted += any(record.depth)
        ended = [state.finish_reason is not None for state in states]
        states = [
            sequences(1, tokens(first), first)[0] if over else state
            for state, over in zip(states, ended, strict=True)
            for first in ([next(numbers)] if over else [0])
        ]
    return most, spent, drafted


def entering(world: World) -> float:
    """Plain rounds that 8 rows may lose besides: their prompts, and rounds of unknown cost."""
    return 8 * world.draft_prefill + unexpected(world, 8)


@pytest.mark.parametrize("name", HOPELESS)
@pytest.mark.parametrize("tokens", [1, 3, 10, 40])
def test_nothing_more_is_lost_where_answers_are_short(name: str, tokens: int) -> None:
    world = replace(HOPELESS[name], draft_prefill=0.3)
    most, _, _ = closed_loop(adaptive(), world, 8, lambda n: tokens + n % 3, 800)
    assert most <= 4 + entering(world)


@pytest.mark.parametrize(
    ("prefill", "draft_prefill", "rows", "tokens"), [(0, 1, 8, 3), (1, 2, 8, 3), (0, 5, 1, 12)]
)
@pytest.mark.parametrize("rounds", [200, 800])
@pytest.mark.parametrize("looks_up", [False, True])
def test_prompts_and_look_ups_are_charged_where_nearly_every_round_has_a_new_request(
    prefill: float, draft_prefill: float, rows: int, tokens: int, rounds: int, looks_up: bool
) -> None:
    world = World(
        acceptance=0.5,
        step=0.2,
        token=0.01,
        lookup=lambda _: (2, 0.9),
        prefill=prefill,
        draft_prefill=draft_prefill,
    )
    policy = adaptive(looks_up=looks_up)
    most, spent, _ = closed_loop(policy, world, rows, lambda n: tokens + n % 2, rounds)
    # Prompts of the first round are not charged. Of verification few rounds tell the cost.
    first = rows * draft_prefill + 2 * (world.step + rows * world.token)
    assert most <= 4 + rows * draft_prefill + first + 0.01 * spent


def test_kept_tokens_are_not_credited_with_prefill() -> None:
    """Where most rounds prefill a prompt, a token that is kept saves no prefill."""
    world = World(acceptance=0.3, step=0.1, draft_prefill=0.3)
    most, _, _ = closed_loop(adaptive(), world, 8, lambda n: 8 + n % 5, 800)
    assert most <= 4 + entering(world)


@pytest.mark.parametrize("tokens", [10, 40])
def test_drafts_pay_where_answers_are_short(tokens: int) -> None:
    world = World(acceptance=0.9, step=0.02, token=0.002)
    _, _, drafted = closed_loop(adaptive(), world, 8, lambda n: tokens + n % 3, 400)
    assert drafted > 300


@pytest.mark.parametrize("name", HOPELESS)
@pytest.mark.parametrize("looks_up", [False, True])
def test_a_seeded_request_loses_no_more_if_the_cost_ratio_is_true(
    name: str, looks_up: bool
) -> None:
    world = replace(HOPELESS[name], token=0.02, catching_up=0.0, lookup=lambda n: (n % 3, 0.0))
    policy = adaptive(cost_ratio=world.step, looks_up=looks_up)
    run = decode(policy, world, sequences(1, 10**6, seed=1), rounds=2048)
    assert losses(run, world, 1).max() <= 0


def test_a_seeded_request_asks_a_drafter_that_is_never_right_ever_more_rarely() -> None:
    run = decode(adaptive(), HOPELESS["never right"], sequences(1, 10**6, seed=1), rounds=2048)
    assert 0 < sum(depth > 0 for depth in run.depths[1024:]) <= 2 * (1 + 1024 // 512)


def test_a_seeded_request_finds_a_drafter_that_becomes_good() -> None:
    run = decode(adaptive(), LATE, sequences(1, 10**6, seed=1), rounds=1600)
    assert np.mean(run.depths[-100:]) > 3


def hanging(policy: Policy, number: int) -> Callable[..., Any]:
    """Observe one round as a laptop does that sleeps: it takes as long as a thousand."""
    rounds = count()

    def observe(knowledge: Any, states: Any, record: Any) -> Any:
        hangs = next(rounds) == number
        return policy.observe(knowledge, states, replace(record, total_s=20.0) if hangs else record)

    return observe


def test_one_round_that_hangs_ends_no_draft() -> None:
    policy = adaptive()
    run = decode(
        policy,
        World(acceptance=0.8),
        sequences(1, 10**6),
        rounds=300,
        observe=hanging(policy, 150),
    )
    assert np.mean(run.depths[200:]) > 2


def test_a_plain_round_that_hangs_makes_no_draft_look_fast() -> None:
    policy, world = adaptive(), HOPELESS["twice the target's cost"]
    observe = hanging(policy, 150)
    run = decode(policy, world, sequences(1, 10**6), rounds=512, observe=observe)
    assert not run.depths[150]
    assert losses(run, world, 1).max() <= 0.04


def test_looking_in_vain_is_charged() -> None:
    policy, world = adaptive(looks_up=True, has_model=False), World(searching=0.3)
    run = decode(policy, world, sequences(1, 10**6), rounds=512)
    assert losses(run, world, 1).max() <= 0


ADVISED = World(acceptance=0.0, planning=0.4, learning=0.2, searching=0.1)
"""Drafts that are never kept, and cost a round's time besides steps and tokens."""


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("looks_up", [False, True])
def test_planning_and_learning_are_charged(rows: int, looks_up: bool) -> None:
    run = decode(adaptive(looks_up=looks_up), ADVISED, sequences(rows, 10**6), rounds=1024)
    missed = ADVISED.catching_up * LAST_WAIT  # A draft model prefills what it missed.
    assert losses(run, ADVISED, rows).max() <= missed
    assert looks_up or any(run.depths[100:])


def rounds_alone(policy: Policy) -> Callable[..., Any]:
    """Observe rounds as if planning and learning took no time."""

    def observe(knowledge: Any, states: Any, record: Any) -> Any:
        bare = replace(record, total_s=record.total_s - record.plan_s, plan_s=0.0, between_s=0.0)
        return policy.observe(knowledge, states, bare)

    return observe


def test_that_notices_planning_that_is_not_charged() -> None:
    policy = adaptive()
    run = decode(policy, ADVISED, sequences(1, 10**6), rounds=1024, observe=rounds_alone(policy))
    assert losses(run, ADVISED, 1).max() > 10


def served(world: World, requests: int, tokens: int) -> tuple[Any, float, float, list[bool]]:
    """Decode requests one after another.

    Returns:
        What is known then; the plain rounds lost by draft model at most, beyond 2% of the time; the
        plain rounds of all; and of each request whether it was drafted.
    """
    policy = adaptive()
    knowledge, lost, spent, most, drafted = policy.start(), 0.0, 0.0, 0.0, []
    for first in range(requests):
        run = decode(policy, world, sequences(1, tokens, first), seed=first, knowledge=knowledge)
        knowledge, seconds = run.knowledge, sum(run.seconds) / world.plain_s
        lost += seconds - world.prefill - sum(run.emitted)
        spent += seconds
        most = max(most, lost - 0.02 * spent)
        drafted.append(any(run.depths))
    return knowledge, most, spent, drafted


def test_what_a_draft_model_takes_for_prompts_is_charged() -> None:
    """Answers of 12 tokens that no draft can earn the prefill of a long prompt back in."""
    world = World(acceptance=0.6, draft_prefill=8.0)
    _, most, spent, drafted = served(world, 200, 12)
    # Of the first request nothing was known to compare its prefill with.
    assert most <= 8 + 8 + 4
    # Half of such a prefill is earned back, so that each answer loses about 4 rounds.
    assert 2 <= sum(drafted) <= 2 + 0.02 * spent / 4


def test_prompts_are_prefilled_where_answers_earn_it_back() -> None:
    _, most, _, drafted = served(World(acceptance=0.9, draft_prefill=8.0), 20, 200)
    assert all(drafted)
    assert most <= 8 + 8 + 4


@pytest.mark.parametrize("rows", [1, 4])
def test_look_ups_that_become_good_are_found(rows: int) -> None:
    world = World(token=0.3 / rows, lookup=lambda n: (3, 0.0 if n < 500 else 0.95))
    policy = adaptive(looks_up=True, has_model=False)
    run = decode(policy, world, sequences(rows, 10**6), rounds=1600)
    assert np.mean(run.depths[300:500]) < 0.1
    assert np.mean(run.depths[-100:]) > 1


def test_a_request_beside_a_seeded_one_is_drafted_for() -> None:
    policy, world = adaptive(), World(acceptance=0.8)
    learnt = decode(policy, world, sequences(2, 10**6), rounds=20).knowledge
    mixed = sequences(1, 10**6, seed=1) + sequences(1, 10**6, first=1)
    run = decode(policy, world, mixed, rounds=300, knowledge=learnt)
    assert np.mean([record.depth[1] for record in run.records[200:]]) > 2


@pytest.mark.parametrize(
    "params", [{"temperature": 0.0, "depths": (4,) * 100}, {"seed": 1}], ids=["replayed", "seeded"]
)
def test_depths_that_no_clock_chose_are_not_held_against_the_drafter(
    params: dict[str, Any],
) -> None:
    policy, world = adaptive(), World(acceptance=0.4, step=2.0)
    learnt = decode(policy, world, sequences(1, 10**3, **params), rounds=100).knowledge
    assert learnt.account.loss <= 0
