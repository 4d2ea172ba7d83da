"""Evidence has a mean of one whatever is asked, and servers with a fault are found out."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from outrider.certify.endpoint import evidence, features
from outrider.certify.endpoint.features import FEATURES, PLAIN, Place
from outrider.certify.endpoint.promises import Promise
from outrider.certify.endpoint.questions import plain
from outrider.certify.endpoint.records import Reading, Text, Tokens, listed
from outrider.certify.endpoint.run import Answer
from outrider.certify.reference import filtered
from outrider.cli.endpoint_screen import verdict
from outrider.config.params import SamplingParams

PARAMS = (
    PLAIN,
    SamplingParams(temperature=0.6, top_k=3),
    SamplingParams(top_p=0.7),
    SamplingParams(min_p=0.3, temperature=1.4),
    SamplingParams(presence_penalty=1.5, frequency_penalty=0.5),
    SamplingParams(repetition_penalty=1.3, top_k=4),
    SamplingParams(logit_bias={1: 2.0, 3: -4.0}),
    SamplingParams(bad_words=((2,),)),
    SamplingParams(stop_token_ids=(0,), min_tokens=4),
)


def place(rng: np.random.Generator, size: int = 6, prompt: Tokens = (1, 4, 1)) -> Place:
    ids = rng.permutation(size)
    output = tuple(rng.integers(size, size=3).tolist())
    draft = listed(np.arange(size), rng.dirichlet(np.full(size, 0.6)))
    return Place(listed(ids, rng.dirichlet(np.full(size, 0.6)), 1.5), prompt, output, draft)


@pytest.mark.parametrize("params", PARAMS)
def test_features_have_a_mean_of_zero_and_bets_stay_positive(params: SamplingParams) -> None:
    rng = np.random.default_rng(0)
    seen = np.zeros(len(FEATURES), bool)
    other = Reading(SamplingParams(temperature=0.7))
    for _ in range(40):
        there = place(rng)
        cells = features.cells_of(there, params)
        assert cells is not None
        reading = Reading(params)
        rows = np.concatenate(
            [features.gains([there], (token,), reading, other) for token in cells.ids.tolist()]
        )
        assert abs(cells.probs[:-1].sum() - 1) < 1e-9
        known = ~np.isnan(rows[0])
        assert np.abs(cells.probs[:-1] @ rows[:, known]).max() < 1e-9
        assert np.abs(rows[:, known]).max() <= 2 + 1e-9
        seen |= known
    assert seen[[0, 1, 2, 6, 8, 9, 10, 11, 12]].all()
    excludes = params.top_k or params.top_p < 1 or params.min_p or params.bad_words
    assert seen[7] == bool(excludes or params.min_tokens)


def test_evidence_has_a_mean_of_one_by_enumeration() -> None:
    """Of all texts of four tokens; one with a fault in its draws has more."""
    rng = np.random.default_rng(3)
    table = {
        output: rng.dirichlet(np.full(3, 0.8))
        for length in range(4)
        for output in product(range(3), repeat=length)
    }
    params = SamplingParams(temperature=0.8)

    def mean(drawn: Any) -> float:
        found = 0.0
        for text in product(range(3), repeat=4):
            places = [
                Place(listed(np.arange(3), table[text[:n]]), (0, 1), text[:n]) for n in range(4)
            ]
            chance = math.prod(drawn(table[text[:n]])[text[n]] for n in range(4))
            gains = features.gains(places, text, Reading(params))
            after = evidence.look(evidence.start(len(FEATURES)), gains, np.zeros(len(FEATURES)))
            found += chance * math.exp(after.log_e)
        return found

    assert abs(mean(lambda row: filtered(row, params)) - 1) < 1e-12
    assert mean(lambda row: row) > 1 + 1e-4  # the temperature is ignored


def test_what_rounding_may_do_makes_no_evidence() -> None:
    """With the noise that was measured, draws of a distribution that is off by it have no more."""
    rng = np.random.default_rng(5)
    places, tokens, others = [], [], []
    for _ in range(4000):
        there = place(rng)
        off = there.listing.probs[:-1] * np.exp(0.2 * (rng.random(6) - 0.5))
        off /= off.sum()
        places.append(there)
        others.append(listed(there.listing.ids, off))
        tokens.append(int(rng.choice(there.listing.ids, p=off)))
    gains = features.gains(places, tuple(tokens), Reading(PLAIN))
    noise = 2 * np.nansum(features.rounding(places[:100], others[:100], Reading(PLAIN)), 0) / 100
    found = evidence.look(evidence.start(len(FEATURES)), gains, noise)
    assert found.highest < math.log(100)


def test_a_repetition_penalty_goes_by_the_signs_of_logits() -> None:
    logits = np.array([2.0, 0.5, -1.0])
    sums = float(np.log(np.exp(logits).sum()))
    there = Place(listed(np.arange(3), np.exp(logits - sums), sums), (0, 2), ())
    params = SamplingParams(repetition_penalty=2.0)
    expected = np.exp([1.0, 0.5, -2.0])
    cells = features.cells_of(there, params)
    assert cells is not None
    assert np.allclose(cells.probs[:-1], expected[cells.ids] / expected.sum(), atol=1e-12)
    assert (
        features.cells_of(replace(there, listing=replace(there.listing, log_sum=None)), params)
        is None
    )


def test_rounding_at_the_edge_of_a_filter_is_measured() -> None:
    """Two tokens are as likely: which of them is the second of top_k is a matter of rounding."""
    ids, params = np.arange(3), SamplingParams(top_k=2)
    there = Place(listed(ids, np.array([0.5, 0.25 + 1e-9, 0.25 - 1e-9])), (0,), ())
    again = listed(ids, np.array([0.5, 0.25 - 1e-9, 0.25 + 1e-9]))
    ignored = Reading(PLAIN)
    (row,) = features.rounding([there], [again], Reading(params), ignored)
    assert row[7] == pytest.approx(2 / 3)
    assert row[12] > 0.1
    (row,) = features.rounding([there], [again], ignored)
    assert np.isnan(row[7])


def test_a_tie_at_the_edge_of_top_k_is_passed_over() -> None:
    """Engines keep both tokens, or one of them."""
    there = Place(listed(np.arange(3), np.array([0.5, 0.25, 0.25])), (0,), ())
    assert features.cells_of(there, SamplingParams(top_k=2)) is None
    assert features.cells_of(there, SamplingParams(top_k=1)) is not None


def test_a_tie_at_the_edge_of_top_p_is_passed_over() -> None:
    there = Place(listed(np.arange(3), np.array([0.5, 0.25, 0.25])), (0,), ())
    assert features.cells_of(there, SamplingParams(top_p=0.7)) is None
    assert features.cells_of(there, SamplingParams(top_p=0.4)) is not None


def test_a_listing_that_was_cut_is_not_whole_however_much_it_holds() -> None:
    """A penalty may leave the listed tokens less likely than the others."""
    listing = listed(np.arange(3), np.array([0.9, 0.1 - 2e-7, 1e-7]), most=1e-8)
    params = SamplingParams(frequency_penalty=2.0)
    assert features.cells_of(Place(listing, (0,), (0, 5)), params) is None


def test_tokens_may_be_impossible() -> None:
    there = Place(listed(np.arange(3), np.array([0.75, 0.25, 0.0]), 1.0), (0,), ())
    cells = features.cells_of(there, SamplingParams(temperature=0.5))
    assert cells is not None
    assert np.allclose(cells.probs, [0.9, 0.1, 0, 0])


def test_penalties_may_count_the_prompt() -> None:
    there = Place(listed(np.arange(3), np.array([0.5, 0.3, 0.2])), (0, 0), (1,))
    params = SamplingParams(frequency_penalty=1.0, presence_penalty=0.5)
    weights = np.array([0.5 * np.exp(-2.5), 0.3 * np.exp(-1.5), 0.2])
    expected = weights / weights.sum()
    reading = Reading(params, prompt_counts=True)
    rows = np.concatenate([features.gains([there], (token,), reading) for token in range(3)])
    known = ~np.isnan(rows[0])
    assert np.abs(expected @ rows[:, known]).max() < 1e-12


@pytest.mark.parametrize("most", [4, 6])
@pytest.mark.parametrize("params", PARAMS)
def test_a_listing_of_the_likeliest_gives_the_same_cells_or_none(
    params: SamplingParams, most: int
) -> None:
    rng = np.random.default_rng(1)
    known = 0
    for _ in range(60):
        there = place(rng, size=12, prompt=(1, 4, 1))
        there = replace(there, output=there.output[:2])
        whole = features.cells_of(there, params)
        assert whole is not None
        best = there.listing.ids[np.argsort(-there.listing.probs[:-1])][:most]
        listing = listed(best, there.listing.at(best)[:-1], 1.5)
        cells = features.cells_of(replace(there, listing=listing), params)
        if cells is None:
            continue
        known += 1
        expected = whole.at(cells.ids)
        assert np.abs(cells.probs - expected).max() < 1e-9
    assert bool(known) == (params.top_k <= most and (params.temperature == 1 or params.top_k > 0))


def test_false_alarms_are_as_rare_as_stated() -> None:
    """Of 400 runs of 40 sound tokens at alpha .1 more than 62 alarm with p < .001."""
    rng = np.random.default_rng(7)
    alarms = 0
    noise = np.zeros(len(FEATURES))
    for _ in range(400):
        places = [place(rng) for _ in range(40)]
        tokens = tuple(int(rng.choice(p.listing.ids, p=p.listing.probs[:-1])) for p in places)
        found = evidence.look(
            evidence.start(len(FEATURES)), features.gains(places, tokens, Reading(PLAIN)), noise
        )
        alarms += found.highest >= math.log(10)
    assert alarms <= 62


def test_the_stated_power_is_reached() -> None:
    """A fault of total variation .1 in a balanced indicator, in as many tokens as are stated."""
    rng = np.random.default_rng(9)
    needed = 905
    stated = evidence.distance_found(needed, 0.01 * 0.4, len(FEATURES))
    assert stated == pytest.approx(0.1, rel=1e-3)
    found = 0
    for _ in range(100):
        hits = rng.random(needed) < 0.6
        gains = np.full((needed, len(FEATURES)), np.nan)
        gains[:, 0] = np.where(hits, 1.0, -1.0)
        after = evidence.look(evidence.start(len(FEATURES)), gains, np.zeros(len(FEATURES)))
        found += after.highest + math.log(0.4) >= math.log(100)
    assert found >= 80
    assert after.leader == 0
    assert after.off == pytest.approx(hits.mean() - 0.5)
    assert after.off == pytest.approx(0.1, abs=0.05)  # three standard deviations


def test_what_was_seen_is_said_with_how_far_it_is_off() -> None:
    answer = Answer(plain(64, 16), 0.01)
    gains = np.full((4, len(FEATURES)), np.nan)
    gains[:, 0] = 1.0, 1.0, 1.0, -1.0
    answer.add(Text((1,), (2,) * 4, "", None, {}), {"honoured": gains}, np.zeros(len(FEATURES)))
    assert answer.seen_in == "how often the likeliest token comes, +25.0% of draws"
    gains[:, 0], gains[:, 1] = np.nan, -1.0
    answer = Answer(plain(64, 16), 0.01)
    answer.add(Text((1,), (2,) * 4, "", None, {}), {"honoured": gains}, np.zeros(len(FEATURES)))
    assert answer.seen_in == "how unlikely tokens are"


def test_no_factor_is_negative_however_much_rounding_is_allowed() -> None:
    noise = np.full(len(FEATURES), 0.7)
    up, down = (evidence.growth(np.full((1, len(FEATURES)), gain), noise) for gain in (2.0, -2.0))
    assert np.isfinite(up).all()
    assert np.isfinite(down).all()
    assert ((np.exp(up) + np.exp(down)) / 2 <= 1 + 1e-12).all()


def test_look_ups_propose_what_followed_the_longest_run() -> None:
    assert features.looked_up((1, 2, 3, 9, 2, 3, 7, 1, 2, 3)) == 9
    assert features.looked_up((5, 5)) == 5
    assert features.looked_up((1, 2, 3)) is None


@pytest.mark.parametrize("greedy", ["honoured", "wrong"])
def test_a_verdict_asks_for_the_reference_where_greedy_text_is_wrong_too(greedy: Any) -> None:
    answers = [Answer(plain(64, 16), 0.01)]
    said = verdict(answers, [Promise("temperature 0", greedy, "")])
    assert ("a reference that is another model" in said) is (greedy == "wrong")
