"""What drafts are expected to bring: rounds are made up, no clock is read."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from outrider.policies import AdaptiveDepth, Levels
from outrider.policies.costs import Prices
from outrider.policies.drafted import Drafted
from outrider.policies.outlook import MARGIN, Outlook
from outrider.policies.round import Round
from outrider.policies.sureness import Steps
from outrider.types.acceptance import Acceptance

from .test_depth import World, calibrate, decode, fixed, mean_time, steady
from .test_drafted import batch


def prices(verifying: list[float], step: float) -> Prices:
    """Of one row."""
    count = len(verifying)
    drafting = step * np.arange(float(count))
    return Prices(1, np.arange(count), np.array(verifying), drafting)


def outlook(chance: float, of: Prices, steps: Steps | None = None, deepest: int = 0) -> Outlook:
    """Where each token is kept as often."""
    most = len(of.verifying) - 1
    each = np.array([[sum(chance**i for i in range(depth + 1)) for depth in range(most + 1)]])
    whole = Drafted.all_of(each, of, deepest)
    return Outlook.of(each, whole, whole, most, steps)


SLOW_PLAIN = prices([1.4, 1.05, 1.1, 1.15, 1.2], 0.005)
"""Plain rounds were measured in a slow moment."""


def test_what_is_never_kept_is_not_drafted_for_slow_plain_rounds() -> None:
    assert SLOW_PLAIN.rounds.argmin() == 1
    found = outlook(0.01, SLOW_PLAIN)
    assert (found.best, found.gain) == (0, 1.0)


@pytest.mark.parametrize("usual", [1, 4])
def test_nor_where_drafts_end_early(usual: int) -> None:
    """How long they were is not what they bring."""
    steps = Steps()
    for _ in range(50):
        steps.add(usual)
    found = outlook(0.015, SLOW_PLAIN, steps)
    assert found.best == 0
    just = outlook(0.03, SLOW_PLAIN, steps)
    assert just.ending
    assert 1.02 <= just.gain < 1.04


def test_a_depth_that_brings_enough_is_chosen_among_those_that_seem_to_be_faster() -> None:
    """By measured times the deepest is the best; verified for nothing it would not be."""
    of = prices([1.0, 1.25, 1.2, 1.1, 0.9], 0.19)
    found = outlook(0.45, of)
    rates = np.array(found.drafted.tokens) / found.drafted.seconds
    assert rates.argmax() == 4
    assert found.drafted.at_most(found.drafted.tokens[4], 4) < MARGIN
    assert 0 < found.best < 4


def test_where_rounds_cost_what_they_should_the_bound_is_none() -> None:
    """Verified for nothing, no depth is slower than it is."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        verifying = 1 + np.append(0.0, rng.uniform(0, 0.2, 4).cumsum())
        of = prices(verifying.tolist(), rng.uniform(0, 0.3))
        found = outlook(rng.uniform(0, 0.9), of)
        rates = np.array(found.drafted.tokens) / found.drafted.seconds
        assert found.gain == pytest.approx(rates.max() / rates[0], rel=1e-12)
        assert found.best == rates.argmax()
        assert found.drafted.at_least == pytest.approx(found.drafted.seconds, rel=1e-12)


def test_rows_that_join_others_take_no_more_drafting() -> None:
    """Their mates draft two tokens anyway: that is no price of theirs."""
    of = prices([1.0, 1.0, 1.0, 1.0], 0.5)
    alone, joined = outlook(0.3, of), outlook(0.3, of, deepest=2)
    assert alone.best == 0
    assert joined.best == 2
    assert joined.drafted.drafting == pytest.approx([0, 0, 0, 0.5])


@pytest.mark.parametrize("one_first", [True, False])
@pytest.mark.parametrize("ends_early", [True, False])
@pytest.mark.parametrize("slow", [1.1, 1.3, 1.6])
def test_drafts_that_are_never_kept_gain_nothing_whatever_plain_rounds_took(
    one_first: bool, ends_early: bool, slow: float
) -> None:
    """The machine was slower when costs were measured: plain rounds are not, but rarely, since."""
    world, shares = World(steady(0.0), step=0.005, token=0.05, prefill=0.0), []
    for random in range(8):
        policy = AdaptiveDepth(Levels(8), one_first=one_first, ends_early=ends_early)
        for _ in range(50 * ends_early):
            policy._steps.add(4)
        calibrate(policy, replace(world, slow=slow), np.random.default_rng(random))
        _, states = decode(policy, world, tokens=256, warm=False, random=random)
        shares.append(np.mean(np.array(states[0].depths) > 0))
    assert np.mean(shares) < 0.2
    assert max(shares) < 0.3


@pytest.mark.parametrize("ends_early", [True, False])
def test_nor_after_a_text_that_kept_some(ends_early: bool) -> None:
    world, shares = World(steady(0.0), step=0.005, token=0.05, prefill=0.0), []
    for random in range(8):
        policy = AdaptiveDepth(Levels(8), ends_early=ends_early)
        for _ in range(50 * ends_early):
            policy._steps.add(4)
        slow = replace(world, slow=1.3)
        calibrate(policy, slow, np.random.default_rng(random))
        kept = replace(slow, chance=steady(0.6))
        decode(policy, kept, tokens=40, warm=False, random=random)
        _, states = decode(policy, world, tokens=256, warm=False, random=random)
        shares.append(np.mean(np.array(states[0].depths) > 0))
    assert np.mean(shares) < 0.25


