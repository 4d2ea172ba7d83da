"""Figures of rounds: one definition of each, and their text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from outrider import SamplingParams, SpeculativeConfig, SpeculativeDecoder
from outrider.engine.metrics import SpeculationMetrics, Tally
from outrider.runtimes.tabular import mock_pair
from outrider.types.records import RoundRecord


def tallied(*rounds: tuple[int, int, float | None]) -> SpeculationMetrics:
    """The figures of rounds of (drafted, emitted, ceiling)."""
    tally = Tally()
    for drafted, emitted, ceiling in rounds:
        tally.add(
            RoundRecord(
                sequence_ids=(0,),
                drafted=(drafted,),
                depth=(drafted,),
                accepted=(emitted - 1,),
                emitted=(emitted,),
                bonus=(False,),
                ceiling=(ceiling,),
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


def test_a_ceiling_is_the_mean_over_the_rounds_that_drafted() -> None:
    found = tallied((2, 1, 1.5), (0, 1, 1.0), (2, 3, 2.5))
    assert found.acceptance_length == 2.0
    assert found.ceiling == 2.0
    # A standard deviation of .5 over two rounds: a standard error of .5.
    assert found.ceiling_interval == pytest.approx((2 - 1.96 * 0.5, 2 + 1.96 * 0.5))


def test_a_ceiling_is_none_unless_it_is_known_of_every_round_that_drafted() -> None:
    for found in (tallied((2, 1, 1.5), (2, 3, None)), tallied((0, 1, 1.0)), tallied()):
        assert found.ceiling is found.ceiling_interval is None
    once = tallied((2, 3, 2.5))
    assert once.ceiling == 2.5
    assert once.ceiling_interval is None


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
    found = decoder.metrics
    assert found.ceiling is not None
    assert found.acceptance_length is not None
    assert least < found.acceptance_length / found.ceiling < most


def test_as_a_text_it_is_what_one_looks_for() -> None:
    run = tallied((2, 2, 2.0), (2, 3, 3.0))
    acceptance, speed = str(run).split("\n")
    assert "0.750 (3 accepted / 4 drafted), mean acceptance length = 2.50" in acceptance
    assert "2 rounds, 2.50 tokens a round" in speed
    warning, *lossy = str(replace(run, lossy=True)).split("\n")
    assert warning == "lossy: the output's distribution is not the target's"
    assert lossy == [f"lossy: {acceptance}", f"lossy: {speed}"]


def test_a_text_of_one_round_or_none() -> None:
    assert "1 round, 2.00 tokens a round" in str(tallied((1, 2, None)))
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
    names = ("drafted", "depth", "accepted", "emitted", "ceiling")
    guarded = replace(records[0], **{name: Unread(getattr(records[0], name)) for name in names})
    tally = Tally()
    for row in range(3):
        tally.add(guarded, row)
    assert tally.metrics().emitted == sum(records[0].emitted)
