"""The scheduler admits what there is room for, retires what ended, and frees what it held."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from outrider import (
    ModelDrafter,
    NgramDrafter,
    SamplingParams,
    SpeculativeConfig,
    SpeculativeDecoder,
)
from outrider.engine.commit import StepResult
from outrider.engine.scheduler import Scheduler
from outrider.errors import (
    DegenerateDistributionError,
    DraftError,
    InvalidConfigError,
    ModelError,
)
from outrider.policies import Policy
from outrider.runtimes.base import Capabilities, Found, PrefillProgress
from outrider.runtimes.tabular import TabularModel
from outrider.types.records import DraftPlan, Prefix, RoundRecord, SequenceState


class Roomy(TabularModel):
    """A model with room for a few sequences, which notes what is released."""

    def __init__(self, room: int) -> None:
        super().__init__(lambda prefix: np.eye(4)[(prefix[-1] + 1) % 4], 4)
        self._room = room
        self.released: list[tuple[int, bool]] = []

    @property
    def capabilities(self) -> Capabilities:
        own = super().capabilities
        return Capabilities(own.vocab_size, own.device, max_sequences=self._room)

    def release(self, sequence_ids: Iterable[int], *, discard: bool = False) -> None:
        self.released += [(number, discard) for number in sequence_ids]


def test_as_many_sequences_run_as_there_is_room_and_the_others_wait() -> None:
    decoder = SpeculativeDecoder(Roomy(2))
    scheduler = Scheduler(decoder)
    for tokens in (1, 3, 2, 2):
        scheduler.submit(decoder.start([0], SamplingParams(max_tokens=tokens)))
    rows = [len(result.batch.states) for result in rounds(scheduler)]
    assert rows == [2, 2, 2, 1, 1]
    assert scheduler.idle


def test_a_request_may_be_submitted_and_cancelled_between_any_two_steps() -> None:
    model = Roomy(4)
    decoder = SpeculativeDecoder(model)
    scheduler = Scheduler(decoder)
    (first,) = decoder.start([0], SamplingParams(max_tokens=9))
    (second,) = decoder.start([0], SamplingParams(max_tokens=9))
    scheduler.submit([first])
    scheduler.step()
    scheduler.submit([second])
    result = scheduler.step()
    assert result is not None
    assert len(result.batch.states) == 2
    scheduler.cancel(first.prefix.sequence_id)
    assert model.released == [(first.prefix.sequence_id, False)]
    assert [s.prefix.sequence_id for s in scheduler.running] == [second.prefix.sequence_id]
    scheduler.cancel(second.prefix.sequence_id)
    assert scheduler.idle


def test_a_request_cancelled_while_it_waits_never_starts() -> None:
    decoder = SpeculativeDecoder(Roomy(1))
    scheduler = Scheduler(decoder)
    (state,) = decoder.start([0], SamplingParams(max_tokens=4))
    scheduler.submit([state])
    scheduler.cancel(state.prefix.sequence_id)
    assert rounds(scheduler) == []


def test_an_error_in_a_round_frees_everything_and_shares_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = Roomy(2)
    decoder = SpeculativeDecoder(model)
    scheduler = Scheduler(decoder)
    scheduler.submit(decoder.start([0], SamplingParams(max_tokens=9, n=3)))
    scheduler.step()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(model, "verify", interrupted)
    with pytest.raises(KeyboardInterrupt):
        scheduler.step()
    assert scheduler.idle
    assert [discard for _, discard in model.released] == [True, True]
    assert decoder.slots.free == 2


def test_a_closed_stream_gives_its_room_back() -> None:
    model = Roomy(1)
    decoder = SpeculativeDecoder(model)
    stream = decoder.stream([0], SamplingParams(max_tokens=20))
    next(stream)
    with pytest.raises(ModelError, match="held by an open stream; finish or close it"):
        decoder.generate([0], SamplingParams(max_tokens=2))
    stream.close()
    assert decoder.generate([0], SamplingParams(max_tokens=2)).token_ids == (1, 2)


def test_a_callback_may_use_the_decoder() -> None:
    """No code of a user's runs under a lock."""
    decoder: SpeculativeDecoder

    def start(_record: object) -> None:
        decoder.start([3])
        if not nested:
            nested.append(1)
            decoder.generate([3], SamplingParams(max_tokens=1))

    nested: list[int] = []
    decoder = SpeculativeDecoder(Roomy(8), NgramDrafter(), on_round=start)
    thread = threading.Thread(
        target=decoder.generate, args=([1, 2], SamplingParams(max_tokens=3)), daemon=True
    )
    thread.start()
    thread.join(30)
    assert not thread.is_alive()


