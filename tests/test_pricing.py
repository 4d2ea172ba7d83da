"""What rounds of a batch take is told anew now and then, and whenever it may have changed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from outrider import SamplingParams
from outrider.policies import AdaptiveDepth, Levels
from outrider.policies.costs import Costs, Prices
from outrider.policies.pricing import Pricing
from outrider.policies.round import Round
from outrider.types.records import Prefix, SequenceState

from .test_depth import World, calibrate, played, steady

LEVELS = Levels(4)


def at(number: int, *names: int) -> list[SequenceState]:
    """Sequences that have been through so many rounds."""
    params = SamplingParams(max_tokens=400)
    return [
        SequenceState(Prefix(name, range(50)), 50, params, frozenset(), name, depths=(0,) * number)
        for name in names
    ]


def plain(seconds: float = 1.0) -> Round:
    return Round(2, 0, 0, False, 0, 0, 0, False, 0, 0.0, seconds, 0.0)


def measured(rounds: int = 320) -> tuple[Costs, Pricing]:
    """After so many rounds of two sequences."""
    costs = Costs()
    for number in range(rounds):
        drafted = Round(2, 1, 1, False, 0, 2, 0, False, 0, 0.1, 1.2, 0.0)
        costs.add(drafted if number % 2 else plain())
    return costs, Pricing(costs, LEVELS, 0.125)


def told(pricing: Pricing) -> Prices:
    """Prices of the tenth round of two sequences, which is then done."""
    before = pricing.prices(at(9, 1, 2), 4)
    pricing.happened(at(10, 1, 2))
    return before


def told_anew(
    pricing: Pricing, before: Prices, states: list[SequenceState], depth: int = 4
) -> bool:
    return pricing.prices(states, depth) is not before


def test_prices_stand_for_the_same_sequences_until_sixteen_rounds_were_counted() -> None:
    costs, pricing = measured()
    before = told(pricing)
    for _ in range(15):
        assert not told_anew(pricing, before, at(10, 1, 2))
        costs.add(plain())
    assert not told_anew(pricing, before, at(40, 1, 2))
    costs.add(plain())
    assert told_anew(pricing, before, at(10, 1, 2))


@pytest.mark.parametrize(
    ("states", "depth"),
    [(at(10, 1, 3), 4), (at(10, 1), 4), (at(10, 2, 1), 4), (at(9, 1, 2), 4), (at(10, 1, 2), 3)],
    ids=["another", "fewer", "in another order", "the same round", "not as deep"],
)
def test_prices_are_of_these_sequences_alone(states: list[SequenceState], depth: int) -> None:
    _, pricing = measured()
    assert told_anew(pricing, told(pricing), states, depth)


def test_what_is_told_for_a_round_that_is_not_done_leaves_no_trace() -> None:
    _, pricing = measured()
    for after in (at(9, 1, 2), at(11, 1, 2), at(10, 1, 3), [*at(10, 1), *at(11, 2)]):
        before = pricing.prices(at(9, 1, 2), 4)
        pricing.happened(after)
        assert told_anew(pricing, before, at(10, 1, 2))
    before = told(pricing)
    pricing.end()
    assert told_anew(pricing, before, at(10, 1, 2))


def test_prices_that_few_rounds_of_as_many_sequences_told_are_told_again_soon() -> None:
    costs, pricing = measured(48)
    before = told(pricing)
    costs.add(plain())
    costs.add(plain())
    assert not told_anew(pricing, before, at(12, 1, 2))
    costs.add(plain())
    assert told_anew(pricing, before, at(13, 1, 2))
    pricing.prices(at(9, 1, 2, 3), 4)
    pricing.happened(at(10, 1, 2, 3))
    assert told_anew(pricing, pricing.prices(at(10, 1, 2, 3), 4), at(10, 1, 2, 3))


def test_prices_are_told_anew_where_rounds_take_longer_or_what_was_known_is_over() -> None:
    costs, pricing = measured()
    before = told(pricing)
    costs.add(plain(1.4))
    assert not told_anew(pricing, before, at(10, 1, 2))
    costs.add(plain(1.6))
    assert told_anew(pricing, before, at(11, 1, 2))
    costs, pricing = measured()
    before = told(pricing)
    for _ in range(2):
        costs.add(plain(0.1))
    assert costs.revisions == 1
    assert told_anew(pricing, before, at(11, 1, 2))
    assert pricing.prices(at(11, 1, 2), 4).rounds[0] < 0.2


def test_prices_are_told_anew_at_another_pace() -> None:
    costs, pricing = measured()
    before = told(pricing)
    for _ in range(5):
        costs.add(plain(1.2))
    assert told_anew(pricing, before, at(14, 1, 2))


def test_a_drafter_that_fails_has_prices_told_anew() -> None:
    policy, rng = AdaptiveDepth(Levels(4)), np.random.default_rng(0)
    world = World(steady(0.7), noise=0.03)
    calibrate(policy, world, rng)
    states = at(0, 1, 2)
    for _ in range(60):
        states, record = played(policy, world, states, rng)
        policy.observe(states, record)
    assert policy._pricing._done is not None
    states, record = played(policy, world, states, rng)
    policy.observe(states, replace(record, draft_failed=True))
    assert policy._pricing._done is None


def test_guesses_do_not_stand() -> None:
    costs = Costs()
    for _ in range(320):
        costs.add(plain())
    pricing = Pricing(costs, LEVELS, 0.5)
    before = told(pricing)
    assert before.drafting.tolist() == [0.0, 0.5, 1.0, 1.5, 2.0]
    assert told_anew(pricing, before, at(10, 1, 2))


def test_what_rounds_of_some_rows_take_is_told_with_the_prices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []
    of_some = Costs.of_some

    def counted(
        self: Costs, rows: int, depths: int, length: float = 0.0
    ) -> tuple[np.ndarray, np.ndarray]:
        asked.append((rows, depths))
        return of_some(self, rows, depths, length)

    monkeypatch.setattr(Costs, "of_some", counted)
    costs, pricing = measured()
    prices = pricing.prices(at(9, 1, 2), 4)
    first = pricing.of_some(at(9, 1, 2), prices)
    pricing.happened(at(10, 1, 2))
    assert pricing.of_some(at(12, 1, 2), pricing.prices(at(12, 1, 2), 4)) is first
    assert asked == [(2, 4)]
    for _ in range(16):
        costs.add(plain())
    pricing.of_some(at(25, 1, 2), pricing.prices(at(25, 1, 2), 4))
    pricing.of_some(at(25, 1, 2), costs.prices(2, [0, 1, 2, 3, 4]))
    assert asked == [(2, 4)] * 3


def test_most_decisions_of_a_batch_go_by_prices_that_stand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted = {"prices": 0, "_decision": 0}

    def counting(kind: type, name: str) -> None:
        real = getattr(kind, name)

        def called(*args: Any) -> Any:
            counted[name] += 1
            return real(*args)

        monkeypatch.setattr(kind, name, called)

    policy, rng = AdaptiveDepth(Levels(4), ragged=True), np.random.default_rng(0)
    world = World(steady(0.7), noise=0.03)
    calibrate(policy, world, rng)
    for name in range(4):
        if name == 2:
            counting(Costs, "prices")
            counting(AdaptiveDepth, "_decision")
        states = at(0, *range(4 * name, 4 * name + 4))
        while all(state.remaining > 100 for state in states):
            states, record = played(policy, world, states, rng)
            policy.observe(states, record)
    assert counted["_decision"] > 30
    assert counted["prices"] < 0.6 * counted["_decision"]
