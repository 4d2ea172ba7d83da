"""Hybrid targets and drafters in the engine: every outcome enumerated, and greedy texts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from outrider import (
    EarlyExitDrafter,
    ModelDrafter,
    SamplingParams,
    SpeculativeConfig,
    SpeculativeDecoder,
    TransformersModel,
)
from outrider.certify import exact_distribution
from outrider.types.records import RoundRecord
from tests.support.families import VOCAB, greedy_reference, resembling
from tests.support.hybrids import FAMILIES, exact, random_hybrid

SHAPES: dict[str, dict[str, Any]] = {
    "chain": {"num_speculative_tokens": 4},
    "fixed tree": {"num_speculative_tokens": 3, "tree_shape": (2, 2, 1)},
    "grown tree": {"num_speculative_tokens": 4, "tree_budget": 8},
    "coupled": {"num_speculative_tokens": 4, "verification": "coupled"},
}
LENGTHS = (5, 23, 12, 31)
TOKENS = 40


@pytest.fixture(autouse=True)
def _exact() -> Iterator[None]:
    for family in FAMILIES:
        random_hybrid(family)  # its module is there to be patched
    with pytest.MonkeyPatch.context() as patch:
        exact(patch)
        yield


def prompts() -> list[list[int]]:
    rng = np.random.default_rng(2)
    return [rng.integers(VOCAB, size=length).tolist() for length in LENGTHS]


@pytest.mark.parametrize("shape", [(1, 1), (2, 1)])
@pytest.mark.parametrize(
    "family",
    ["qwen3_5", *(pytest.param(each, marks=pytest.mark.slow) for each in ("bamba", "jamba"))],
)
def test_the_distribution_is_the_targets(family: str, shape: tuple[int, ...]) -> None:
    model = random_hybrid(family)
    target = TransformersModel(model, max_sequences=4)
    draft = ModelDrafter(TransformersModel(resembling(model, 0.2), max_sequences=4))
    config = SpeculativeConfig(
        depth="fixed", num_speculative_tokens=2, tree_shape=shape if shape[0] > 1 else None
    )
    params = SamplingParams(max_tokens=3, top_k=3)
    found = exact_distribution(SpeculativeDecoder(target, draft, config=config), [0, 1], params)
    assert len(found) == 27
    for text, probability in found.items():
        expected = 1.0
        for place, token in enumerate(text):
            logits = target.uncached([[0, 1, *text[:place]]])[0, -1]
            best = logits.topk(3)
            kept = dict(zip(best.indices.tolist(), best.values.softmax(0).tolist(), strict=True))
            expected *= kept[token]
        assert probability == pytest.approx(expected, abs=1e-9)


CASES = [
    *(pytest.param("bamba", shape) for shape in SHAPES),
    *(pytest.param(each, "fixed tree", marks=pytest.mark.slow) for each in FAMILIES),
]


@pytest.mark.parametrize(("family", "shape"), CASES)
def test_greedy_texts_are_those_of_generate(family: str, shape: str) -> None:
    model = random_hybrid(family)
    room = {"max_sequences": 3, "max_length": 120}
    draft = ModelDrafter(TransformersModel(resembling(model, 0.02), **room))
    config = SpeculativeConfig(depth="fixed", **SHAPES[shape])
    target = TransformersModel(model, **room)
    decoder = SpeculativeDecoder(target, draft, config=config)
    params = SamplingParams(max_tokens=TOKENS, temperature=0)
    expected = [greedy_reference(model, each, TOKENS) for each in prompts()]
    for _ in range(2):  # the second time the prompts are known
        assert [tuple(each.token_ids) for each in decoder.generate(prompts(), params)] == expected
    assert decoder.metrics.accepted > 0


def test_early_exits_draft_for_a_hybrid_target() -> None:
    model = random_hybrid("falcon_h1")
    target = TransformersModel(model, max_sequences=3)
    config = SpeculativeConfig(depth="fixed", num_speculative_tokens=3)
    decoder = SpeculativeDecoder(target, EarlyExitDrafter(target, 2), config=config)
    params = SamplingParams(max_tokens=TOKENS, temperature=0)
    found = [tuple(each.token_ids) for each in decoder.generate(prompts(), params)]
    assert found == [greedy_reference(model, each, TOKENS) for each in prompts()]


def test_a_second_turn_computes_what_no_checkpoint_has() -> None:
    rng = np.random.default_rng(0)
    prompt, reply, other = (rng.integers(VOCAB, size=size).tolist() for size in (60, 20, 5))
    target = TransformersModel(random_hybrid("qwen3_5"), max_sequences=2)
    records: list[RoundRecord] = []
    decoder = SpeculativeDecoder(target, on_round=records.append)
    one = SamplingParams(max_tokens=1, temperature=0)
    decoder.generate([prompt + reply], one)
    decoder.generate([prompt], one)
    for text, known in ((prompt + reply + other, 79), (prompt + other, 59), (other, 0)):
        output = decoder.generate([text], one)[0]
        assert records[-1].cached == (known,)
        with torch.inference_mode():
            assert output.token_ids[0] == int(target.uncached([text])[0, -1].argmax())
