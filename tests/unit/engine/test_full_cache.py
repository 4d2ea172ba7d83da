"""A cache that is too small for all: who is admitted, who gives way, and what comes of it."""

from __future__ import annotations

from typing import Any

import pytest

from outrider import (
    ModelDrafter,
    NgramDrafter,
    SamplingParams,
    SpeculativeConfig,
    SpeculativeDecoder,
    TransformersModel,
)
from outrider.engine.scheduler import Scheduler
from outrider.errors import CacheFullError
from outrider.runtimes.blocks import SIZE
from tests.support.families import random_model

PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8] * 8, [9] * 20, [1, 2, 3, 4] * 12]
GREEDY = SamplingParams(max_tokens=70, temperature=0)
SEEDED = SamplingParams(max_tokens=70, temperature=1.5, seed=3)


def model_of(blocks: int | None, seed: int = 0) -> TransformersModel:
    """A model with so many blocks; None for enough."""
    model = TransformersModel(random_model("llama", seed), max_sequences=4)
    if blocks is None:
        return model
    memory = blocks * model._block_bytes
    return TransformersModel(model.hf_model, max_sequences=4, kv_cache_memory=memory)


def decoder_of(blocks: int | None, draft: str, draft_blocks: int | None = None) -> Any:
    drafter: Any = {"none": None, "ngram": NgramDrafter()}.get(draft)
    if draft == "model":
        drafter = ModelDrafter(model_of(draft_blocks, 1))
    config = SpeculativeConfig(depth="fixed", num_speculative_tokens=3)
    return SpeculativeDecoder(model_of(blocks), drafter, config=config)


@pytest.fixture
def gave_way(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sequences that were retired before their end."""
    found: list[int] = []
    retire = Scheduler._retire

    def noting(scheduler: Scheduler, states: Any, **more: Any) -> None:
        leaving = list(states)
        found.extend(s.prefix.sequence_id for s in leaving if s.finish_reason is None)
        retire(scheduler, leaving, **more)

    monkeypatch.setattr(Scheduler, "_retire", noting)
    return found


@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize(
    ("draft", "blocks", "draft_blocks"),
    [("none", 6, None), ("ngram", 6, None), ("model", 7, None), ("model", None, 7)],
)
def test_texts_are_the_same_where_sequences_give_way(
    draft: str,
    blocks: int | None,
    draft_blocks: int | None,
    params: SamplingParams,
    gave_way: list[int],
) -> None:
    expected = decoder_of(None, draft).generate(PROMPTS, params)
    assert not gave_way
    decoder = decoder_of(blocks, draft, draft_blocks)
    found = decoder.generate(PROMPTS, params)
    assert [out.token_ids for out in found] == [out.token_ids for out in expected]
    assert gave_way
    decoder.target.check_integrity()
    assert not decoder.target.live_sequences


def test_prompts_in_parts_give_way_as_well(gave_way: list[int]) -> None:
    expected = decoder_of(None, "none").generate(PROMPTS, GREEDY)
    decoder = decoder_of(6, "none")
    with Scheduler(decoder, prefill_chunk=8) as scheduler:
        states = [decoder.start(prompt, GREEDY)[0] for prompt in PROMPTS]
        scheduler.submit(states)
        last = {}
        while not scheduler.idle:
            if (step := scheduler.step()) is not None:
                last |= {s.prefix.sequence_id: s for s in step.batch.states}
    ids = [state.prefix.sequence_id for state in states]
    assert [tuple(last[i].output_ids) for i in ids] == [out.token_ids for out in expected]
    assert gave_way


def test_a_text_that_is_too_long_for_the_cache_ends_alone() -> None:
    decoder = decoder_of(4, "none")
    short = SamplingParams(max_tokens=8, temperature=0)
    found = decoder.generate(PROMPTS[:2], [GREEDY, short], on_error="return")
    assert (found[1].error, len(found[1].token_ids)) == (None, 8)
    whole = decoder_of(None, "none").generate(PROMPTS[0], GREEDY)
    assert found[0].token_ids == whole.token_ids
    long = decoder.generate([[1] * (2 * SIZE + 10), PROMPTS[0]], [GREEDY, short], on_error="return")
    assert isinstance(long[0].error, CacheFullError)
    assert "kv_cache_memory" in str(long[0].error)
    assert long[1].error is None


def test_equal_beginnings_take_their_blocks_once() -> None:
    decoder = decoder_of(None, "none")
    pool = decoder.target.pool
    before = pool.available
    prompt = list(range(40)) + [7] * 25
    states = decoder.start(prompt, SamplingParams(max_tokens=8, n=4, seed=1))
    with Scheduler(decoder) as scheduler:
        scheduler.submit(states)
        scheduler.step()
        assert before - pool.available <= len(prompt) // SIZE + 4


def test_a_draft_whose_cache_is_full_ends_no_request_where_failures_are_passed_over() -> None:
    plain = decoder_of(None, "none")
    params = SamplingParams(max_tokens=138, temperature=0)
    prompt = [*range(1, 21)]
    for asked, kept in (("disable", 138), ("raise", 0)):
        config = SpeculativeConfig(on_draft_error=asked, depth="fixed")
        decoder = SpeculativeDecoder(plain.target, model_of(4, 1), config=config)
        (found,) = decoder.generate([prompt], params, on_error="return")
        assert (found.error is None) == (kept > 0)
        assert kept == 0 or found.token_ids == plain.generate(prompt, params).token_ids


def test_newcomers_are_admitted_together_only_if_there_is_room_for_all(
    gave_way: list[int],
) -> None:
    """Eight prompts of four blocks each, and nine blocks."""
    decoder = SpeculativeDecoder(model_of(9))
    prompts = [[n + 1] * 100 for n in range(8)]
    decoder.generate(prompts, SamplingParams(max_tokens=3, temperature=0))
    assert not gave_way
