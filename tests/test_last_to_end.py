"""Whose tokens bring the end of a batch nearer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from outrider import SamplingParams
from outrider.drafters.together import _counted
from outrider.policies import AdaptiveDepth, Levels
from outrider.policies.choices import Choices
from outrider.policies.costs import Prices
from outrider.policies.last_to_end import LastToEnd
from outrider.policies.looking import Looking
from outrider.types.records import Prefix, RoundRecord, SequenceState

from .test_depth import World, calibrate, played, steady

ALIKE = Prices(4, np.arange(2), np.ones(2), np.zeros(2), single=1.0)
"""A round takes as long for one row as for four."""

NOTHING = Choices([], ALIKE, np.ones(3), 1.0, 0.0, 1.0, 0.0, 0)


def row(name: int, left: int, total: int = 100, **sampling: Any) -> SequenceState:
    """A sequence with so many tokens left."""
    params = SamplingParams(max_tokens=total, ignore_eos=True, **sampling)
    prefix = Prefix(name, range(9 + total - left))
    return SequenceState(prefix, 9, params, frozenset(), name, depths=(0,))


def weights(last: LastToEnd, states: Sequence[SequenceState]) -> Any:
    return last.weighed(NOTHING, states).weights


def test_what_is_left_tells_which_row_ends_last() -> None:
    """A logistic distribution of distances as wide as half the root of what the last one has left."""
    found = weights(LastToEnd(), [row(0, 64), row(1, 56), row(2, 48), row(3, 64)])
    assert found.sum() == pytest.approx(4)
    assert found[0] == found[3] == pytest.approx(4 / (2 + np.exp(-2) + np.exp(-4)))
    assert found[1] == pytest.approx(found[0] * np.exp(-2))
    assert found[2] == pytest.approx(found[0] * np.exp(-4))
    assert weights(LastToEnd(), [row(0, 9), row(1, 9)]).tolist() == [1, 1]
    # Nearer the end they no longer change places.
    late = weights(LastToEnd(), [row(0, 9), row(1, 1)])
    early = weights(LastToEnd(), [row(0, 90), row(1, 82)])
    assert late[1] < early[1] < early[0] < late[0]


def test_what_rounds_take_for_each_row_counts_for_all_of_them() -> None:
    """Of four rows' round three parts in four are its rows', and a fourth waits for the last."""
    states = [row(0, 64), row(1, 64), row(2, 8), row(3, 8)]
    last = LastToEnd()
    alike = last.counts(states, ALIKE)
    priced = last.counts(states, replace(ALIKE, verifying=np.array([4.0, 5.0]), single=1.75))
    each = last.counts(states, replace(ALIKE, verifying=np.array([4.0, 5.0]), single=1.0))
    assert alike.certain == 0
    assert priced.certain == pytest.approx(0.75)
    assert np.allclose(priced.weights, 0.75 + 0.25 * alike.weights)
    assert each.certain == pytest.approx(1)
    assert np.allclose(each.weights, 1)
    # More for one row than for all is noise, and so is nothing at all.
    slow = last.counts(states, replace(ALIKE, single=9.0))
    assert slow.certain == 0
    assert last.counts(states, replace(ALIKE, single=0.0)).certain == 1


def test_all_tokens_count_alike_where_ends_are_not_known() -> None:
    """By themselves, or where a token, a text or a grammar may end one of them."""
    last = LastToEnd()
    assert weights(last, [row(0, 50)]) is None
    ahead, behind = row(0, 20), row(1, 50)
    assert weights(last, [ahead, behind]) is not None
    for other in (
        replace(behind, stop_ids=frozenset({2})),
        row(1, 50, stop=("end",)),
        replace(behind, grammar=object()),
    ):
        assert weights(last, [ahead, other]) is None


def test_all_tokens_count_alike_where_others_take_the_places_of_those_that_end() -> None:
    last = LastToEnd()
    rows = [row(name, 60 - 10 * name) for name in range(8)]

    def weighed(*names: int) -> bool:
        """After a round of these rows, before their next one."""
        states = [rows[name] for name in names]
        last.happened(states, [1] * len(states))
        return weights(last, states) is not None

    assert weighed(0, 1, 2)
    assert weighed(0, 1, 2)
    assert weighed(0, 1), "nobody came"
    assert not weighed(0, 1, 3)
    assert not weighed(0, 1, 3)
    assert not weighed(0, 3, 4), "one for another"
    assert weighed(0, 4)
    assert weighed(5, 6), "a batch of its own"
    assert not weighed(5, 6, 7)


def test_a_policy_says_so_for_a_batch_that_decides_together() -> None:
    """And not for rows that decide by themselves; what it says changes with what they have left."""
    world, rng = World(steady(0.3), step=0.3), np.random.default_rng(0)
    policy = AdaptiveDepth(Levels(4), looks_up=True)
    calibrate(policy, world, rng)
    states = [row(name, 80) for name in range(2)]
    plan = policy.plan(states)
    assert plan.worth is not None
    assert plan.worth.together is not None
    assert plan.worth.together.weights.tolist() == [1, 1]
    states, record = played(policy, world, states, rng)
    policy.observe(states, record)
    ahead = [states[0], row(1, 40)]
    shared = policy.plan(ahead).worth.together
    told = shared.weights
    # Of a round of two rows a few percent are theirs, and the one that is ahead is hardly the last.
    assert 0 < shared.certain < 0.2
    assert told[1] == pytest.approx(shared.certain, abs=0.01)
    assert told[0] == pytest.approx(2 - told[1])
    mixed = [states[0], row(1, 40, seed=1, temperature=1.0)]
    assert policy.plan(mixed).worth.together.weights is None
    policy.observe([*states, row(2, 80)], replace(record, **_three(record)))
    assert policy.plan([*states, row(2, 70)]).worth.together.weights is None


def _three(record: RoundRecord) -> dict[str, Any]:
    """What a record says of two rows, of three."""
    told = {name: getattr(record, name) for name in RoundRecord.__dataclass_fields__}
    return {
        name: (*value, value[-1])
        for name, value in told.items()
        if isinstance(value, tuple) and len(value) == 2
    }


def planned_for_two() -> tuple[Choices, RoundRecord]:
    """What is planned together for two rows, and a round of theirs."""
    world, rng = World(steady(0.3), step=0.3), np.random.default_rng(0)
    policy = AdaptiveDepth(Levels(4), looks_up=True)
    calibrate(policy, world, rng)
    states = [row(name, 80) for name in range(2)]
    policy.plan(states)
    assert policy._together is not None
    return policy._together, played(policy, world, states, rng)[1]


@pytest.mark.parametrize(
    ("counts", "looks"), [(None, True), ((3.0, 0.0), True), ((0.0, 2.0), False)]
)
def test_what_looking_up_gained_counts_as_much(
    counts: tuple[float, ...] | None, looks: bool
) -> None:
    """Tokens of the first of two rows, in rounds that take twice a plain one's time."""
    planned, record = planned_for_two()
    verifying = np.array([1.0, 1.3, 1.6, 2.0]) * planned.prices.verifying[0]
    prices = replace(planned.prices, verifying=verifying)
    told = replace(planned, prices=prices, weights=None if counts is None else np.array(counts))
    told = replace(told, spread=100.0, certain=0.0)
    record = replace(record, drafted=(3, 3), depth=(3, 3), emitted=(6, 1), looked_up=(True, True))
    looking = Looking()
    for _ in range(30):
        looking.count_round(True, record, told, False)
    assert looking.wanted() == looks


