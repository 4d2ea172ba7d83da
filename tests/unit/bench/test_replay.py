"""Texts decoded again: the rounds are those of real decoding, on the clock of given costs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outrider import (
    HybridDrafter,
    ModelDrafter,
    NgramDrafter,
    SamplingParams,
    SpeculationMetrics,
    SpeculativeConfig,
    SpeculativeDecoder,
    SuffixDrafter,
    TransformersModel,
)
from outrider.bench.costs import Costs, Timing, cycle
from outrider.bench.records import Prompt
from outrider.bench.replay import Replay
from outrider.bench.texts import Text, written
from outrider.drafters.heads.loading import load_head

from ...support.bench import pair
from ...support.families import random_model
from ...support.heads import head_checkpoint

TOKENS = 24
PROMPTS = tuple(Prompt((*range(5, 15), *range(5, 10 + shift)), f"p{shift}") for shift in range(2))
S = 1000.0
"""A plain round's seconds: planning and look-ups, which take real time, are nothing beside them."""

COSTS = Costs(
    0.0, 1, 20, (0, 1, 2, 4), (S, 1.5 * S, 2 * S, 4 * S), (0.0, 0.2 * S, 0.4 * S, 0.8 * S)
)
DRAFTERS: dict[str, Any] = {
    "draft_model": lambda model: model,
    "ngram": lambda _: NgramDrafter(),
    "suffix": lambda _: SuffixDrafter(max_pool_tokens=0),
    "hybrid": lambda model: HybridDrafter.usual(model, SuffixDrafter(max_pool_tokens=0)),
}


def params(temperature: float = 0.0) -> SamplingParams:
    return SamplingParams(max_tokens=TOKENS, temperature=temperature, ignore_eos=True)


def texts(temperature: float = 0.0, children: int = 0) -> list[Text]:
    target, model = pair().target, pair().model_drafter
    decoder = SpeculativeDecoder(target, model)
    *_, found = written(decoder, PROMPTS, [params(temperature)] * len(PROMPTS), children)
    return found


def fixed(k: int = 3, **more: Any) -> SpeculativeConfig:
    return SpeculativeConfig(depth="fixed", num_speculative_tokens=k, **more)


def figures(metrics: SpeculationMetrics) -> tuple[int, int, int]:
    return metrics.rounds, metrics.drafted, metrics.accepted


def decoded(name: str, config: SpeculativeConfig) -> tuple[int, int, int]:
    """Figures of really decoding the prompts."""
    drafter = DRAFTERS[name](pair().model_drafter)
    real = SpeculativeDecoder(pair().target, drafter, config=config)
    for prompt in PROMPTS:
        real.generate(list(prompt.token_ids), params())
    return figures(real.metrics)


@pytest.mark.parametrize("name", DRAFTERS)
def test_greedy_rounds_are_those_of_real_decoding(name: str) -> None:
    replay = Replay(texts(), name, fixed(), COSTS)
    list(replay.run())
    assert figures(replay.metrics) == decoded(name, fixed())


@pytest.mark.parametrize("shape", [(2, 2), (1, 3, 1)])
@pytest.mark.parametrize("name", ["draft_model", "hybrid", "suffix"])
def test_greedy_trees_are_those_of_real_decoding(name: str, shape: tuple[int, ...]) -> None:
    config = fixed(len(shape), tree_shape=shape)
    replay = Replay(texts(children=3), name, config, COSTS)
    list(replay.run())
    assert figures(replay.metrics) == decoded(name, config)


def test_more_children_keep_no_less() -> None:
    for text in texts(0.8, children=3):
        assert len(text.among) == TOKENS
        assert all(0 <= one <= two <= three <= 1 for one, two, three in text.among)


def test_a_perfect_draft_keeps_all_and_costs_what_it_was_given() -> None:
    whole = Text(PROMPTS[0], 0.0, list(range(40, 61)), [1.0] * 21, [0.9] * 21, prefill_s=5 * S)
    replay = Replay([whole], "draft_model", fixed(4), COSTS)
    (found,) = replay.run()
    # Rounds of 5, 5, 5, 5 and 1 tokens; the first verification belongs to the target's prefill.
    assert found.plain == 20 * S
    model = (4 * 0.8 + (5.0 - 0.2)) * S
    assert replay.model_s == pytest.approx(model)
    assert found.drafting == pytest.approx((3 * 4.0 + 1.0) * S + model, abs=0.05 * S)


def test_a_draft_that_is_never_kept_costs_its_steps() -> None:
    none = Text(PROMPTS[0], 0.0, list(range(40, 50)), [0.0] * 10, [0.1] * 10)
    replay = Replay([none], "draft_model", fixed(1), COSTS)
    (found,) = replay.run()
    assert found.plain == 9 * S
    assert found.drafting == pytest.approx((0.2 + 8 * (1.5 + 0.2) + 1.0) * S, abs=0.05 * S)