def test_a_drafter_that_fails_to_learn_holds_no_slot() -> None:
    class Stumbling(NgramDrafter):
        def observe_output(self, prefixes: object) -> None:
            raise RuntimeError("no room to learn")

    model = Roomy(2)
    decoder = SpeculativeDecoder(model, Stumbling())
    with pytest.raises(DraftError, match="no room to learn"):
        decoder.generate([0], SamplingParams(max_tokens=3))
    assert len(model.released) == 1
    assert decoder.slots.free == 2


def test_a_tokenizer_that_fails_during_a_stream_holds_no_slot() -> None:
    class Stumbling:
        def encode(self, text: str) -> list[int]:
            return [0]

        def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str:
            raise RuntimeError("no such token")

    decoder = SpeculativeDecoder(Roomy(2), tokenizer=Stumbling())
    with pytest.raises(RuntimeError, match="no such token") as caught:
        list(decoder.stream([0], SamplingParams(max_tokens=3)))
    assert decoder.slots.free == 2, caught


def test_a_scheduler_gives_its_room_back_closed_or_dropped() -> None:
    model = Roomy(2)
    decoder = SpeculativeDecoder(model)
    with Scheduler(decoder) as scheduler:
        scheduler.submit(decoder.start([0], SamplingParams(max_tokens=9, n=2)))
        scheduler.step()
        assert decoder.slots.free == 0
    assert (decoder.slots.free, len(model.released)) == (2, 2)
    scheduler = Scheduler(decoder)
    scheduler.submit(decoder.start([0], SamplingParams(max_tokens=9, n=2)))
    scheduler.step()
    del scheduler
    gc.collect()
    assert decoder.slots.free == 2
    assert decoder.generate([0], SamplingParams(max_tokens=2)).token_ids == (1, 2)
    assert [discard for _, discard in model.released[2:4]] == [True, True]


def test_an_idle_scheduler_steps_to_nothing() -> None:
    decoder = SpeculativeDecoder(Roomy(2))
    scheduler = Scheduler(decoder)
    assert scheduler.step() is None
    scheduler.submit(decoder.start([0], SamplingParams(max_tokens=1)))
    assert scheduler.step() is not None
    assert scheduler.step() is None


@pytest.mark.parametrize("stepped", [False, True])
def test_a_sequence_is_submitted_once(stepped: bool) -> None:
    decoder = SpeculativeDecoder(Roomy(2))
    scheduler = Scheduler(decoder)
    states = decoder.start([0], SamplingParams(max_tokens=9))
    scheduler.submit(states)
    if stepped:
        scheduler.step()
    with pytest.raises(InvalidConfigError, match="do not run or wait already"):
        scheduler.submit(states)
    assert len(rounds(scheduler)) == 9 - stepped


def rounds(scheduler: Scheduler) -> list[StepResult]:
    """Step until nothing is left."""
    found = []
    while not scheduler.idle:
        if (result := scheduler.step()) is not None:
            found.append(result)
    return found


class Spoilt(Roomy):
    """Has no logits after token 3."""

    def logits(self, prefix: tuple[int, ...]) -> torch.Tensor:
        return super().logits(prefix) * (torch.nan if prefix[-1] == 3 else 1.0)


