"""What reading on takes, by how many rows have to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest

from outrider import SamplingParams
from outrider.policies import AdaptiveDepth, Levels
from outrider.policies.backlog import Backlog
from outrider.policies.costs import Costs
from outrider.types.records import DraftPlan, Prefix, SequenceState

from .test_depth import World, played, steady
from .test_growth import drafting, plain

ROWS = 16


def told(readings: Iterable[tuple[int, float, int]]) -> Backlog:
    """Of so many rows each, what it took and when."""
    backlog = Backlog()
    for rows, seconds, now in readings:
        backlog.add(rows, seconds, now)
    return backlog


def test_a_few_readings_tell_nothing() -> None:
    assert not told((1, 9.0, now) for now in range(2)).upto(4).any()
    assert told((1, 9.0, now) for now in range(3)).upto(4).tolist() == [0, 9, 9, 9, 9]


def test_a_row_more_is_not_thought_to_take_as_long_again() -> None:
    """One row or two made sixteen wide: sixteen, in proportion, would take eight times as long."""
    found = told((1 + now % 2, 3.0, now) for now in range(12)).upto(ROWS)
    assert found == pytest.approx([0.0] + [3.0] * ROWS)


def test_numbers_of_rows_are_told_by_their_own_and_by_those_around_them() -> None:
    sizes = [(1, 1.0), (4, 2.0), (16, 4.0)] * 5
    found = told((rows, seconds, now) for now, (rows, seconds) in enumerate(sizes)).upto(20)
    assert found[[1, 2, 4, 8, 16, 20]] == pytest.approx([1.0, 1.5, 2.0, 3.0, 4.0, 4.0])
    assert (np.diff(found) >= 0).all()


def test_few_rows_take_less_than_all_that_were_measured() -> None:
    """By the root: as much would keep them from being tried."""
    found = told((16, 4.0, now) for now in range(5)).upto(20)
    assert found[[0, 1, 4, 16, 20]] == pytest.approx([0.0, 1.0, 2.0, 4.0, 4.0])


def test_more_rows_never_seem_to_take_less() -> None:
    """What both took counts by how many there are of it, the less the longer ago."""
    fresh = told((1 + 3 * (now % 2), 3.0 - (now % 2), now) for now in range(12))
    assert fresh.upto(4)[1:] == pytest.approx([2.5] * 4, rel=0.01)
    readings = [(1, 3.0, now) for now in range(6)] + [(4, 2.0, 500 + now) for now in range(6)]
    assert told(readings).upto(4)[1:] == pytest.approx([2.0] * 4, rel=0.02)


def test_one_that_was_slow_does_not_stand_for_all() -> None:
    assert told((4, [2.0, 90.0][now == 1], now) for now in range(5)).upto(4)[4] == 2.0


def test_what_a_busy_machine_took_is_scaled() -> None:
    """What is told, and what comes after."""
    backlog = told((4, 8.0, now) for now in range(3))
    backlog.scale(0.25)
    assert backlog.upto(4)[4] == pytest.approx(2.0)
    backlog.add(4, 2.0, 4)
    assert backlog.upto(4)[4] == pytest.approx(2.0)


def test_a_round_in_which_one_row_read_on_says_little_of_one_in_which_all_do() -> None:
    """By the costs of rounds: twice what a plain one takes if it were counted a row."""
    costs = Costs()
    for _ in range(8):
        costs.add(plain(ROWS, 100.0, 10.0))
        costs.add(drafting(ROWS, 100.0, 12.5, 1.0))
    for behind in (1, 2) * 6:
        costs.add(replace(drafting(ROWS, 100.0, 12.5, 2.25), behind=behind, missing=20))
    prices = costs.prices(ROWS, [0, 1], 100.0)
    assert prices.reading_on(0) == 0.0
    assert prices.reading_on(1) == pytest.approx(1.25, rel=0.05)
    assert prices.reading_on(ROWS) == pytest.approx(1.25, rel=0.05)


def plans(one: float, each: float, rate: float = 0.5) -> list[tuple[DraftPlan, AdaptiveDepth]]:
    """What is planned for sixteen rows, where reading on takes `one` and `each` more a row."""
    policy = AdaptiveDepth(Levels(4), looks_up=True, ragged=True)
    world = World(steady(rate), step=0.1, token=0.02, rest=0.0, noise=0.0, prefill=0.0)
    params = SamplingParams(max_tokens=90, depths=(0, *[0, 1, 2, 4] * 4))
    states = [SequenceState(Prefix(n, range(9)), 9, params, frozenset(), n) for n in range(ROWS)]
    rng, found = np.random.default_rng(0), []
    for number in range(48):
        if number == 20:
            for rows in (1, ROWS):
                for now in range(5):
                    backlog = policy._costs._drafting.backlog
                    backlog.add(rows, one + each * (rows - 1), 20 + now)
        # Not what was decided before stands.
        if number > 31:
            found.append((policy.plan(states), policy))
        states, record = played(policy, world, states, rng)
        policy.observe(states, record)
    return found


def test_what_looked_up_tokens_have_to_bring_tells_the_first_row_apart() -> None:
    """In tokens that are emitted in that time."""
    shared = [plan.worth.together for plan, _ in plans(0.3, 0.01) if plan.worth]
    assert len(shared) > 10
    for found in shared:
        assert found is not None
        assert found.reading_on == pytest.approx(29 * found.backlog, rel=1e-6)
        assert 0 < found.reading_on < 0.3 * ROWS * 2


@pytest.mark.parametrize(("one", "tries"), [(0.2, True), (9.0, False)])
def test_tries_pay_once_for_all_rows_that_read_on(one: float, tries: bool) -> None:
    """A fifth of a plain round is affordable; sixteen fifths would not be, and nine are not."""
    policy, rng = AdaptiveDepth(Levels(4), ragged=True), np.random.default_rng(0)
    world = World(steady(0.05), step=0.1, token=0.02, rest=0.0, noise=0.0, prefill=0.0)
    params = SamplingParams(max_tokens=2000, depths=(0, *[0, 1] * 4))
    states = [SequenceState(Prefix(n, range(9)), 9, params, frozenset(), n) for n in range(ROWS)]
    for now in range(5):
        policy._costs._drafting.backlog.add(1, one, now)
    tried = 0
    for _ in range(400):
        states, record = played(policy, world, states, rng)
        policy.observe(states, record)
        tried += policy._trying
    assert (tried > 2) == tries, tried
