"""What is remembered of rounds at one length is told at another: each price, and who asks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from outrider import SamplingParams
from outrider.policies import AdaptiveDepth, Levels
from outrider.policies.costs import Costs, Prices
from outrider.policies.drafting import Drafting
from outrider.policies.growth import Growing
from outrider.policies.seen import Seen
from outrider.types.records import Prefix, SequenceState

from .test_depth import World, fixed, played, steady
from .test_growth import drafting, plain

ROWS = 16


def times(length: float) -> float:
    """What rounds take beside one at 100 tokens."""
    return 1 + 0.0025 * (length - 100)


def known(
    *all_rows: int, looking: float = 0.0, busy: float = 1.0, costs: Costs | None = None
) -> Costs:
    """Two texts of 400 tokens each, of so many sequences: plain, with drafts of all, and of half.

    A plain round takes 10 s at 100 tokens, one with a token for each 12.5 and its draft 1.
    """
    costs = costs or Costs()
    for rows in all_rows:
        for length in (*range(100, 500), *range(100, 500)):
            scale = busy * times(length)
            look = busy * looking
            some = replace(
                drafting(rows, length, 11.0 * scale, 0.8 * scale), stepping=rows // 2 or 1
            )
            costs.add(
                replace(plain(rows, length, 10.0 * scale), draft_s=look, looked=bool(looking))
            )
            costs.add(drafting(rows, length, 12.5 * scale, 1.0 * scale))
            if rows > 1 and length % 4 == 0:
                costs.add(replace(some, spared=rows // 2, missing=rows // 2))
    return costs


def test_every_price_is_told_at_the_length_that_is_asked_for() -> None:
    """Of sixteen rows and of some of them."""
    costs = known(ROWS)
    short, long = (costs.prices(ROWS, [0, 1], length) for length in (120.0, 480.0))
    more = times(480.0) / times(120.0)
    assert long.verifying / short.verifying == pytest.approx([more, more], rel=0.1)
    assert long.drafting[1] / short.drafting[1] == pytest.approx(more, rel=0.1)
    (brief, brief_drafts), (late, drafts) = (costs.of_some(ROWS, 1, at) for at in (120.0, 480.0))
    every = np.full((ROWS, 1), more)
    assert drafts / brief_drafts == pytest.approx(every, rel=0.1)
    assert (late - drafts) / (brief - brief_drafts) == pytest.approx(every, rel=0.1)
    # Half of them were measured themselves.
    half = (late - drafts)[ROWS // 2 - 1, 0]
    assert half / long.verifying[0] == pytest.approx(1.1, rel=0.03)
    # All rows are rounds like others.
    assert late[-1, 0] == pytest.approx(long.rounds[1], rel=0.03)


def test_what_one_row_takes_is_told_at_the_length_that_is_asked_for() -> None:
    """A round, and a step of a draft: beside what sixteen rows take, that grow by less."""
    costs = known(1)
    for length in range(100, 500):
        costs.add(plain(ROWS, length, 30.0))
        costs.add(drafting(ROWS, length, 40.0, 2.0))
    short, long = (costs.prices(ROWS, [0, 1], length) for length in (120.0, 480.0))
    more = times(480.0) / times(120.0)
    assert long.single / short.single == pytest.approx(more, rel=0.1)
    assert long.step / short.step == pytest.approx(more, rel=0.1)


def test_a_round_at_the_beginning_of_a_text_is_no_faster_than_is_known() -> None:
    """It takes a quarter of those at the end of another: compared as they are, it would puzzle."""
    costs = Costs()
    for length in range(1000, 2000):
        costs.add(plain(ROWS, length, 0.1 * length))
        costs.add(drafting(ROWS, length, 0.125 * length))
    costs.add(drafting(ROWS, 300.0, 0.125 * 300))
    assert not costs.puzzled


def test_what_drafts_take_beyond_usual_ones_is_told_at_their_length() -> None:
    """Reading a prompt, and reading on: by the draft of as long a text, looking up apart."""
    costs = known(ROWS, looking=0.3)
    usual = times(480.0)
    for _ in range(5):
        seen = replace(drafting(ROWS, 480.0, 12.5 * usual, usual + 0.3 + 4.0), looked=True)
        costs.add(replace(seen, caught_up=400))
        costs.add(replace(seen, behind=8, missing=99, draft_s=usual + 0.3 + 0.8))
    prices = costs.prices(ROWS, [0, 1], 120.0)
    assert prices.token == pytest.approx(4.0 / 400, rel=0.05)
    assert prices.reading_on(8) == pytest.approx(0.8, rel=0.2)
    assert prices.looking == pytest.approx(0.3, rel=0.05)


def test_what_reads_prompts_or_reads_on_does_not_tell_how_rounds_grow() -> None:
    """Such rounds take long at any length: thirty at 500 tokens, beside those of two texts."""

    def grown(costs: Costs) -> list[float]:
        short, long = (costs.prices(ROWS, [0, 1], length) for length in (120.0, 480.0))
        return [
            long.verifying[1] / short.verifying[1],
            long.drafting[1] / short.drafting[1],
        ]

    costs = known(ROWS)
    before = grown(costs)
    for _ in range(32):
        slow = drafting(ROWS, 500.0, 99.0, 99.0)
        costs.add(replace(slow, fresh=True, read=100, behind=8, missing=900))
    assert grown(costs) == pytest.approx(before, rel=0.01)


def test_what_a_fast_draft_caps_is_told_at_its_length() -> None:
    """A draft at 100 tokens that took a fifth: as long texts take in proportion more."""
    told = Drafting()
    for now, length in enumerate((*range(100, 500), *range(100, 500))):
        told.add(drafting(ROWS, length, 0.0, times(length)), times(length), now)
    told.cap(drafting(ROWS, 100.0, 0.0, 0.2), 0.2)
    one = np.ones(1)
    assert told.at(ROWS, one, 100.0)[0] == pytest.approx(0.2, rel=0.01)
    assert told.at(ROWS, one, 480.0)[0] == pytest.approx(0.2 * times(480.0), rel=0.1)


def test_what_proposing_takes_is_told_at_its_length_and_as_fast_as_the_machine_is() -> None:
    """Half a second beyond the drafts of fifteen rows, in a machine that then is half as fast."""
    costs, usual = known(ROWS), times(480.0)
    for _ in range(20):
        seen = replace(drafting(ROWS, 480.0, 12.5 * usual, usual + 0.5), looked=True, found=True)
        costs.add(replace(seen, stepping=15, missing=15))
    assert costs.prices(ROWS, [0, 1], 480.0).proposing == pytest.approx(0.5, rel=0.2)
    for _ in range(5):
        costs.add(plain(ROWS, 480.0, 2 * 10.0 * usual))
    assert costs.prices(ROWS, [0, 1], 480.0).proposing == pytest.approx(1.0 * 0.98**5, rel=0.2)


def test_what_a_busy_machine_took_is_scaled_with_all_that_was_learnt_of_it() -> None:
    """As if it had never been busy: planted, a part that is not looks four times too slow."""
    busy, quiet = known(ROWS, busy=4.0), known(ROWS)
    busy._scale(0.25)
    for costs in (busy, quiet):
        for length in range(100, 140):
            costs.add(plain(ROWS, length, 10.0 * times(length)))
            costs.add(drafting(ROWS, length, 12.5 * times(length), times(length)))
    for length in (120.0, 480.0):
        found, told = (costs.prices(ROWS, [0, 1], length) for costs in (busy, quiet))
        assert found.verifying == pytest.approx(told.verifying, rel=0.005)
        assert found.drafting == pytest.approx(told.drafting, rel=0.005)


def test_rounds_that_wait_to_be_learnt_from_are_scaled() -> None:
    """Any number of them: as if all had been as fast."""
    for count in range(90, 106):
        slow, fast = Growing(), Growing()
        for place in range(count):
            slow.add(ROWS, ROWS, 100.0 + place, 5 * times(100.0 + place))
            fast.add(ROWS, ROWS, 100.0 + place, times(100.0 + place))
        slow.scale(0.2)
        for growing in (slow, fast):
            for place in range(64):
                growing.add(ROWS, ROWS, 200.0 + place, times(200.0 + place))
        assert slow.times(ROWS, 300.0) == pytest.approx(fast.times(ROWS, 300.0), rel=1e-9)


def some_states(lengths: Sequence[int], params: SamplingParams) -> list[SequenceState]:
    return [
        SequenceState(Prefix(n, range(length)), length, params, frozenset(), n)
        for n, length in enumerate(lengths)
    ]


def test_a_round_is_as_long_as_its_sequences_were_before_it() -> None:
    """By the mean; and it proposed looked-up tokens if it did for any row."""
    states = some_states([10, 21], SamplingParams(max_tokens=9))
    _, done = played(fixed(2), World(steady(0.5)), states, np.random.default_rng(0))
    after = [
        state.advanced([0] * new, 2, None, state.acceptance, ())
        for state, new in zip(states, (3, 1), strict=True)
    ]
    told = replace(done, looked_up=(True, False), accepted=(2, 0), emitted=(3, 1))
    seen = Seen().round(after, told, looked=True)
    assert (seen.length, seen.found) == (15.5, True)
    plainly = replace(told, looked_up=(False, False))
    assert not Seen().round(after, plainly, looked=True).found


@pytest.mark.parametrize(
    ("cached", "read"), [((0, 0), 31), ((5, 0), 26), ((0, 15), 16), ((0, 16), 0), ((10, 21), 0)]
)
def test_prompts_that_were_mostly_computed_already_tell_nothing_of_reading(
    cached: tuple[int, int], read: int
) -> None:
    """Else what was computed counts, and nothing of sequences that go on."""
    states = some_states([10, 21], SamplingParams(max_tokens=9))
    after, done = played(fixed(0), World(steady(0.5)), states, np.random.default_rng(0))
    assert Seen().round(after, replace(done, cached=cached), looked=False).read == read
    later, done = played(fixed(0), World(steady(0.5)), after, np.random.default_rng(0))
    assert Seen().round(later, done, looked=False).read == 0


def test_choices_of_a_request_share_a_prompt_that_is_read_once() -> None:
    states = some_states([20, 20], SamplingParams(max_tokens=9))
    states = [states[0], replace(states[1], choice=1)]
    after, done = played(fixed(0), World(steady(0.5)), states, np.random.default_rng(0))
    for cached, read in (((0, 0), 20), ((0, 19), 20), ((8, 19), 12), ((12, 19), 0)):
        assert Seen().round(after, replace(done, cached=cached), looked=False).read == read


@pytest.mark.parametrize("ragged", [False, True])
def test_whatever_is_planned_or_charged_is_priced_at_the_length_of_its_rows(
    ragged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planning, what is known of some rows, tries, and drafters that fail in one."""
    asked: list[float] = []
    prices, of_some = Costs.prices, Costs.of_some

    def seen_prices(self: Costs, rows: int, widths: Sequence[float], length: float = 0.0) -> Prices:
        asked.append(length)
        return prices(self, rows, widths, length)

    def seen_of_some(
        self: Costs, rows: int, depths: int, length: float = 0.0
    ) -> tuple[np.ndarray, np.ndarray]:
        asked.append(length)
        return of_some(self, rows, depths, length)

    monkeypatch.setattr(Costs, "prices", seen_prices)
    monkeypatch.setattr(Costs, "of_some", seen_of_some)
    policy, rng = AdaptiveDepth(Levels(4), ragged=ragged), np.random.default_rng(0)
    params = SamplingParams(max_tokens=400, depths=(0, 0, 0, 1, 1, 1))
    states = some_states([50, 70, 90, 110], params)
    tried = priced = 0
    for number in range(200):
        before = np.mean([len(state.prefix) for state in states])
        states, done = played(policy, World(steady(0.1)), states, rng)
        tried += policy._trying
        if policy._trying and number > 100:
            done = replace(done, draft_failed=True)
        policy.observe(states, done)
        policy._catch_up()
        after = np.mean([len(state.prefix) for state in states])
        assert all(length in (before, after) for length in asked)
        priced += len(asked)
        asked.clear()
    assert tried > 4
    assert priced > 20
