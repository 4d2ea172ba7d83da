"""What a source of looked-up tokens is trusted for, and what is proposed of what it finds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from outrider import (
    HybridDrafter,
    PredictionDrafter,
    SamplingParams,
    SpeculativeConfig,
    SpeculativeDecoder,
    SuffixDrafter,
)
from outrider.drafters.candidate import Candidate
from outrider.drafters.track_record import TrackRecord
from outrider.runtimes.tabular import TabularModel
from outrider.types.records import DraftPlan, Prefix, SequenceState
from outrider.types.worth import Worth

from .test_hybrid import Context, chain, counting


def told(
    record: TrackRecord, rounds: int, candidate: Candidate, followed: list[int], **more: Any
) -> tuple[float, float]:
    """The ratios after rounds in which each candidate was followed by these tokens."""
    ctx: Any = Context(1, **more)
    prefix = Prefix(1, (0,))
    for _ in range(rounds):
        record.applied([prefix], [candidate], ctx)
        prefix = prefix.extended(followed)
    record.applied([prefix], [Candidate.nothing()], ctx)
    return record.ratios


def test_the_ratios_follow_what_was_kept_beside_what_was_expected() -> None:
    assert TrackRecord().ratios == (1, 1)
    assert told(TrackRecord(), 500, chain(1, 2, chance=0.5), [3, 1]) == (0.1, 1)
    assert told(TrackRecord(), 500, chain(1, 2, chance=0.5), [1, 2, 3]) == (1.5, 1.5)
    # Both were reached and the first was kept; .8 and .8 were expected.
    found = told(TrackRecord(), 500, chain(1, 2, chance=0.8), [1, 3])
    assert found == pytest.approx((1 / 0.8, 0.1), abs=0.01)
    # Only as many tokens count as came.
    found = told(TrackRecord(), 500, chain(1, 2, 3, chance=0.8), [1])
    assert found == pytest.approx((1 / 0.8, 1), abs=0.01)


def test_any_child_of_a_node_counts() -> None:
    tree = Candidate(np.array([5, 6, 7]), np.array([0, 0, 2]), np.array([0.4, 0.3, 0.2]), 1, 0.9)
    assert told(TrackRecord(), 500, tree, [6, 9]) == pytest.approx((1 / 0.7, 0.1), abs=0.01)
    assert told(TrackRecord(), 500, tree, [6, 7]) == pytest.approx((1 / 0.7, 1.5), abs=0.01)


def test_what_is_distrusted_has_a_way_back() -> None:
    record = TrackRecord()
    low, _ = told(record, 100, chain(1, chance=0.5), [3])
    high, _ = told(record, 300, chain(1, chance=0.5), [1])
    assert low < 0.2 < 1.4 < high


def test_rows_whose_text_must_repeat_neither_count_nor_are_scaled() -> None:
    record = TrackRecord()
    told(record, 100, chain(1, chance=0.5), [3])
    low = record.ratios
    assert told(record, 100, chain(1, chance=0.5), [1], local=np.array([True])) == low
    assert told(record, 100, chain(1, chance=0.5), [1], remembers=False) == low
    prefixes = [Prefix(1, (0,)), Prefix(2, (0,))]
    ctx: Any = Context(2, local=np.array([True, False]))
    own, scaled = record.applied(prefixes, [chain(1)] * 2, ctx)
    assert own.expected == 1
    assert scaled.expected == low[0]


def test_what_is_expected_of_long_candidates_is_what_is_kept_of_them() -> None:
    """First tokens that come more often than thought, and later ones, thought certain, less.

    By one ratio of all tokens, 3.6 would be expected of these, and 2.9 are kept.
    """
    rng, record, ctx = np.random.default_rng(0), TrackRecord(), Context(1)
    found = Candidate(np.arange(1, 9), np.arange(8), np.full(8, 0.5), 1, 4.0)
    prefix, expected, kept = Prefix(1, (0,)), list[float](), list[int]()
    for _ in range(2000):
        (scaled,) = record.applied([prefix], [found], ctx)
        came = rng.random(8) < [0.7, *[0.8] * 7]
        count = int(np.argmin([*came, False]))
        prefix = prefix.extended([*range(1, count + 1), 0])
        expected.append(scaled.expected)
        kept.append(count)
    # Forty seeds came to .984 of what was kept, standard deviation .0064: beyond .95 or 1.05
    # once in ten million. One ratio of all tokens comes to 1.22.
    assert np.mean(expected[200:]) == pytest.approx(np.mean(kept[200:]), rel=0.05)


class Costly:
    """A policy that says what a drafted token costs."""

    learns = False

    def __init__(self, token: float, plain: float = 1.0) -> None:
        self.token = token
        self.plain = plain

    def plan(self, states: list[SequenceState]) -> DraftPlan:
        depth = np.array([max(0, min(8, state.remaining - 1)) for state in states])
        rows = np.ones(len(states))
        return DraftPlan(depth, None, None, depth, Worth(self.plain * rows, self.token * rows))

    def observe(self, states: Any, record: Any) -> None: ...


def drafted(drafter: Any, policy: Any, prompt: list[int], **more: Any) -> tuple[int, int]:
    """Tokens drafted and rounds that drafted in 40 tokens that count upwards."""
    decoder = SpeculativeDecoder(
        TabularModel(counting, 50),
        drafter,
        config=SpeculativeConfig(depth="fixed", num_speculative_tokens=8),
        policy=policy,
    )
    output = decoder.generate(prompt, SamplingParams(max_tokens=40, temperature=0, **more))
    assert output.token_ids == tuple((prompt[-1] + 1 + i) % 50 for i in range(40))
    return decoder.metrics.drafted, decoder.metrics.draft_rounds


def test_a_prediction_in_another_language_costs_next_to_nothing() -> None:
    """Tokens of the output in no order: each is found, and what follows it is wrong."""
    other = tuple(np.random.default_rng(0).permutation(np.repeat(np.arange(50), 5)).tolist())
    without, under = (
        drafted(PredictionDrafter(min_match=1), Costly(token), [9], prediction=other)
        for token in (0.0, 0.1)
    )
    assert under[0] < 0.7 * without[0]
    # Beside a model that brings two tokens a round it is tried twice or three times.
    draft = TabularModel(counting, 50)
    hybrid = HybridDrafter(draft, PredictionDrafter(min_match=1))
    _, rounds = drafted(hybrid, Costly(0.1, 2.0), [9], prediction=other)
    assert rounds <= 5 + 3, "40 tokens are 5 rounds of 8"
    right = tuple(range(10, 50))
    assert drafted(PredictionDrafter(), Costly(0.05), [9], prediction=right)[0] == 35
    # A prediction of tokens that never come is tried once.
    assert drafted(PredictionDrafter(), Costly(0.05), [9], prediction=(3,) * 50)[1] == 1


@pytest.mark.parametrize("plain", [1.0, 2.5])
def test_lookups_alone_are_compared_with_plain_decoding(plain: float) -> None:
    """What a model would bring is no alternative where there is none."""
    prompt = [*range(20), *range(3)]
    found = [
        drafted(SuffixDrafter(max_spec_offset=4), Costly(token * plain, plain), prompt)
        for token in (0.0, 1.0)
    ]
    assert found[0][0] > found[1][0] == 0
    assert found[0] == drafted(SuffixDrafter(max_spec_offset=4), None, prompt)