def test_a_sequence_that_cannot_go_on_leaves_the_others_running() -> None:
    model = Spoilt(3)
    decoder = SpeculativeDecoder(model)
    scheduler = Scheduler(decoder)
    first, bad = (decoder.start([token], SamplingParams(max_tokens=3))[0] for token in (0, 2))
    scheduler.submit([first, bad])
    with pytest.raises(DegenerateDistributionError) as caught:
        [scheduler.step() for _ in range(3)]
    assert caught.value.sequence_id == bad.prefix.sequence_id
    assert model.released == [(bad.prefix.sequence_id, True)]
    (result,) = [step for step in rounds(scheduler) if step.batch.states[0].finish_reason]
    assert result.batch.states[0].output_ids == [1, 2, 3]
    with pytest.raises(DegenerateDistributionError, match=r"prompts\[1\] cannot be decoded"):
        decoder.generate([[0], [2]], SamplingParams(max_tokens=3))
    assert decoder.slots.free == 3


def test_drafters_learn_from_texts_that_ended_and_not_from_cut_ones() -> None:
    class Noting(NgramDrafter):
        def observe_output(self, prefixes: Sequence[Prefix]) -> None:
            learnt.extend(prefix.tokens.tolist() for prefix in prefixes)

    learnt: list[list[int]] = []
    decoder = SpeculativeDecoder(Roomy(4), Noting(), config=SpeculativeConfig(depth="fixed"))
    with Scheduler(decoder) as scheduler:
        for tokens in (1, 30, 30):
            scheduler.submit(decoder.start([0], SamplingParams(max_tokens=tokens)))
        scheduler.step()
        scheduler.cancel(scheduler.running[0].prefix.sequence_id)
    assert learnt == [[0, 1]]


class Reads(Roomy):
    """A model that prefills prompts in parts."""

    def __init__(self) -> None:
        super().__init__(4)
        self.read_to: dict[int, int] = {}
        self.rounds: list[list[int]] = []

    def prefill(self, prefix: Prefix, most: int) -> PrefillProgress:
        name = prefix.sequence_id
        before = self.read_to.get(name, 3)
        self.read_to[name] = min(len(prefix) - 1, before + most)
        cached = 0 if name in self.rounds else 3 if before == 3 else 0
        return PrefillProgress(len(prefix) - 1 - self.read_to[name], cached)


def test_so_many_tokens_of_new_prompts_are_read_with_a_round() -> None:
    decoder = SpeculativeDecoder(Roomy(8))
    scheduler = Scheduler(decoder, prefill_chunk=10)
    for count, n in ((4, 1), (5, 1), (6, 1), (3, 3), (9, 1)):
        params = SamplingParams(max_tokens=9, n=n, seed=1)
        scheduler.submit(decoder.start([0] * count, params))
    rows = [len(step.batch.states) for _ in range(4) if (step := scheduler.step()) is not None]
    # 4 + 5; 2 run, 6; 3 run, 3 with two choices for a token each, a part of 9; 7 run.
    assert rows == [2, 3, 7, 7]


def test_choices_of_a_long_prompt_wait_until_the_first_has_read_it() -> None:
    model = Reads()
    decoder = SpeculativeDecoder(model)
    scheduler = Scheduler(decoder, prefill_chunk=5)
    (short,) = decoder.start([0], SamplingParams(max_tokens=9))
    scheduler.submit([short])
    scheduler.step()
    scheduler.submit(decoder.start([0, 1, 2] * 5, SamplingParams(max_tokens=2, n=2, seed=1)))
    rows = [len(step.batch.states) for _ in range(4) if (step := scheduler.step()) is not None]
    assert rows == [1, 1, 2, 2]
    assert all(done > 4 for done in model.read_to.values())


def test_long_prompts_are_read_in_parts_between_the_rounds_of_others() -> None:
    model = Reads()
    decoder = SpeculativeDecoder(model)
    scheduler = Scheduler(decoder, prefill_chunk=5)
    (short,) = decoder.start([0], SamplingParams(max_tokens=9))
    (long,) = decoder.start([0, 1, 2] * 5, SamplingParams(max_tokens=2))
    scheduler.submit([short, long])
    alone = [scheduler.step() for _ in range(2)]
    assert [len(each.batch.states) for each in alone if each is not None] == [1, 1]
    assert model.read_to == {long.prefix.sequence_id: 11}
    both = scheduler.step()
    assert both is not None
    assert both.record.cached == (0, 3)
    assert [len(step.batch.states) for step in rounds(scheduler)] == [2, 1, 1, 1, 1, 1]


