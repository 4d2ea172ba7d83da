"""What rounds of a batch take is told anew now and then, and whenever it may have changed."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from outrider import SamplingParams
from outrider.depth import AdaptiveDepth, Levels
from outrider.depth.costs import Costs, Prices
from outrider.depth.pricing import Pricing
from outrider.depth.round import Round
from outrider.records import Prefix, SequenceState

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


def measured(rounds: int = 400) -> tuple[Costs, Pricing]:
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


def test_prices_stand_for_the_same_sequences_for_sixteen_rounds() -> None:
    _, pricing = measured()
    before = told(pricing)
    assert not told_anew(pricing, before, at(10, 1, 2))
    assert not told_anew(pricing, before, at(24, 1, 2))
    assert told_anew(pricing, before, at(25, 1, 2))


@pytest.mark.parametrize(
    ("states", "depth"),
    [(at(10, 1, 3), 4), (at(10, 1), 4), (at(10, 2, 1), 4), (at(8, 1, 2), 4), (at(10, 1, 2), 3)],
    ids=["another", "fewer", "in another order", "from the start", "not as deep"],
)
def test_prices_are_of_these_sequences_alone(states: list[SequenceState], depth: int) -> None:
    _, pricing = measured()
    assert told_anew(pricing, told(pricing), states, depth)


def test_what_is_told_for_a_round_that_is_not_done_leaves_no_trace() -> None:
    _, pricing = measured()
    before = pricing.prices(at(9, 1, 2), 4)
    assert told_anew(pricing, before, at(9, 1, 2))
    pricing.happened(at(10, 1, 3))
    assert told_anew(pricing, before, at(10, 1, 2))


def test_prices_that_few_rounds_told_are_told_again_soon() -> None:
    _, pricing = measured(64)
    before = told(pricing)
    assert not told_anew(pricing, before, at(12, 1, 2))
    assert told_anew(pricing, before, at(13, 1, 2))
    _, pricing = measured(8)
    assert told_anew(pricing, told(pricing), at(10, 1, 2))


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


def test_guesses_do_not_stand() -> None:
    pricing = Pricing(Costs(), LEVELS, 0.5)
    before = told(pricing)
    assert before.rounds.tolist() == [1.0, 1.5, 2.0, 2.5, 3.0]
    assert told_anew(pricing, before, at(9, 1, 2))


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
    pricing.of_some(at(25, 1, 2), pricing.prices(at(25, 1, 2), 4))
    pricing.of_some(at(25, 1, 2), costs.prices(2, [0, 1, 2, 3, 4]))
    assert asked == [(2, 4)] * 3


def test_most_decisions_of_a_batch_go_by_prices_that_stand() -> None:
    policy, rng = AdaptiveDepth(Levels(4), ragged=True), np.random.default_rng(0)
    world = World(steady(0.7), noise=0.03)
    calibrate(policy, world, rng)
    found = []
    for name in range(3):
        states = at(0, *range(4 * name, 4 * name + 4))
        while all(state.remaining > 100 for state in states):
            prices = policy._pricing.prices(states, 4)
            found.append(prices)
            states, record = played(policy, world, states, rng)
            policy.observe(states, record)
    fresh = sum(one is not other for one, other in pairwise(found))
    assert len(found) > 150
    assert fresh < len(found) / 4