@pytest.mark.parametrize(
    ("backlog", "steps", "looks"), [(0.0, 1, True), (1.5, 1, False), (1.5, 0, True)]
)
def test_what_has_to_be_read_on_is_part_of_what_looking_up_takes(
    backlog: float, steps: int, looks: bool
) -> None:
    """A round and a half of it, where seven tokens come in the time of four: not if none reads.

    Once, when the drafter drafts again, however many rounds it did not.
    """
    planned, record = planned_for_two()
    plain = planned.prices.verifying[0]
    prices = replace(
        planned.prices,
        verifying=np.array([1.0, 1.3, 1.6, 2.0]) * plain,
        backlog=np.array([0.0, 9.0, backlog]) * plain,
    )
    rows = [replace(choice, steps=steps) for choice in planned.rows]
    told = replace(planned, prices=prices, rows=rows, weights=None)
    record = replace(record, drafted=(3, 3), depth=(3, 3), emitted=(6, 1), looked_up=(True, True))
    drafted = replace(record, drafted=(1, 1), depth=(1, 1), looked_up=(False, False))
    looking = Looking()
    for _ in range(30):
        looking.count_round(True, record, told, False)
        looking.count_round(True, drafted, told, False)
    assert looking.wanted() == looks
    # Of a round without looking it is a part as well, and only where rows read on.
    gained = looking._gained
    looking.count_round(False, drafted, told, False)
    assert looking._gained == gained
    looking.count_round(True, record, told, False)
    gained = looking._gained
    looking.count_round(False, drafted, told, False)
    paid = 0.1 * told.rate * backlog * plain * steps
    assert gained - looking._gained == pytest.approx(paid)
    for _ in range(40):
        looking.count_round(True, record, told, False)
    looking.count_round(True, drafted, told, False)
    assert looking.wanted()