def test_a_draft_model_reads_long_prompts_in_parts_after_the_target() -> None:
    target, draft = Reads(), Reads()
    config = SpeculativeConfig(depth="fixed")  # Which no clock decides on.
    decoder = SpeculativeDecoder(target, ModelDrafter(draft), config=config)
    scheduler = Scheduler(decoder, prefill_chunk=5)
    (short,) = decoder.start([0], SamplingParams(max_tokens=30))
    (long,) = decoder.start([0, 1, 2] * 5, SamplingParams(max_tokens=2))
    (plain,) = decoder.start([0, 1, 2] * 5, SamplingParams(max_tokens=2))
    scheduler.submit([short, long, replace(plain, drafting=False)])
    name, seen = long.prefix.sequence_id, []
    while name not in {state.prefix.sequence_id for state in scheduler.running}:
        result = scheduler.step()
        assert result is not None
        if name in result.batch.sequence_ids:
            break
        seen.append((target.read_to.get(name), draft.read_to.get(name)))
    assert seen == [(7, None), (11, None), (14, 7), (14, 11)]
    rounds(scheduler)
    assert draft.read_to.keys() == {name}


def test_a_draft_model_reads_no_long_prompt_that_it_is_not_to_draft_for() -> None:
    target, draft = Reads(), Reads()
    config = SpeculativeConfig(num_speculative_tokens=0)
    scheduler = Scheduler(
        decoder := SpeculativeDecoder(target, ModelDrafter(draft), config=config), prefill_chunk=4
    )
    scheduler.submit(decoder.start([0, 1, 2] * 5, SamplingParams(max_tokens=2)))
    rounds(scheduler)
    assert target.read_to
    assert not draft.read_to


class Slowly(Policy):
    """Takes its time to learn, and notes what drafting took between rounds."""

    learns = True

    def plan(self, knowledge: object, states: Sequence[SequenceState]) -> DraftPlan:
        return DraftPlan(np.array([min(1, state.remaining - 1) for state in states]))

    def observe(
        self, knowledge: object, states: Sequence[SequenceState], record: RoundRecord
    ) -> object:
        busy(0.002)
        return (*(knowledge or ()), record.between_s)


