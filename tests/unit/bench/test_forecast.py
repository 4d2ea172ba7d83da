"""What is recommended, and in which words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outrider.bench.costs import Costs
from outrider.bench.forecast import Forecast, basis, chosen, schedule, verdict
from outrider.bench.records import Candidate
from outrider.bench.speedup import Stretch, gain

SUFFIX, MODEL = Candidate("suffix", "block"), Candidate("draft_model", "block", 2)


def forecast(
    candidate: Candidate = SUFFIX, raced: tuple[float, ...] = (), **gains: tuple[float, ...]
) -> Forecast:
    stretches = stretched(**gains)
    return Forecast(candidate, stretches, model_s=0.5, raced=stretched(editing=raced))


def stretched(**gains: tuple[float, ...]) -> tuple[Stretch, ...]:
    return tuple(
        Stretch(0.0, f"{kind} {place}", kind, 9, gain, 1.0)
        for kind, some in gains.items()
        for place, gain in enumerate(some)
    )


SURE = forecast(editing=(1.8, 1.7), code=(1.5, 1.6))
FIXED = forecast(Candidate("suffix", "block", 4), editing=(1.8, 1.8), code=(1.6, 1.6))
SOMETIMES = forecast(editing=(1.8, 1.8), code=(0.98, 0.7))
NEVER = forecast(editing=(0.9, 0.95), code=(0.9, 0.8))
DEAR = forecast(MODEL, editing=(0.8, 0.9), code=(0.7, 0.8))


def test_what_surely_pays_is_chosen() -> None:
    assert chosen([SURE, DEAR]) == SURE


def test_a_bound_is_preferred_to_a_little_speed() -> None:
    assert chosen([FIXED, SURE]) == SURE
    much = forecast(Candidate("suffix", "block", 4), editing=(2.8, 2.7), code=(2.5, 2.6))
    assert chosen([much, SURE]) == much


def test_what_gains_on_some_and_is_bounded_on_others_is_chosen() -> None:
    assert chosen([SOMETIMES, DEAR]) == SOMETIMES
    unbounded = forecast(Candidate("suffix", "block", 4), editing=(1.8, 1.8), code=(0.98, 0.7))
    assert chosen([unbounded, DEAR]) is None


def test_nothing_is_chosen_where_nothing_pays() -> None:
    assert chosen([NEVER, DEAR]) is None
    assert chosen([]) is None


def test_a_race_that_was_lost_recommends_nothing() -> None:
    raced = forecast(editing=(1.8, 1.8), code=(1.5, 1.6), raced=(0.9, 0.91))
    assert raced.off == pytest.approx(1.8 / 0.905)
    assert chosen([raced]) is None
    assert chosen([raced, SURE]) == SURE
    once = forecast(editing=(1.8, 1.8), code=(1.5, 1.6), raced=(0.5,))
    assert chosen([once]) is None


def test_a_race_that_cannot_tell_is_not_lost() -> None:
    noisy = forecast(editing=(1.8, 1.8), code=(0.98, 0.7), raced=(1.5, 0.4))
    assert not noisy.sure
    assert chosen([noisy]) == noisy


def test_a_prediction_and_its_race_are_weighed_by_their_intervals() -> None:
    close = forecast(editing=(1.6, 1.5), code=(1.5, 1.6), raced=(1.5, 1.6))
    assert close.estimate.ratio == pytest.approx(1.55, abs=0.01)
    assert close.estimate.low is not None
    assert gain(close.stretches).low is not None
    assert close.estimate.low > gain(close.stretches).low  # two that agree say more than one
    apart = forecast(editing=(1.5, 1.51), code=(1.49, 1.5), raced=(0.79, 0.81))
    assert 0.8 < apart.estimate.ratio < 1.5
    assert not apart.sure
    assert apart.estimate.outcome == 0


def test_what_won_its_race_goes_before_what_was_predicted_to_win() -> None:
    fell = forecast(Candidate("suffix", "block", 4), (1.0, 1.02), editing=(1.61, 1.6))
    held = forecast(Candidate("ngram", "block", 4), (1.55, 1.54), editing=(1.6, 1.59))
    unraced = forecast(Candidate("ngram", "block", 2), editing=(1.7, 1.71))
    order = sorted([fell, held, unraced], key=lambda each: -each.estimate.ratio)
    assert chosen(order) == held


def test_what_wrote_a_wrong_token_is_not_chosen() -> None:
    assert chosen([replace(SURE, wrong=True)]) is None


def test_costs_of_cold_rounds_say_too_little() -> None:
    cold = replace(SURE, cold=True)
    assert SURE.sure
    assert not cold.sure
    assert "timed once (give it more with --budget)" in basis([cold])


def test_texts_that_were_raced_more_often_do_not_count_more() -> None:
    once = stretched(editing=(3.0,), code=(1.0,))
    raced = Forecast(SUFFIX, once, raced=(*once, once[0], once[0]))
    assert raced.off == pytest.approx(1.0)


def test_a_prediction_is_compared_with_the_race_of_the_same_texts() -> None:
    """An end after the first temperature leaves a race of half of them."""
    cold = stretched(editing=(2.0, 2.0))
    hot = tuple(replace(each, temperature=0.8, plain=0.7) for each in cold)
    found = Forecast(SUFFIX, (*cold, *hot), raced=cold)
    assert found.off == pytest.approx(1.0)
    assert gain(found.stretches).ratio == pytest.approx(1.35)


def test_the_first_that_is_sure_is_chosen() -> None:
    wide = forecast(Candidate("suffix", "block", 8), editing=(2.9, 0.9), code=(2.5, 1.0))
    sure = forecast(Candidate("suffix", "block", 4), editing=(1.6, 1.6), code=(1.5, 1.5))
    assert not wide.sure
    assert chosen([wide, sure, forecast(editing=(1.5, 1.0), code=(1.0, 1.0))]) == sure


def test_one_text_recommends_nothing() -> None:
    assert chosen([forecast(editing=(1.8,))]) is None


def test_what_was_not_raced_has_to_gain_more() -> None:
    little = forecast(MODEL, editing=(1.04, 1.04), code=(1.04, 1.04))
    assert chosen([little]) is None
    assert chosen([forecast(MODEL, (1.04, 1.04), editing=(1.04, 1.04))]) is not None
    alone = forecast(MODEL, (1.04,), editing=(1.04, 1.04))
    assert not alone.sure
    assert not replace(alone, stretches=SURE.stretches, cold=True).sure
    assert replace(alone, stretches=SURE.stretches).sure


def test_verdicts() -> None:
    said = list(verdict([SOMETIMES, DEAR], step=0.45))
    assert said[0].startswith("safe to use, though it may gain little: suffix look-ups with adapt")
    assert next(verdict([SURE], step=0.0)).startswith("use suffix look-ups with adaptive depth: 1.")
    assert "1.80x [1.80 to 1.80] on editing" in said[0]
    assert "loses at most 2%" in said[0]
    assert said[1].startswith("the draft model does not pay here (0.80x")
    # Of 4 seconds 0.5 are the model's; plain decoding takes 3.2.
    assert "a step costs 0.45 of a plain round, and verifying alone costs more" in said[1]


def test_the_step_that_would_pay_is_named() -> None:
    near = Forecast(MODEL, stretched(code=(0.9, 0.9)), model_s=1.0)
    (said,) = list(verdict([SURE, near], step=0.5))[1:]
    assert "it would have to cost under 0.4" in said


def test_turning_it_off_is_a_verdict() -> None:
    (said, _) = list(verdict([NEVER, DEAR], step=0.45))
    assert said.startswith("decode plainly: nothing that drafts surely pays; at best suffix")


def test_basis_names_the_error_of_predictions() -> None:
    assert "not raced within the time" in basis([SURE])
    raced = forecast(editing=(1.8, 1.8), code=(1.5, 1.6), raced=(1.6, 1.65))
    assert "(prediction +11%)" in basis([raced])
    assert "one prompt" not in basis([raced])
    short = forecast(editing=(1.8, 1.8), code=(1.5, 1.6), raced=(1.6,))
    assert short.estimate == gain(short.stretches)
    assert "1.60x on one prompt, too little for the estimate (prediction" in basis([short])


def test_costs_beyond_what_was_timed_never_fall() -> None:
    seconds = (1.0, 1.2, 1.4, 1.8, 2.6, 2.5)
    noisy = Costs(0.0, 1, 200, (0, 1, 2, 4, 7, 8), seconds, (0.0,) * 6)
    assert noisy.verifying(16) == pytest.approx(2.5 + (2.5 - 1.8) / 4 * 8)
    flat = Costs(0.0, 1, 200, (0, 4, 8), (1.0, 1.3, 1.2), (0.0,) * 3)
    assert flat.verifying(84) == 1.2


def test_rounds_that_look_up_nothing_cost_a_plain_round() -> None:
    """Half of the rounds draft: 2.2 tokens for 1.75 plain rounds, not for 2.5."""
    four = Candidate("ngram", "block", 4)
    found = Forecast(four, stretched(code=(1.3,)), length=2.2, drafted=0.5)
    costs = Costs(0.0, 1, 200, (0, 1, 2, 4), (1.0, 1.5, 1.9, 2.5), (0.0, 0.0, 0.0, 0.0))
    assert schedule([found], "ngram", [costs]) == ((1, 4),)
    assert schedule([replace(found, drafted=1.0)], "ngram", [costs]) == ((1, 0),)


def test_a_schedule_has_the_fastest_depth_of_each_batch_size() -> None:
    one = Forecast(MODEL, stretched(code=(1.0,)), length=2.5)
    four = Forecast(Candidate("draft_model", "block", 4), stretched(code=(1.0,)), length=4.0)
    cheap = Costs(0.0, 1, 200, (0, 1, 2, 4), (1.0, 1.0, 1.1, 1.2), (0.0, 0.1, 0.2, 0.4))
    dear = Costs(0.0, 16, 200, (0, 1, 2, 4), (1.0, 2.0, 3.0, 5.0), (0.0, 0.1, 0.2, 0.4))
    assert schedule([one, four], "draft_model", [cheap, dear]) == ((1, 4), (16, 0))
    assert schedule([one, four], "ngram", [cheap, dear]) == ()
