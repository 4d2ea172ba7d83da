"""A run steps sequences to their ends, and lets its caller end them sooner."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest

import outrider
from outrider.engine.compatibility import parts_of
from outrider.engine.scheduler import Run
from outrider.runtimes.tabular import TabularModel
from outrider.types.protocols import KeepsSequences


def distribution(prefix: tuple[int, ...]) -> np.ndarray:
    return np.full(4, 0.25)


class Keeper:
    """A drafter that proposes nothing of its own, and notes what it is told to forget."""

    vocab_size = None

    def __init__(self, *models: object) -> None:
        self.models = models
        self.released: list[tuple[list[int], bool]] = []
        self.inner = outrider.NgramDrafter()

    def propose(self, prefixes, plan, ctx):
        return self.inner.propose(prefixes, plan, ctx)

    def release(self, sequence_ids, *, discard=False) -> None:
        self.released.append((list(sequence_ids), discard))


def test_a_row_that_its_caller_ends_takes_part_in_no_further_round() -> None:
    decoder = outrider.SpeculativeDecoder(TabularModel(distribution, 4))
    params = outrider.SamplingParams(max_tokens=6)
    states = [decoder.start([1], params)[0] for _ in range(3)]
    run = Run(decoder, states)
    rounds = []
    for step in run:
        rounds.append([state.prefix.sequence_id for state in step.batch.states])
        if len(rounds) == 2:
            run.end(states[1].prefix.sequence_id)
    ids = [state.prefix.sequence_id for state in states]
    assert rounds == [ids, ids, *[[ids[0], ids[2]]] * 4]


def test_a_row_that_ended_while_it_waited_never_starts() -> None:
    keeper = Keeper()
    decoder = outrider.SpeculativeDecoder(TabularModel(distribution, 4), keeper)
    state = decoder.start([1], outrider.SamplingParams(max_tokens=4))[0]
    run = Run(decoder, [state])
    run.end(state.prefix.sequence_id)
    assert list(run) == []


def test_drafters_are_told_which_sequences_are_over() -> None:
    keeper = Keeper()
    decoder = outrider.SpeculativeDecoder(TabularModel(distribution, 4), keeper)
    decoder.generate([[1], [2]], outrider.SamplingParams(max_tokens=3))
    assert len({i for ids, _ in keeper.released for i in ids}) == 2
    assert not any(discard for _, discard in keeper.released)


def test_a_closed_run_frees_what_it_held() -> None:
    keeper = Keeper()
    decoder = outrider.SpeculativeDecoder(TabularModel(distribution, 4), keeper)
    state = decoder.start([1], outrider.SamplingParams(max_tokens=50))[0]
    with closing(iter(Run(decoder, [state], discard=True))) as rounds:
        next(rounds)
    assert keeper.released == [([state.prefix.sequence_id], True)]


def test_models_behind_drafters_behind_drafters_are_found_once() -> None:
    target = TabularModel(distribution, 4)
    inner = Keeper(target)
    outer = Keeper(inner, target)
    found = parts_of(target, outer)
    assert [id(part) for part in found] == [id(target), id(outer), id(inner)]
    assert isinstance(inner, KeepsSequences)


@pytest.mark.parametrize(
    ("verification", "params", "expected"),
    [
        ("block", {"seed": 1}, True),
        ("block", {}, False),
        ("block", {"seed": 1, "temperature": 0}, False),
        ("coupled", {"seed": 1}, False),
    ],
)
def test_rows_whose_text_depends_on_the_draft_and_must_repeat_are_local(
    verification, params, expected
) -> None:
    seen = []

    class Watcher(Keeper):
        def propose(self, prefixes, plan, ctx):
            seen.append(ctx.local.tolist())
            assert ctx.remembers
            return self.inner.propose(prefixes, plan, ctx)

    decoder = outrider.SpeculativeDecoder(
        TabularModel(distribution, 4),
        Watcher(),
        config=outrider.SpeculativeConfig(depth="fixed", verification=verification),
    )
    decoder.generate([1, 1], outrider.SamplingParams(max_tokens=4, **params))
    assert seen[0] == [expected]