def busy(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def test_what_drafting_takes_between_rounds_is_a_part_of_the_next_rounds_record() -> None:
    class SlowReads(Reads):
        def prefill(self, prefix: Prefix, most: int) -> PrefillProgress:
            busy(0.004)
            return super().prefill(prefix, most)

    decoder = SpeculativeDecoder(Reads(), ModelDrafter(SlowReads()), policy=Slowly())
    scheduler = Scheduler(decoder, prefill_chunk=4)
    scheduler.submit(decoder.start([0, 1, 2] * 5, SamplingParams(max_tokens=6)))
    rounds(scheduler)
    first, *others = decoder.knowledge
    assert first >= 0.012  # Three parts of a prompt.
    assert others
    assert min(others) >= 0.002
    (state,) = decoder.start([0, 1], SamplingParams(max_tokens=1))
    decoder.step(decoder.pack([state]))
    assert decoder.knowledge[-1] >= 0.002


@pytest.mark.parametrize("on_error", ["raise", "disable"])
def test_a_draft_model_that_cannot_read_concerns_its_own_sequence(on_error: str) -> None:
    class Broken(Reads):
        def prefill(self, prefix: Prefix, most: int) -> PrefillProgress:
            raise RuntimeError("no")

    config = SpeculativeConfig(on_draft_error=on_error, depth="fixed")
    decoder = SpeculativeDecoder(Reads(), ModelDrafter(Broken()), config=config)
    scheduler = Scheduler(decoder, prefill_chunk=4)
    (short,) = decoder.start([0], SamplingParams(max_tokens=30))
    (long,) = decoder.start([0, 1, 2] * 5, SamplingParams(max_tokens=2))
    scheduler.submit([short, long])
    ended: list[int] = []
    failed: list[int | None] = []
    while not scheduler.idle:
        try:
            result = scheduler.step()
        except DraftError as error:
            failed.append(error.sequence_id)
            continue
        assert result is not None
        ended += [s.prefix.sequence_id for s in result.batch.states if s.finish_reason]
    raises = on_error == "raise"
    assert failed == [long.prefix.sequence_id] * raises
    assert ended == [state.prefix.sequence_id for state in (long, short)[raises:]]
    assert decoder.slots.free == 4


def test_a_long_prompt_alone_is_read_a_part_a_step_and_may_be_cancelled() -> None:
    model = Reads()
    decoder = SpeculativeDecoder(model)
    scheduler = Scheduler(decoder, prefill_chunk=4)
    (long,) = decoder.start([0, 1, 2] * 5, SamplingParams(max_tokens=2))
    scheduler.submit([long])
    steps = [scheduler.step() for _ in range(3)]
    assert steps[:2] == [None, None]
    assert not scheduler.idle
    assert steps[2] is not None
    assert steps[2].emitted == ([3],)
    (short,) = decoder.start([0], SamplingParams(max_tokens=9))
    (other,) = decoder.start([0, 1, 2] * 9, SamplingParams(max_tokens=2))
    scheduler.submit([short, other])
    scheduler.step()
    scheduler.cancel(other.prefix.sequence_id)
    assert (other.prefix.sequence_id, False) in model.released
    assert decoder.slots.free == 3
    with pytest.raises(InvalidConfigError, match="do not run or wait"):
        scheduler.submit([short])
    scheduler.close()
    assert decoder.slots.free == 4


@pytest.mark.parametrize("length", [20, 40, 70])
def test_a_prompt_behind_a_long_one_keeps_nobody_waiting(length: int) -> None:
    decoder = SpeculativeDecoder(Reads())
    scheduler = Scheduler(decoder, prefill_chunk=64)
    params = SamplingParams(max_tokens=40)
    scheduler.submit(decoder.start([0] * 2000, params))
    scheduler.step()
    (short,) = decoder.start([0, 1], params)
    scheduler.submit([*decoder.start([0] * length, params), short])
    scheduler.step()
    assert short.prefix.sequence_id in {s.prefix.sequence_id for s in scheduler.running}


def test_however_many_run_half_of_a_steps_tokens_are_for_new_prompts() -> None:
    class Wide(Reads):
        @property
        def capabilities(self) -> Capabilities:
            return replace(super().capabilities, max_sequences=64)

    decoder = SpeculativeDecoder(model := Wide())
    scheduler = Scheduler(decoder, prefill_chunk=16)
    many = SamplingParams(max_tokens=200, n=40, seed=1)
    scheduler.submit(decoder.start([0], many))
    while len(scheduler.running) < 40:
        scheduler.step()
    (long,) = decoder.start([0] * 100, SamplingParams(max_tokens=9))
    (short,) = decoder.start([0], SamplingParams(max_tokens=9))
    scheduler.submit([long, short])
    scheduler.step()
    assert short.prefix.sequence_id in {s.prefix.sequence_id for s in scheduler.running}
    scheduler.step()
    assert model.read_to[long.prefix.sequence_id] >= 2 * 4 + 3


def test_an_admission_that_fails_keeps_no_slot() -> None:
    class Moody(Roomy):
        def lookup(self, prefix: Prefix) -> Found:
            if prefix.tokens[0] == 1 and len(prefix) == 2:
                raise RuntimeError("no")
            return Found()

    decoder = SpeculativeDecoder(Moody(2))
    scheduler = Scheduler(decoder)
    for _ in range(3):
        scheduler.submit([*decoder.start([0]), *decoder.start([1, 1])])
        with pytest.raises(ModelError, match="Moody failed"):
            scheduler.step()
        assert (scheduler.idle, scheduler.held, decoder.slots.free) == (True, frozenset(), 2)


def test_choices_whose_first_is_gone_are_counted_whole() -> None:
    decoder = SpeculativeDecoder(Reads())
    scheduler = Scheduler(decoder, prefill_chunk=16)
    long = decoder.start([0, 1] * 50, SamplingParams(max_tokens=2, n=2, seed=1))
    scheduler.submit([*decoder.start([0, 1, 2], SamplingParams(max_tokens=9)), *long])
    scheduler.cancel(long[0].prefix.sequence_id)
    scheduler.step()
    assert len(scheduler.running) == 1
