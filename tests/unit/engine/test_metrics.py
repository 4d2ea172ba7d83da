"""Shares of a ceiling: one definition, and errors that cover as often as they say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import sqrt

import numpy as np
import pytest

from outrider import SamplingParams, SpeculativeConfig, SpeculativeDecoder
from outrider.engine.metrics import SpeculationMetrics, Tally
from outrider.runtimes.tabular import mock_pair
from outrider.types.records import RoundRecord


def tallied(*rounds: tuple[int, int, float | None, float | None]) -> SpeculationMetrics:
    """The figures of rounds of (drafted, emitted, ceiling, first ceiling)."""
    tally = Tally()
    for drafted, emitted, ceiling, first in rounds:
        tally.add(
            RoundRecord(
                sequence_ids=(0,),
                drafted=(drafted,),
                depth=(drafted,),
                accepted=(emitted - 1,),
                emitted=(emitted,),
                bonus=(False,),
                ceiling=(ceiling,),
                first_ceiling=(first,),
                draft_failed=False,
                sources=("model",),
                confidence=((),),
                cached=(0,),
                draft_s=0.0,
                target_s=0.0,
                total_s=1.0,
            )
        )
    return tally.metrics()


def half_width(interval: tuple[float, float] | None) -> float:
    assert interval is not None
    return (interval[1] - interval[0]) / 2


def test_a_share_is_the_ratio_of_means_over_the_rounds_that_drafted() -> None:
    found = tallied((2, 1, 1.5, 0.5), (0, 1, 1.0, None), (2, 3, 2.5, 0.9))
    assert found.acceptance_length == 2.0
    assert found.ceiling == 2.0
    assert found.ceiling_share == 1.0
    assert found.first_ceiling == pytest.approx(0.7)
    assert found.first_ceiling_share == pytest.approx(0.5 / 0.7)
    # The residuals are -.5 and .5: a standard error of .5 over the ceiling.
    assert found.ceiling_share_interval == pytest.approx((1 - 1.96 * 0.25, 1 + 1.96 * 0.25))


def test_a_share_is_none_where_a_ceiling_is_not_known() -> None:
    partly = tallied((2, 1, 1.5, None), (2, 3, None, 0.9))
    nothing = tallied((0, 1, 1.0, None))
    for found in (partly, nothing, tallied()):
        assert found.ceiling is found.ceiling_share is found.ceiling_share_interval is None
        assert found.first_ceiling is found.first_ceiling_share is None
        assert found.first_ceiling_share_interval is None
    once = tallied((2, 3, 2.5, 0.9))
    assert once.ceiling_share == 3 / 2.5
    assert once.ceiling_share_interval is None
    assert once.ceiling_interval is None


def test_a_first_ceiling_of_zero_has_no_share() -> None:
    found = tallied((2, 1, None, 0.0), (2, 1, None, 0.0))
    assert found.first_ceiling == 0.0
    assert found.first_ceiling_share is None
    assert found.first_ceiling_share_interval is None


def test_what_always_reaches_its_ceiling_has_no_error() -> None:
    found = tallied(*((4, tokens, float(tokens), None) for tokens in (1, 5, 2, 3)))
    assert found.ceiling_share == 1.0
    assert half_width(found.ceiling_share_interval) == pytest.approx(0, abs=1e-7)
    assert half_width(found.ceiling_interval) > 1.96 * 0.5


@pytest.mark.slow
def test_intervals_cover_as_often_as_they_say() -> None:
    """600 runs of 150 rounds; within 5 standard errors of 95%: 1 in 2 million, or a false normal.

    Emitted tokens follow their own round's ceiling. An interval by the ceiling's error alone, as
    if what was emitted were known and the two were apart, covers far too rarely: it must fail.
    """
    rng = np.random.default_rng(5)
    covered = by_the_ceiling_alone = 0
    for _ in range(600):
        ceilings = rng.uniform(1.0, 1.2, 150)
        emitted = 1 + (rng.random(150) < 0.9 * ceilings - 0.9)
        rounds = zip(emitted.tolist(), ceilings.tolist(), strict=True)
        found = tallied(*((1, tokens, ceiling, None) for tokens, ceiling in rounds))
        truth = (1 + 0.9 * 0.1) / 1.1
        assert found.ceiling_share_interval is not None
        low, high = found.ceiling_share_interval
        covered += low <= truth <= high
        assert found.ceiling_share is not None
        assert found.ceiling is not None
        error = found.ceiling_share * half_width(found.ceiling_interval) / found.ceiling
        by_the_ceiling_alone += abs(found.ceiling_share - truth) <= error
    allowed = 5 * sqrt(0.95 * 0.05 / 600)
    assert abs(covered / 600 - 0.95) < allowed
    assert by_the_ceiling_alone / 600 < 0.95 - allowed


@pytest.mark.parametrize(
    ("verification", "least", "most"), [("block", 0.97, 1.03), ("token", 0.8, 0.99)]
)
@pytest.mark.slow
def test_block_reaches_its_ceiling_on_chains_and_token_does_not(
    verification: str, least: float, most: float
) -> None:
    """About 2,500 rounds of one seed: shares of about 1 and .95 with errors below .01."""
    target, draft = mock_pair(4, 1, 0.0)
    config = SpeculativeConfig(depth="fixed", num_speculative_tokens=4, verification=verification)
    decoder = SpeculativeDecoder(target, draft, config=config)
    decoder.generate((0,), SamplingParams(max_tokens=20, n=250, seed=3))
    share = decoder.metrics.ceiling_share
    assert share is not None
    assert half_width(decoder.metrics.ceiling_share_interval) < 1.96 * 0.01
    assert least < share < most


def test_as_a_text_it_is_what_one_looks_for() -> None:
    text = str(tallied((2, 2, 2.0, None), (2, 3, 3.0, None)))
    acceptance, ceiling, speed = text.split("\n")
    assert "0.750 (3 accepted / 4 drafted), mean acceptance length = 2.50" in acceptance
    assert ceiling.startswith("estimated ceiling = 2.50 +- ")
    assert ceiling.endswith("100.0% +- 0.0% of it was reached")
    assert "2 rounds, 2.50 tokens a round" in speed


def test_no_share_above_all_is_printed_of_a_lossless_run() -> None:
    """More than the estimate of the most: that is the estimate's error."""
    rounds = [(2, 2, 1.9, None), (2, 2, 2.0, None), (2, 2, 2.05, None)]
    run = tallied(*rounds)
    assert run.ceiling_share is not None
    assert run.ceiling_share > 1
    error = half_width(run.ceiling_share_interval)
    assert f"; all of it was reached, within the estimate's error (+- {error:.1%})" in str(run)
    lossy = str(replace(run, lossy=True))
    assert "lossy: estimated ceiling" in lossy
    assert f"{run.ceiling_share:.1%} +- {error:.1%} of it was reached" in lossy
    doubtful = str(tallied((2, 3, 1.5, None), (2, 1, 2.5, None)))
    assert "; more rounds are needed to say how much of it was reached" in doubtful


def test_a_text_of_one_round_or_none() -> None:
    assert "1 round, 2.00 tokens a round" in str(tallied((1, 2, None, None)))
    assert str(Tally().metrics()) == (
        "draft acceptance = none (nothing was drafted)\n"
        "0 tokens in 0.00 s = 0.0 tokens/s, prompt included; 0 rounds, 0.00 tokens a round"
    )


def test_counting_one_row_does_not_go_through_the_others() -> None:
    """A call with many requests counts each row of each round by itself."""

    class Unread(tuple[int, ...]):
        def __iter__(self) -> Iterator[int]:
            raise AssertionError("all rows were read")

    records: list[RoundRecord] = []
    target, draft = mock_pair(3, 1)
    decoder = SpeculativeDecoder(target, draft, on_round=records.append)
    decoder.generate([[0], [1], [2]], SamplingParams(max_tokens=4, seed=1))
    names = ("drafted", "depth", "accepted", "emitted", "ceiling", "first_ceiling")
    guarded = replace(records[0], **{name: Unread(getattr(records[0], name)) for name in names})
    tally = Tally()
    for row in range(3):
        tally.add(guarded, row)
    assert tally.metrics().emitted == sum(records[0].emitted)