@pytest.mark.parametrize("rate", [0.0, 0.05, 0.1, 0.15, 0.25, 0.35])
def test_where_plain_forwards_are_dearer_than_wider_ones_nothing_is_lost(rate: float) -> None:
    """As products with a vector may be: what little drafts would gain by that is left."""
    world = World(steady(rate), step=0.25, token=0.1, alone=0.4)
    plain = mean_time(lambda: fixed(0), world, runs=8)
    assert plain / mean_time(lambda: AdaptiveDepth(Levels(8)), world, runs=8) >= 0.97


def test_the_last_row_of_a_batch_is_drafted_for_by_what_that_takes_of_one_row() -> None:
    """Seven rows are far ahead and rest: a draft for all eight would take twice as long."""
    each = np.array([[1.0, 1.4]] * 8)
    weights = np.array([4.0, *[4 / 7] * 7])
    count = np.arange(1.0, 9.0)[:, None]
    drafting = 0.05 + 0.01 * count
    plain_s = 0.7
    times = plain_s + 0.02 * count + drafting
    some = Drafted.some_of(each, weights, plain_s, times, drafting, 1)
    found = Outlook.of(each, some, some, 1, None)
    assert some.rows == [True, *[False] * 7]
    assert found.best == 1
    assert found.gain == pytest.approx(1.2 * plain_s / (plain_s + 0.08))
    assert some.drafting == pytest.approx([0, 0.06])
    assert some.at_most(1.2 * 8, 1) == pytest.approx(1.2 * plain_s / (plain_s + 0.06))


@pytest.mark.parametrize("token", [0.003, 0.0, -0.001])
def test_drafts_that_end_early_pay_where_verifying_is_nearly_free(token: float) -> None:
    """Though no depth does that is drafted to its end; times vary, so that it may look less."""
    of, steps = prices((1 + token * np.arange(5)).tolist(), 0.28), Steps()
    for count in (1, 1, 1, 1, 1, 1, 1, 4, 4, 4) * 20:
        steps.add(count)
    each = np.array([[1.0, 1.3, 1.57, 1.813, 2.032]])
    whole = Drafted.all_of(each, of, 0)
    found = Outlook.of(each, whole, whole, 4, steps)
    assert max(whole.at_most(made, k) for k, made in enumerate(each[0])) < MARGIN
    assert found.ending
    assert found.gain > 1.2


def test_one_token_that_fails_the_bound_hides_no_longer_draft() -> None:
    """It looks faster than drafts that end early, by a time that cannot be."""
    of, steps = prices([1.4, 1.0, 1.4, 1.6, 1.8], 0.1), Steps()
    for _ in range(50):
        steps.add(4)
    whole = Drafted.all_of(np.array([[1.0, 1.05, 1.9, 1.93, 1.95]]), of, 0)
    found = Outlook.of(np.array([whole.tokens]), whole, whole, 4, steps)
    assert found.best
    assert found.pace < whole.tokens[1] / whole.seconds[1]
    assert 1.2 < found.gain < 1.3


def test_one_token_that_passes_counts_where_longer_drafts_do_not() -> None:
    of, steps = prices([1.0, 1.1, 0.7, 0.6, 0.5], 0.12), Steps()
    for _ in range(50):
        steps.add(4)
    whole = Drafted.all_of(np.array([[1.0, 1.4, 1.41, 1.41, 1.41]]), of, 0)
    assert whole.at_most(1.41, 4) < MARGIN
    found = Outlook.of(np.array([whole.tokens]), whole, whole, 4, steps)
    assert found.gain == pytest.approx(1.4 / 1.22)


def test_looked_up_tokens_are_not_thought_to_spare_time() -> None:
    """Beside plain rounds that were measured in a slow moment any would be taken."""
    assert np.diff(SLOW_PLAIN.looked_up) == pytest.approx(0)
    honest = prices([1.0, 1.1, 1.2], 0.0)
    assert honest.looked_up == pytest.approx([1.0, 1.1, 1.2])


def test_looking_up_is_no_part_of_what_is_compared() -> None:
    """Of rounds in which some rows draft, either, all of which look."""
    looking = 1.5
    policy = AdaptiveDepth(Levels(1), ragged=True, looks_up=True)
    for _ in range(4):
        for rows in (1, 2):
            plain = Round(rows, 0, 0, False, 0, 0, 0, True, 0, looking, 20.0, 0.0)
            policy._costs.add(plain)
            draft_s = looking + 0.9
            policy._costs.add(replace(plain, width=1, steps=1, missing=1, draft_s=draft_s))
    states = batch([150, 8])
    policy._shown.acceptance = Acceptance((50.0,), (25.0,))
    outlook, counts = policy._outlook(states, policy._pricing.prices(states, 1), 0)
    assert counts is not None
    assert outlook.drafted.seconds[0] == pytest.approx(20.0, rel=0.02)
    assert outlook.drafted.drafting[1] == pytest.approx(0.9, rel=0.05)


def test_a_draft_beside_deeper_ones_of_mates_is_no_price() -> None:
    """A try beside a mate that drafts four tokens anyway, and takes no longer for it."""
    of = prices([1.3, 1.0, 1.0, 1.0, 1.0], 0.125)
    whole = Drafted.all_of(np.array([[1.0, 1.5]]), of, 4)
    assert whole.seconds == pytest.approx([1.5, 1.5])
    assert whole.drafting == [0.0, 0.0]
    assert whole.at_least == pytest.approx([1.5, 1.5])


def test_a_try_is_priced_as_if_it_spared_nothing_of_a_plain_round() -> None:
    policy = AdaptiveDepth(Levels(4))
    whole = Drafted.all_of(np.array([[1.0, 1.001, 1.001, 1.001, 1.001]]), SLOW_PLAIN, 0)
    policy._trial(whole, 0.0, MARGIN, False)
    assert policy._purse._price == pytest.approx(0.005 / 1.4 - 0.001)
