"""How rounds grow with the length of their sequences, and what that is learnt for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from outrider.policies.costs import Costs
from outrider.policies.drafting import Drafting
from outrider.policies.growth import Growing
from outrider.policies.lines import rising
from outrider.policies.round import Round


def plain(rows: int, length: float, seconds: float) -> Round:
    """A round without drafts."""
    return replace(Round(rows, 0, 0, False, 0, 0, 0, False, 0, 0.0, seconds, 0.0), length=length)


def drafting(rows: int, length: float, seconds: float, draft_s: float = 0.1) -> Round:
    """A round in which each row drafts one token."""
    return replace(plain(rows, length, seconds), width=1, steps=1, missing=rows, draft_s=draft_s)


def texts(slope: float, noise: float, seed: int, rounds: int = 200) -> Growing:
    """Four texts' rounds of sixteen rows, plain at first, then not."""
    rng, growing = np.random.default_rng(seed), Growing()
    for _ in range(4):
        for place in range(rounds):
            length = 100 + place
            base = 10.0 if place < rounds // 2 else 14.0
            took = base * (1 + slope * length) * rng.lognormal(0, noise)
            growing.add(16, 16 if place < rounds // 2 else 32, length, took)
    return growing


def grown(growing: Growing, rows: int, since: float, to: float) -> float:
    """How many times as long rounds take at one length as at another."""
    return growing.times(rows, to) / growing.times(rows, since)


@pytest.mark.parametrize("slope", [0.0005, 0.002, 0.005])
def test_what_a_token_adds_is_learnt(slope: float) -> None:
    """By hand, in each of eight seeds. Rounds that draft take longer, which is no growth."""
    for seed in range(8):
        found = grown(texts(slope, 0.05, seed), 16, 100.0, 400.0)
        assert found == pytest.approx((1 + 400 * slope) / (1 + 100 * slope), rel=0.06)


def test_rounds_that_take_as_long_at_any_length_hardly_seem_to_grow() -> None:
    for seed in range(8):
        assert grown(texts(0.0, 0.05, seed), 16, 100.0, 300.0) < 1.03


def test_a_few_rounds_tell_nothing() -> None:
    """Twenty, of which the last ones were slow."""
    growing = Growing()
    for place in range(20):
        growing.add(4, 4, 100.0 + place, 1.0 + 0.1 * (place > 10))
    assert grown(growing, 4, 100.0, 300.0) < 1.05


def test_slow_moments_count_for_a_quarter_more_at_most() -> None:
    """Five in a row that take forty times as long."""
    calm, stormy = texts(0.002, 0.0, 0), texts(0.002, 0.0, 0)
    for _ in range(5):
        stormy.add(16, 16, 200.0, 500.0)
    found, told = (grown(each, 16, 100.0, 300.0) for each in (stormy, calm))
    assert found == pytest.approx(told, rel=0.04)


def test_it_is_told_of_about_as_many_sequences() -> None:
    """What a batch shows says little of one row, and nothing is known of none."""
    growing = texts(0.002, 0.02, 0)
    found = [grown(growing, rows, 100.0, 300.0) - 1 for rows in (16, 12, 4, 1)]
    assert found == sorted(found, reverse=True)
    assert found[1] > 0.9 * found[0]
    assert found[3] < 0.05 * found[0]
    assert Growing().times(4, 100.0) == 1.0


def test_rounds_that_took_no_time_tell_nothing() -> None:
    growing = texts(0.002, 0.0, 0)
    before = growing.times(16, 300.0)
    for _ in range(64):
        growing.add(16, 16, 100.0, 0.0)
    assert growing.times(16, 300.0) == before


def test_kinds_that_are_forgotten_leave_nothing_behind() -> None:
    growing = Growing()
    for _ in range(3):
        for rows in range(1, 1200):
            growing.add(rows, rows, 100.0, 1.0)
            growing.add(rows, rows, 300.0, 2.0)
    assert len(growing._kinds) <= 512
    for rows, sums in growing._sums.items():
        kept = [kind.sums for (own, _), kind in growing._kinds.items() if own == rows]
        assert sums == pytest.approx(np.sum([np.zeros(3), *kept], 0), abs=1e-6)


def ratio_at_the_start_of_a_text(slope: float) -> float:
    """How a round that drafts compares with a plain one as a third text begins, 1.25 in truth.

    In each text it is drafted but for a few rounds, most of which are its first ones.
    """
    rng, costs = np.random.default_rng(0), Costs()
    for _ in range(2):
        for place in range(200):
            length = 100 + place
            scale = (1 + slope * length) * rng.lognormal(0, 0.02)
            made = plain if place < 8 or place % 40 == 0 else drafting
            costs.add(made(16, length, 10.0 * scale * (1.25 if made is drafting else 1.0)))
    for place in range(8):
        costs.add(plain(16, 100 + place, 10.0 * (1 + slope * (100 + place))))
    prices = costs.prices(16, [0, 1], 108.0)
    return float(prices.verifying[1] / prices.verifying[0])


def test_plain_rounds_of_a_new_text_are_not_compared_with_drafts_at_the_end_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Planted: without what rounds grow by, drafts look a sixth dearer, and are given up."""
    assert ratio_at_the_start_of_a_text(0.002) == pytest.approx(1.25, rel=0.04)
    assert ratio_at_the_start_of_a_text(0.0) == pytest.approx(1.25, rel=0.03)
    monkeypatch.setattr(Growing, "times", lambda self, rows, length: 1.0)
    assert ratio_at_the_start_of_a_text(0.002) > 1.4


class TestRising:
    """Isotonic regression, column by column."""

    def test_what_rises_stays(self) -> None:
        found = np.array([[1.0, 2.0], [1.0, 3.0], [5.0, 3.5]])
        assert rising(found, np.array([1.0, 2.0, 3.0])) == pytest.approx(found)

    def test_what_falls_is_its_weighted_mean(self) -> None:
        told = rising(np.array([[4.0], [1.0]]), np.array([1.0, 3.0]))
        assert told == pytest.approx(np.array([[1.75], [1.75]]))

    def test_nothing_that_rises_is_nearer(self) -> None:
        """Beside a grid of all that rises."""
        rng = np.random.default_rng(0)
        grid = np.arange(0, 1.01, 0.1)
        rows = np.array([(a, b, c) for a in grid for b in grid for c in grid if a <= b <= c])
        for _ in range(30):
            found, weights = rng.random(3), rng.uniform(0.2, 3, 3)
            told = rising(found[:, None], weights)[:, 0]
            assert (np.diff(told) >= -1e-12).all()
            best = (weights * (rows - found) ** 2).sum(1).min()
            assert (weights * (told - found) ** 2).sum() <= best + 1e-12


def measured() -> Costs:
    """Rounds of sixteen rows, of 10 s plain, and of 12.5 s with a draft of 1."""
    costs = Costs()
    for _ in range(8):
        costs.add(plain(16, 100.0, 10.0))
        costs.add(drafting(16, 100.0, 12.5, 1.0))
    return costs


def mixed(costs: Costs, count: int, draft_s: float) -> None:
    """Rounds of sixteen rows, of which one took tokens that were looked up."""
    for _ in range(count):
        round_ = drafting(16, 100.0, 12.5, draft_s)
        costs.add(replace(round_, looked=True, found=True, stepping=15, missing=15))


def test_drafts_beside_looked_up_tokens_are_not_thought_dear() -> None:
    """They take half as long again, by looking: fifteen rows no longer than sixteen."""
    costs = measured()
    mixed(costs, 20, 1.5)
    _, drafts = costs.of_some(16, 2, 100.0)
    assert drafts[-1, 0] == pytest.approx(1.0, rel=0.02)
    assert costs.prices(16, [0, 1], 100.0).drafting[1] == pytest.approx(1.0, rel=0.02)
    # And that is what proposing takes.
    assert costs.prices(16, [0, 1], 100.0).proposing == pytest.approx(0.5, rel=0.05)


def test_the_first_rounds_that_look_tell_what_that_takes() -> None:
    """Drafts are known from made-up tokens, for which nothing was: they did not get dearer."""
    costs = measured()
    for _ in range(3):
        assert costs.prices(16, [0, 1], 100.0).drafting[1] == pytest.approx(1.0, rel=0.01)
        costs.add(replace(drafting(16, 100.0, 12.5, 1.3), looked=True))
    assert costs.prices(16, [0, 1], 100.0).looking == pytest.approx(0.3, rel=0.05)
    # From then on they tell what drafts take, which may change.
    for _ in range(31):
        costs.add(replace(drafting(16, 100.0, 12.5, 1.8), looked=True))
    prices = costs.prices(16, [0, 1], 100.0)
    assert prices.drafting[1] == pytest.approx(1.5, rel=0.05)
    assert prices.looking == pytest.approx(0.3, rel=0.05)


def test_where_no_other_drafts_are_known_they_tell_what_drafts_take() -> None:
    costs = Costs()
    for _ in range(8):
        costs.add(plain(16, 100.0, 10.0))
        costs.add(drafting(4, 100.0, 12.5, 0.2))
    mixed(costs, 20, 1.5)
    assert costs.prices(16, [0, 1], 100.0).drafting[1] == pytest.approx(1.5, rel=0.1)


def test_what_drafts_took_long_ago_does_not_tell_what_proposing_takes() -> None:
    """After two hundred plain rounds the next ones tell what drafts take, as far as it shows."""
    costs = Costs()
    for _ in range(8):
        costs.add(drafting(16, 100.0, 12.5, 1.0))
    for _ in range(200):
        costs.add(plain(16, 100.0, 10.0))
    mixed(costs, 3, 1.5)
    assert costs.prices(16, [0, 1], 100.0).proposing == 0.0


def test_reading_on_beside_looked_up_tokens_is_not_what_proposing_takes() -> None:
    costs = Costs()
    for _ in range(8):
        costs.add(replace(plain(16, 100.0, 10.0), looked=True))
        costs.add(drafting(16, 100.0, 12.5, 1.0))
    for _ in range(5):
        seen = replace(drafting(16, 100.0, 12.5, 5.0), looked=True, found=True)
        costs.add(replace(seen, behind=8, missing=99))
    prices = costs.prices(16, [0, 1], 100.0)
    assert prices.proposing == pytest.approx(0.0, abs=0.01)
    assert prices.reading_on(8) == pytest.approx(4.0, rel=0.05)


def test_what_proposing_takes_is_no_reading_on() -> None:
    """Half a second beside each draft, some of which read on in eight rows, for .8 s."""
    costs = measured()
    mixed(costs, 20, 1.5)
    for _ in range(5):
        seen = replace(drafting(16, 100.0, 12.5, 1.0 + 0.5 + 0.8), looked=True, found=True)
        costs.add(replace(seen, behind=8, missing=99))
    assert costs.prices(16, [0, 1], 100.0).reading_on(8) == pytest.approx(0.8, rel=0.1)


def test_a_round_that_was_much_faster_caps_drafts_without_looking_up() -> None:
    """A fifth of what is known: its draft took .4 s, and looking up .5."""
    costs = Costs()
    for _ in range(8):
        costs.add(replace(plain(16, 100.0, 10.0), looked=True, draft_s=0.5))
        costs.add(drafting(16, 100.0, 12.5, 4.0))
    costs.add(replace(drafting(16, 100.0, 2.5, 0.9), looked=True))
    assert costs.puzzled
    costs.add(plain(16, 100.0, 10.0))
    assert costs.prices(16, [0, 1], 100.0).drafting[1] == pytest.approx(0.4, rel=0.02)


def test_a_few_slow_drafts_of_some_rows_do_not_make_those_of_all_dear() -> None:
    """Three of seven rows beside thirty of sixteen."""
    costs = Costs()
    for _ in range(30):
        costs.add(plain(16, 100.0, 10.0))
        costs.add(drafting(16, 100.0, 12.5, 1.0))
    for _ in range(3):
        costs.add(replace(drafting(16, 100.0, 12.5, 2.0), stepping=7, missing=7))
    _, drafts = costs.of_some(16, 1, 100.0)
    assert drafts[-1, 0] < 1.15
    assert (np.diff(drafts[:, 0]) >= -1e-12).all()


def test_a_slow_first_round_does_not_hide_what_a_token_adds() -> None:
    """Ten times as slow, as while code is loaded; planted: were it what others are compared with,
    for hundreds of rounds all would look as fast as they may.
    """
    growing = Growing()
    for place in range(200):
        growing.add(16, 16, 100.0 + place, (1 + 0.002 * place) * (10 if place == 0 else 1))
    assert grown(growing, 16, 100.0, 300.0) == pytest.approx(1.4, rel=0.06)


def test_what_was_learnt_on_a_busy_machine_is_scaled_or_learnt_anew() -> None:
    """It then takes a fifth, as `Costs` finds, or as nobody does."""
    for told in (True, False):
        growing = Growing()
        for place in range(100):
            growing.add(16, 16, 100.0 + place, 5 * (1 + 0.002 * place))
        if told:
            growing.scale(0.2)
            for _ in range(16):
                growing.add(16, 16, 150.0, 1.1)
            (kind,) = growing._kinds.values()
            assert kind.over == 0
        for place in range(100, 320):
            growing.add(16, 16, 100.0 + place, 1 + 0.002 * place)
        assert grown(growing, 16, 100.0, 400.0) == pytest.approx(1.6, rel=0.1)


def test_rounds_are_not_thought_to_grow_far_beyond_what_was_measured() -> None:
    growing = texts(0.002, 0.0, 0)
    here, far = grown(growing, 16, 100.0, 390.0), grown(growing, 16, 100.0, 1e5)
    assert here == pytest.approx(1.78 / 1.2, rel=0.1)
    assert far < 1.2 * here
    # Rounds of that length themselves take what they take.
    assert grown(growing, 16, 1e4, 1e5) == 1.0


def test_rounds_of_as_many_tokens_grow_by_their_own_rows() -> None:
    """Eight tokens of one row at 1,000 tokens, asked for four rows at 100, which grow by more."""
    growing = Growing()
    for place in range(400):
        growing.add(1, 1, 100.0 + 5 * place, 1 + 0.0001 * 5 * place)
        growing.add(16, 16, 100.0 + place, 1 + 0.002 * place)
    assert grown(growing, 1, 100.0, 1000.0) == pytest.approx(1.09, rel=0.03)
    assert grown(growing, 16, 100.0, 400.0) == pytest.approx(1.6, rel=0.06)


def test_drafts_of_long_texts_among_short_ones_are_told_in_both() -> None:
    """Four texts of a hundred tokens for each of two thousand, in which alone it is drafted."""
    rng, costs = np.random.default_rng(0), Costs()
    for text in range(40):
        long = text % 5 == 4
        for place in range(60):
            length = (2000.0 if long else 100.0) + place
            scale = (1 + 0.002 * length) * rng.lognormal(0, 0.02)
            if long and place % 2:
                costs.add(drafting(16, length, 12.5 * scale, scale))
            else:
                costs.add(plain(16, length, 10.0 * scale))
    for length in (130.0, 2000.0):
        prices = costs.prices(16, [0, 1], length)
        assert prices.verifying[1] / prices.verifying[0] == pytest.approx(1.25, rel=0.08)


def test_kinds_that_are_measured_at_other_lengths_tell_one_growth() -> None:
    """Drafts at 100 to 300 tokens, plain rounds at 1,000 to 1,200."""
    growing = Growing()
    for place in range(400):
        growing.add(16, "drafts", 100.0 + place % 200, 3 * (1 + 0.002 * (100.0 + place % 200)))
        growing.add(16, "plain", 1000.0 + place % 200, 2 * (1 + 0.002 * (1000.0 + place % 200)))
    assert grown(growing, 16, 100.0, 1100.0) == pytest.approx(3.2 / 1.2, rel=0.05)


def test_the_longest_text_is_remembered_through_short_ones() -> None:
    growing = Growing()
    for place in (*range(1000), *range(64)):
        growing.add(16, 16, 100.0 + place, 1 + 0.002 * place)
    assert grown(growing, 16, 200.0, 1100.0) > 2


def test_a_draft_of_any_number_of_steps_is_a_kind() -> None:
    drafts = Drafting()
    for now in range(40):
        drafts.add(replace(drafting(1, 9.0, 1.0, 1.0), width=1200, steps=1200), 1.0, now)
    assert drafts.at(1, np.array([1200.0]), 9.0)[0] == pytest.approx(1.0)


def test_what_looking_up_is_thought_to_take_leaves_drafts_something() -> None:
    """It was measured five times too slow: drafts of four seconds are no gift."""
    costs = Costs()
    for _ in range(8):
        costs.add(replace(plain(16, 100.0, 50.0), looked=True, draft_s=10.0))
        costs.add(replace(drafting(16, 100.0, 62.5, 20.0), looked=True))
    costs.add(replace(drafting(16, 100.0, 12.5, 4.0), looked=True))
    costs.add(plain(16, 100.0, 50.0))
    for _ in range(8):
        costs.add(replace(drafting(16, 100.0, 12.5, 4.0), looked=True))
    assert costs.prices(16, [0, 1], 100.0).drafting[1] > 1.0


def test_drafts_that_were_slow_long_ago_do_not_stay_dear_where_more_rows_draft() -> None:
    """Forty of seven rows, and hundreds of sixteen since, half as long."""
    costs = Costs()
    for _ in range(40):
        costs.add(plain(16, 100.0, 10.0))
        costs.add(replace(drafting(16, 100.0, 12.5, 2.0), stepping=7, missing=7))
    for _ in range(600):
        costs.add(drafting(16, 100.0, 12.5, 1.0))
    _, drafts = costs.of_some(16, 1, 100.0)
    assert drafts[-1, 0] == pytest.approx(1.0, rel=0.03)
    for _ in range(10_000):
        costs.add(drafting(16, 100.0, 12.5, 1.0))
    assert np.isfinite(costs.of_some(16, 1, 100.0)[1]).all()


def test_what_was_measured_in_short_texts_is_told_in_long_ones() -> None:
    """Drafts at 150 tokens, and then plain rounds only, up to 700: 1.25 plain rounds ever."""
    costs = Costs()
    for place in range(600):
        scale = 1 + 0.002 * place
        if place < 150 or (place % 100 > 94 and place < 250):
            costs.add(drafting(16, 100.0 + place, 12.5 * scale))
        costs.add(plain(16, 100.0 + place, 10.0 * scale))
    prices = costs.prices(16, [0, 1], 700.0)
    assert prices.verifying[0] == pytest.approx(22.0, rel=0.05)
    assert prices.verifying[1] / prices.verifying[0] == pytest.approx(1.25, rel=0.03)


def test_drafts_are_told_at_the_length_that_is_asked_for() -> None:
    """Measured in long texts, and asked for in short ones; planted: without their lengths, 2.0."""
    costs = Costs()
    for place in range(400):
        scale = 1 + 0.0025 * place
        costs.add(drafting(16, 100.0 + place, 12.5 * scale, 1.0 * scale))
        costs.add(plain(16, 100.0 + place, 10.0 * scale))
    short, long = (costs.prices(16, [0, 1], length).drafting[1] for length in (120.0, 480.0))
    assert long / short == pytest.approx(1.95 / 1.05, rel=0.1)


def test_drafts_that_are_known_too_dear_are_told_by_drafts_beside_looked_up_tokens() -> None:
    costs = Costs()
    for _ in range(8):
        costs.add(plain(16, 100.0, 10.0))
        costs.add(drafting(16, 100.0, 12.5, 4.0))
    mixed(costs, 60, 1.0)
    _, drafts = costs.of_some(16, 1, 100.0)
    assert drafts[14, 0] < 1.5


def test_reading_a_prompt_beside_looked_up_tokens_is_not_what_proposing_takes() -> None:
    costs = Costs()
    for _ in range(8):
        costs.add(replace(plain(16, 100.0, 10.0), looked=True))
        costs.add(drafting(16, 100.0, 12.5, 1.0))
    for _ in range(5):
        seen = replace(drafting(16, 100.0, 12.5, 9.0), looked=True, found=True, caught_up=100)
        costs.add(replace(seen, stepping=15))
    assert costs.prices(16, [0, 1], 100.0).proposing == pytest.approx(0.0, abs=0.01)


def test_no_more_than_three_quarters_of_a_round_are_thought_to_be_due_to_its_length() -> None:
    """Where all of it is."""
    growing = Growing()
    for _ in range(3):
        for place in range(400):
            growing.add(16, 16, 10.0 + place, 0.01 * (10.0 + place))
    assert grown(growing, 16, 0.0, 210.0) == pytest.approx(4.0, rel=0.25)
    assert grown(growing, 16, 0.0, 210.0) < 5


def test_all_is_compared_with_a_usual_length_and_not_with_the_first_one() -> None:
    """One row of twenty tokens, as while a model is loaded, and then texts of hundreds."""
    growing = Growing()
    for place in range(16):
        growing.add(1, 1, 20.0 + place, 7.0)
    for _ in range(3):
        for place in range(300):
            growing.add(16, 16, 100.0 + place, 1 + 0.004 * place)
    assert growing.times(16, 220.0) == pytest.approx(1.0, abs=0.3)


def test_texts_may_grow_to_many_times_their_length() -> None:
    """From 100 tokens to 4,000, by which rounds come to take five times as long."""
    rng, growing = np.random.default_rng(0), Growing()
    for place in range(0, 3900):
        growing.add(16, 16, 100.0 + place, (1 + 0.001 * place) * rng.lognormal(0, 0.05))
    assert grown(growing, 16, 2000.0, 3900.0) == pytest.approx(4.8 / 2.9, rel=0.1)
