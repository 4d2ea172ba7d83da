"""Predictions held against runs: what is pooled, what an interval holds, and what is counted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from outrider.bench.checks import Check, agreement, pooled, told
from outrider.bench.contending import PLAIN
from outrider.bench.forecast import Prediction
from outrider.bench.race import compared
from outrider.bench.records import Contender, Measurement
from outrider.bench.tune import recommend

K2 = Contender("outrider", "draft_model", "block", 2)


def prediction(contender: Contender, seconds: float, *, exact: bool = True) -> Prediction:
    return Prediction(contender, 0.0, 100, 50.0, seconds, exact)


PREDICTIONS = [prediction(PLAIN, 10.0), prediction(K2, 4.0)]


def timed(
    contender: Contender, seconds: tuple[float, ...], temperature: float = 0.0
) -> Measurement:
    """Of stretches of 50 tokens."""
    tokens = (50,) * len(seconds)
    return Measurement(
        contender, "some", temperature, 1, "float32", seconds, tokens, None, 2, None, None, None
    )


def repeated(
    seconds: tuple[float, ...], distinct: int, predicted: Prediction | None = None
) -> Check:
    return Check(timed(PLAIN, (1.0,) * len(seconds)), timed(K2, seconds), predicted, distinct)


def test_a_prediction_is_held_against_the_pace_of_the_run() -> None:
    """The machine is half as fast as it was, for plain decoding and for the configuration."""
    slow = Check(timed(PLAIN, (20.0,)), timed(K2, (8.0,)), prediction(K2, 8.0), 1, pace=0.5)
    assert slow.error == pytest.approx(0.0)
    steady = Check(timed(PLAIN, (10.0,)), timed(K2, (8.0,)), prediction(K2, 8.0), 1)
    assert steady.error == pytest.approx(1.0)


def test_a_hiccup_counts_and_is_told_apart() -> None:
    """Of ten seconds one round took eight: the prediction is off by that, and right without it."""
    plain = replace(timed(PLAIN, (12.0,)), usual_s=(10.0,))
    measured = replace(timed(K2, (10.0,)), usual_s=(2.0,))
    slow = Check(plain, measured, prediction(K2, 4.0), 1, pace=10 / 12)
    assert slow.usual_error == pytest.approx(0.0)
    assert slow.error == pytest.approx((25 * 10 / 12) / 5 - 1)
    counted = agreement([slow], rehearsed=False)
    assert (counted.close, counted.usual) == (0, 1)


def test_repeats_and_temperatures_of_a_prompt_are_resampled_together() -> None:
    """Two prompts, one twice as fast as the other, tell the same however often they are run."""
    once = pooled([repeated((0.5, 1.25), 2)])
    gain, low, high = once
    assert low is not None
    assert high is not None
    assert (low < 1 / 1.25, high > 2.0) == (True, True)
    assert low * high == pytest.approx(gain**2)
    again = repeated((0.5, 1.25) * 4, 2)
    assert pooled([again]) == pytest.approx(once)
    assert pooled([again, again, again]) == pytest.approx(once)
    found = recommend((0.0,), PREDICTIONS, [again])
    assert found is not None
    assert found.measured > 1
    assert not found.speculate


def test_a_check_that_was_cut_short_is_pooled_prompt_by_prompt() -> None:
    whole, short = repeated((0.5, 1.0, 2.0) * 2, 3), repeated((0.5, 1.0), 3)
    gain, low, high = pooled([whole, short])
    assert gain == pytest.approx(8 / 8.5)
    # As if each prompt had been one stretch of all that it was seen in.
    together = compared([3.0, 3.0, 2.0], [150, 150, 100], [1.5, 3.0, 4.0], [150, 150, 100], 3)
    assert (gain, low, high) == pytest.approx(together)
    assert pooled([short]) == pytest.approx(compared([1.0] * 2, [50] * 2, [0.5, 1.0], [50] * 2, 2))


@pytest.mark.parametrize("distinct", [1, 4])
def test_one_prompt_recommends_nothing(distinct: int) -> None:
    """Neither alone and repeated, nor as all that an interrupt has left."""
    seconds = (0.5, 0.5) if distinct == 1 else (0.5,)
    few = repeated(seconds, distinct)
    assert pooled([few, few]) == (2.0, None, None)
    assert pooled([repeated((0.5,) * 8, 4), few])[1:] == (None, None)
    found = recommend((0.0,), PREDICTIONS, [few])
    assert found is not None
    assert (found.contender, found.best) == (PLAIN, K2)
    assert not found.speculate
    assert found.verdict.startswith(
        "plain decoding, since too few prompts can recommend no other: the best checked"
    )
    assert "2.00x plain decoding (no interval: it takes two prompts" in found.verdict


def test_the_error_of_a_run_is_of_repeats_and_not_of_prompts() -> None:
    slow = repeated((0.9, 10.0, 1.1, 10.0), 2)
    other = repeated((0.9, 0.5, 1.1, 0.5), 2)
    # Two degrees of freedom: squares of 0.1 twice, so 0.01 each, of four times.
    for check, total in ((slow, 22.0), (other, 3.0)):
        assert check.standard_error == pytest.approx(200 / total * 0.2 / total)
        assert check.interval == pytest.approx(
            (200 / total * (1 - 4.303 * 0.2 / total), 200 / total * (1 + 4.303 * 0.2 / total)),
            rel=0.01,
        )
    assert repeated((0.9, 10.0), 2).standard_error is None
    assert repeated((0.9, 1.1), 1).interval is None


def test_the_error_of_a_run_is_that_over_plain_decoding() -> None:
    """What slows both down says nothing; what slows plain decoding alone moves the pace."""
    both = Check(timed(PLAIN, (2.0, 4.0, 3.0, 6.0)), timed(K2, (1.0, 2.0, 1.5, 3.0)), None, 2)
    assert both.standard_error == pytest.approx(0.0, abs=1e-9)
    plain = Check(timed(PLAIN, (9.0, 11.0, 11.0, 9.0)), timed(K2, (5.0,) * 4), None, 2)
    other = Check(timed(PLAIN, (10.0,) * 4), timed(K2, (4.5, 5.5, 5.5, 4.5)), None, 2)
    assert plain.standard_error == pytest.approx(10 * (4 * 4 / 40**2 / 2) ** 0.5)
    assert other.standard_error == pytest.approx(plain.standard_error)


@pytest.mark.parametrize("plain_noise", [0.0, 0.3])
def test_intervals_hold_what_they_should(plain_noise: float) -> None:
    """Of 4,000 runs of four prompts, twice each: 95% within 1.2 points, or one in 2,000 fails.

    Plain decoding has noise of its own, by which right predictions are scaled wrongly, and there
    are moments that slow both down. Without plain decoding's noise in them, intervals hold 83%.
    """
    random = np.random.default_rng(3)
    means = np.array([1.0, 1.5, 2.0, 3.0] * 2)
    right = prediction(K2, 100 * means.sum() / 400)
    held = 0
    for noise, other, shared in random.normal(0, 1, (4000, 3, 8)):
        slow = shared * means * 0.02
        measured = timed(K2, tuple((means + 0.1 * noise + slow).tolist()))
        plain = timed(PLAIN, tuple((2 * means + plain_noise * other + 2 * slow).tolist()))
        pace = plain.tokens_per_s / (400 / (2 * means.sum()))
        check = Check(plain, measured, right, 4, pace)
        assert check.interval is not None
        assert check.expected is not None
        held += check.interval[0] <= check.expected <= check.interval[1]
    assert held / 4000 == pytest.approx(0.95, abs=0.012)


def test_agreement_is_counted_apart_for_short_runs() -> None:
    near = repeated((4.9, 5.1, 5.1, 4.9), 2, prediction(K2, 10.5))
    assert near.error == pytest.approx(1 / 1.05 - 1)
    far = repeated((2.0, 2.0, 2.0, 2.0), 2, prediction(K2, 10.0))
    wide = repeated((1.0, 9.0, 9.0, 1.0), 2, prediction(K2, 6.0))
    once = repeated((5.0, 5.0), 2, prediction(K2, 10.0))
    short = repeated((5.0, 5.0), 2, prediction(K2, 10.0, exact=False))
    adaptive = repeated((5.0, 5.0), 2)
    checks = [near, far, wide, once, short, adaptive]
    counted = agreement(checks, rehearsed=False)
    assert (counted.of, counted.close, counted.bounded, counted.inside) == (4, 2, 3, 2)
    rehearsed = agreement(checks, rehearsed=True)
    assert (rehearsed.of, rehearsed.close, rehearsed.bounded) == (1, 1, 0)
    assert told(checks) == (
        "predictions by formula or replay: 2 of 4 within 10% (2 at the usual times of "
        "rounds), 2 of 3 within the 95% interval of the run",
        "predictions from short runs of the same: 1 of 1 within 10% (1 at the usual times of "
        "rounds)",
    )
    assert told([adaptive]) == ()


def test_the_picture_is_a_png() -> None:
    pytest.importorskip("matplotlib")
    from outrider.bench.agreement import picture

    near = repeated((5.0, 5.0), 2, prediction(K2, 10.0))
    warm = Check(timed(PLAIN, (9.0,), 1.0), timed(K2, (4.0,), 1.0), prediction(K2, 4.2), 1)
    short = repeated((5.0, 5.0), 2, prediction(K2, 10.0, exact=False))
    assert picture([near, warm, short]).startswith(b"\x89PNG")
