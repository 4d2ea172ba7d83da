"""The ratio of speeds and its interval."""

from __future__ import annotations

import numpy as np
import pytest

from outrider.bench.speedup import Stretch, gain, speedup, t_quantile


def test_the_ratio_is_that_of_tokens_per_second() -> None:
    found = speedup([2.0, 4.0], [1.0, 2.0])
    assert found.ratio == pytest.approx(2.0)
    # Every prompt shows the same ratio: there is nothing to be unsure of.
    assert found.low == pytest.approx(2.0)
    assert found.high == pytest.approx(2.0)


def test_one_stretch_has_no_interval() -> None:
    found = speedup([2.0], [1.0])
    assert (found.ratio, found.low, found.high) == (pytest.approx(2.0), None, None)


def test_repeats_of_a_prompt_say_nothing_of_others() -> None:
    first, second = Stretch(0.0, "a", "code", 9, 2.0, 1.0), Stretch(0.0, "b", "code", 9, 3.0, 2.0)
    once, often = gain([first, second]), gain([first, second] * 5)
    assert once == speedup([2.0, 3.0], [1.0, 2.0])
    assert often.low == pytest.approx(once.low)
    assert gain([first] * 5).low is None


def test_texts_of_one_prompt_at_several_temperatures_are_one() -> None:
    cold, hot = (Stretch(each, "a", "code", 9, 2.0, 1.0) for each in (0.0, 0.8))
    assert gain([cold, hot]) == speedup([4.0], [2.0])


@pytest.mark.parametrize(
    ("freedom", "expected"), [(1, 12.7062), (4, 2.7764), (7, 2.3646), (30, 2.0423), (300, 1.9679)]
)
def test_quantiles_of_students_t(freedom: int, expected: float) -> None:
    assert t_quantile(freedom) == pytest.approx(expected, rel=2e-3)


def _misses(truth: float, claimed: float, count: int, trials: int = 2000) -> int:
    """How often the interval of `count` stretches misses `claimed`; their ratio is `truth`."""
    rng = np.random.default_rng(0)
    missed = 0
    for _ in range(trials):
        plain = rng.lognormal(0.0, 0.2, count)
        other = plain / truth * rng.lognormal(0.0, 0.1, count)
        found = speedup(plain.tolist(), other.tolist())
        assert found.low is not None
        assert found.high is not None
        missed += not found.low <= claimed <= found.high
    return missed


@pytest.mark.parametrize("count", [4, 12])
def test_intervals_hold_the_truth_as_often_as_they_say(count: int) -> None:
    """5% of 2,000 is 100; a binomial is above 140 with a probability below 4e-5."""
    assert 50 < _misses(1.5, 1.5, count) < 140


def test_intervals_reject_a_wrong_ratio() -> None:
    """The planted fault of the test above: a ratio that is 20% off is missed most of the time."""
    assert _misses(1.5, 1.8, 12) > 1500