def test_rows_that_propose_nothing_are_not_read_either_where_no_step_is_taken() -> None:
    """One of two found something, and the model rests for both."""
    planned, record = planned_for_two()
    told = replace(planned, rows=[replace(choice, steps=1) for choice in planned.rows])
    found = replace(record, drafted=(3, 0), depth=(3, 0), looked_up=(True, False))
    drafted = replace(record, drafted=(1, 1), depth=(1, 1), looked_up=(False, False))
    looking = Looking()
    assert looking._read(found, told) == 0
    assert looking._read(drafted, told) == 2
    assert looking._read(drafted, told) == 0
    # With others in the next round it is not known.
    looking._read(found, told)
    looking._read(replace(drafted, sequence_ids=(7, 8)), told)
    assert looking._read(drafted, told) == 0


def test_a_batch_that_another_thread_planned_for_is_not_counted() -> None:
    """Policies are shared by threads, which plan and observe in any order."""
    world, rng = World(steady(0.3), step=0.3), np.random.default_rng(0)
    policy = AdaptiveDepth(Levels(4), looks_up=True)
    calibrate(policy, world, rng)
    two, three = ([row(name, 80) for name in range(count)] for count in (2, 3))
    policy.plan(two)
    after, record = played(policy, world, two, rng)
    policy.plan(three)
    policy.observe(after, replace(record, looked_up=(True, True)))


def test_leaps_that_others_do_not_make_count_for_less() -> None:
    """The nearer rows stay together; what all of them gain counts in full, and nothing is lost."""
    chances = np.array([[0.9, 0.9, 0.9, 0.9], [0.0, 0.0, 0.0, 0.0]])
    even = np.ones(2)
    alone = _counted(chances, even, 0.0, 4.0)
    assert alone[0, 0] == 0.9
    assert (np.diff(alone[0]) < 0).all()
    assert alone[0, 1] == pytest.approx(0.9 * np.exp(-0.45 / 4))
    assert (_counted(chances, even, 0.0, 1.0)[0, 1:] < alone[0, 1:]).all()
    half = _counted(chances, even, 0.5, 4.0)
    assert np.allclose(half, 0.5 * chances + 0.5 * alone)
    assert np.allclose(_counted(chances, even, 1.0, 4.0), chances)
    together = np.repeat(chances[:1], 2, 0)
    assert np.allclose(_counted(together, even, 0.0, 1.0), together)
    assert np.allclose(_counted(chances, np.array([0.5, 1.5]), 0.0, np.inf)[0], 0.45)
    mixed = _counted(np.array([[0.9, 0.5, 0.4], [0.8, 0.8, 0.8]]), even, 0.0, 0.5)
    assert (np.diff(mixed, axis=1) <= 0).all()


def test_how_far_rows_change_places_is_what_they_lately_differed_by() -> None:
    last, states = LastToEnd(), [row(0, 64), row(1, 56)]
    assert last.weighed(NOTHING, states).spread == 4
    for _ in range(100):
        last.happened(states, [1, 1])
    assert last.weighed(NOTHING, states).spread == 1
    for _ in range(200):
        last.happened(states, [1, 5])
    assert last.weighed(NOTHING, states).spread == pytest.approx(16, rel=1e-3)
    assert last.weighed(NOTHING, states[:1]).spread == np.inf


def test_more_is_asked_of_batches_that_wait_for_their_last_row() -> None:
    """With others that join, or ends that nobody knows, rows end apart in any case.

    And nothing where rows that are ahead rest.
    """
    last, rows = LastToEnd(), [row(name, 60) for name in range(16)]
    assert last.apart(rows[:1], False) == 0
    assert last.apart(rows[:4], False) == pytest.approx(0.048)
    assert last.apart(rows, False) == pytest.approx(0.192)
    assert last.apart(rows * 4, False) == 0.2
    open_ended = [replace(each, stop_ids=frozenset({2})) for each in rows]
    assert last.apart(open_ended, False) == pytest.approx(0.08)
    assert last.apart(rows, True) == 0
    last.happened(rows[:2], [1, 1])
    last.happened(rows[1:3], [1, 1])
    assert last.apart(rows, False) == pytest.approx(0.08)


def test_a_clock_that_stands_still_leaves_a_pause() -> None:
    """Rounds that take no time say nothing of what looking takes of them."""
    still = Prices(2, np.zeros(1, dtype=np.int64), np.zeros(1), np.zeros(1))
    world, rng = World(steady(0.3), step=0.3), np.random.default_rng(0)
    policy = AdaptiveDepth(Levels(4), looks_up=True)
    calibrate(policy, world, rng)
    states = [row(name, 80) for name in range(2)]
    policy.plan(states)
    _, record = played(policy, world, states, rng)
    looking = Looking()
    looking.count_round(False, record, replace(NOTHING, prices=still), False)
    assert 4 <= looking._pause <= 32