def test_adaptive_depth_stays_near_plain_where_nothing_is_kept() -> None:
    tokens = [40 + each % 7 for each in range(400)]
    none = Text(PROMPTS[0], 0.0, tokens, [0.0] * 400, [0.1] * 400)
    replay = Replay([none], "draft_model", SpeculativeConfig(), COSTS)
    (found,) = replay.run()
    assert found.drafting < 1.02 * found.plain + 8 * S


def test_confidence_is_handed_on() -> None:
    seen: list[tuple[float, ...]] = []
    unsure = [0.95 - 0.05 * place for place in range(19)]
    text = Text(PROMPTS[0], 0.0, list(range(40, 59)), [1.0] * 19, unsure)
    config = SpeculativeConfig(depth="confidence", cost_ratio=0.01)
    replay = Replay([text], "draft_model", config, COSTS)
    replay._on_round = lambda record: seen.append(record.confidence[0])
    list(replay.run())
    assert seen[0][:4] == pytest.approx((0.95, 0.9, 0.85, 0.8), abs=0.01)


def test_texts_end_as_the_target_ends_them() -> None:
    whole = [text.token_ids for text in texts()]
    stop = whole[0][5]
    target = pair().target.fresh(2)
    target._capabilities = replace(target.capabilities, eos_token_ids=frozenset({stop}))
    *_, found = written(SpeculativeDecoder(target), PROMPTS, [params()] * len(PROMPTS))
    expected = [[*ids[: ids.index(stop)], stop] if stop in ids else ids for ids in whole]
    assert [text.token_ids for text in found] == expected
    assert [text.ended for text in found] == [stop in ids for ids in whole]


def test_texts_of_a_batch_take_as_long_as_the_longest() -> None:
    both = [
        Text(prompt, 0.0, list(range(40, 40 + n)), [1.0] * n, [0.9] * n)
        for prompt, n in zip(PROMPTS, (20, 10), strict=True)
    ]
    replay = Replay(both, "draft_model", fixed(), COSTS)
    (found,) = replay.run(batch=2)
    assert (found.name, found.tokens, found.plain) == ("p0 + p1", 30, 19 * S)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_texts_are_what_plain_decoding_writes(temperature: float) -> None:
    found = texts(temperature)
    assert [len(text.token_ids) for text in found] == [TOKENS] * 2
    assert all(len(text.ratios) == len(text.confidence) == TOKENS for text in found)
    assert all(0 <= each <= 1 for text in found for each in text.confidence)
    if temperature == 0:
        plain = SpeculativeDecoder(pair().target)
        outputs = plain.generate([list(p.token_ids) for p in PROMPTS], params())
        assert [text.token_ids for text in found] == [list(o.token_ids) for o in outputs]
        assert {each for text in found for each in text.ratios} <= {0.0, 1.0}


def test_without_a_draft_model_nothing_is_kept() -> None:
    decoder = SpeculativeDecoder(pair().target)
    *_, found = written(decoder, PROMPTS[:1], [params()])
    assert found[0].ratios == [0.0] * TOKENS


def test_costs_between_depths_and_beyond() -> None:
    assert COSTS.plain == S
    assert COSTS.verifying(3) == 3 * S
    assert COSTS.verifying(6) == 6 * S
    assert COSTS.drafting(8) == pytest.approx(1.6 * S)
    assert COSTS.step == pytest.approx(0.2)


@pytest.mark.parametrize("drafts", [False, True])
@pytest.mark.parametrize("rows", [1, 2])
def test_rounds_of_each_depth_are_timed(rows: int, drafts: bool) -> None:
    drafter = ModelDrafter(pair().model_drafter.model) if drafts else None
    asked = SamplingParams(max_tokens=20, temperature=0, ignore_eos=True)
    timing = Timing(pair().target, drafter, list(range(9)), asked, rows, (0, 1, 3))
    for _ in range(4):  # with room for one cycle in a text
        cycle([timing])
    costs = timing.costs
    assert costs is not None
    assert costs.rows == rows
    assert len(costs.rounds) == 3
    assert min(costs.rounds) > 0
    assert all((each > 0) == drafts for each in costs.drafts[1:])


def test_a_head_is_shown_what_the_target_computes_of_a_text(tmp_path: Path) -> None:
    model = random_model("llama")
    target = TransformersModel(model)
    decoder = SpeculativeDecoder(target, load_head(head_checkpoint(tmp_path, model), target))
    *_, (text,) = written(decoder, PROMPTS[:1], [params(1.0)])
    assert text.ratios[0] == 0 < min(text.ratios[1:])
