"""What `load` drafts with: the draft model, suffix lookup and predictions, put together once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import get_ident
from time import sleep
from typing import Any

import pytest
import torch

from outrider import (
    HybridDrafter,
    ModelDrafter,
    Pair,
    PredictionDrafter,
    SamplingParams,
    SpeculativeConfig,
    SpeculativeDecoder,
    SuffixDrafter,
    TransformersModel,
    VocabularyDrafter,
    generate_with,
)
from outrider.certify import exact_distribution
from outrider.certify.reference import distance, target_distribution
from outrider.drafters.suffix.automaton import SuffixAutomaton
from outrider.drafters.suffix.pool import SuffixPool
from outrider.errors import InvalidConfigError
from outrider.runtimes.tabular import mock_pair

from .families import random_model, resembling
from .test_vocabulary import LARGE, SMALL, llama

TOLERANCE = 1e-12
PROMPT = (0, 1, 2, 0)
POOLED = (0, 1, 1, 2, 0, 1, 2, 2)
EXPECTED = (None, (1, 1, 0, 2, 0))


def usual(draft: Any) -> HybridDrafter:
    """As `load` makes it, after other texts."""
    suffix = SuffixDrafter()
    suffix.learn(POOLED)
    return HybridDrafter.usual(draft, suffix)


@pytest.fixture(scope="module")
def pair() -> Pair:
    model = random_model("llama")
    target = TransformersModel(model, max_sequences=6)
    draft = TransformersModel(resembling(model), max_sequences=6)
    return Pair(target, ModelDrafter(draft), None)


def test_a_pair_drafts_with_its_model_and_two_lookups(pair: Pair) -> None:
    assert pair.drafter is not None
    assert pair.drafter.drafter is pair.model_drafter
    assert list(map(type, pair.drafter.lookups)) == [SuffixDrafter, PredictionDrafter]
    assert Pair(pair.target, None, None).drafter is None


@pytest.mark.parametrize(
    ("config", "seed"),
    [
        ({"depth": "fixed"}, None),
        ({"depth": "fixed"}, 3),
        ({"depth": "fixed", "verification": "token"}, None),
        ({"depth": "fixed", "verification": "coupled"}, 3),
        ({"cost_ratio": 0.3}, None),
        ({"cost_ratio": 0.3}, 3),
        ({"cost_ratio": 0.3, "verification": "coupled"}, 3),
        ({"depth": "confidence", "cost_ratio": 0.3}, None),
        ({"depth": "fixed", "tree_shape": (2, 1)}, None),
        ({"cost_ratio": 0.3, "tree_shape": (2, 1)}, 3),
        ({"depth": "fixed", "draft_sample_method": "greedy"}, None),
        ({"depth": "fixed", "draft_params": SamplingParams(temperature=0.5)}, None),
    ],
    ids=str,
)
def test_its_distribution_is_the_targets(config: dict[str, Any], seed: int | None) -> None:
    """Unseeded, from the request alone, and coupled: with tokens of all three sources."""
    params = SamplingParams(max_tokens=4, stop_token_ids=(2,), seed=seed)
    asked = SpeculativeConfig(num_speculative_tokens=2, strict=True, **config)
    for number, expected in enumerate(EXPECTED):
        params = replace(params, prediction=expected)
        target, draft = mock_pair(3, number)
        decoder = SpeculativeDecoder(target, usual(draft), config=asked)
        found = exact_distribution(decoder, PROMPT, params)
        assert distance(found, target_distribution(target, PROMPT, params)) < TOLERANCE


def test_both_kinds_of_rounds_are_in_the_tests_of_exactness() -> None:
    target, draft = mock_pair(3, 1)
    for depth in ("fixed", "adaptive"):
        config = SpeculativeConfig(num_speculative_tokens=2, depth=depth, cost_ratio=0.3)
        seen = set()
        decoder = SpeculativeDecoder(
            target,
            usual(draft),
            config=config,
            on_round=lambda record, seen=seen: seen.add((record.looked_up[0], record.drafted[0])),
        )
        for seed in range(20):
            expected = EXPECTED[seed % len(EXPECTED)]
            params = SamplingParams(max_tokens=4, seed=seed, prediction=expected)
            decoder.generate(PROMPT, params)
        assert {looked_up for looked_up, drafted in seen if drafted} == {False, True}


@pytest.mark.parametrize("verification", ["typical", "lenient", "mixture"])
def test_lossy_methods_ask_for_the_model_alone(pair: Pair, verification: Any) -> None:
    config = SpeculativeConfig(verification=verification, depth="fixed")
    with pytest.raises(InvalidConfigError, match=r"pair\.model_drafter"):
        SpeculativeDecoder(pair.target, pair.drafter, config=config)
    decoder = SpeculativeDecoder(pair.target, pair.model_drafter, config=config)
    assert decoder.generate([1, 2], SamplingParams(max_tokens=8)).metrics.lossy


def test_choices_of_a_seed_are_the_same_alone_and_beside_others(pair: Pair) -> None:
    decoder = SpeculativeDecoder(pair.target, pair.drafter, config=SpeculativeConfig(depth="fixed"))
    params = SamplingParams(max_tokens=20, n=3, seed=4, temperature=0.4)
    prompt = [5, 6, 7, 5, 6]
    alone = decoder.generate(prompt, params)
    decoder.generate([prompt, [6, 7, 5]], SamplingParams(max_tokens=40, temperature=0.2))
    mates = [SamplingParams(max_tokens=20, temperature=0.3), params]
    _, together = decoder.generate([[1, 2, 1], prompt], mates)
    assert [choice.token_ids for choice in together.choices] == [
        choice.token_ids for choice in alone.choices
    ]


class Busy:
    """Which threads are inside the automata at once."""

    def __init__(self) -> None:
        self.inside: set[int] = set()
        self.most = 0

    def watch(self, monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
        """Have a method tell, and let other threads run while it does."""
        plain = getattr(owner, name)

        def watched(*args: Any) -> Any:
            self.inside.add(get_ident())
            self.most = max(self.most, len(self.inside))
            sleep(0.0002)
            try:
                return plain(*args)
            finally:
                self.inside.discard(get_ident())

        monkeypatch.setattr(owner, name, watched)


def test_threads_share_it(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """One at a time is inside its automata, which change as they are read."""
    drafter = HybridDrafter.usual(pair.model_drafter)
    decoder = SpeculativeDecoder(
        pair.target, drafter, config=SpeculativeConfig(depth="fixed", strict=True)
    )
    suffix = drafter.lookups[0]
    assert isinstance(suffix, SuffixDrafter)
    params = SamplingParams(max_tokens=12, temperature=0)
    prompts = [[first, first + 1, first, first + 1] for first in range(6)]
    expected = [decoder.generate(prompt, params).token_ids for prompt in prompts]
    busy = Busy()
    for name in ("extend", "own_match", "match", "draft"):
        busy.watch(monkeypatch, SuffixAutomaton, name)
    busy.watch(monkeypatch, SuffixPool, "insert")

    def decoded(prompt: list[int]) -> tuple[int, ...]:
        suffix.learn(prompt * 4)
        assert suffix.nbytes > 0
        assert suffix.pooled_tokens > 0
        return decoder.generate(prompt, params).token_ids

    pooled = suffix.pooled_tokens
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(decoded, prompts))
    assert found == expected
    assert busy.most == 1
    # Every text is there, learnt and written, and the end of each.
    assert suffix.pooled_tokens == pooled + sum(4 * 4 + 1 + len(text) + 1 for text in expected)


def test_inside_transformers_generate(pair: Pair) -> None:
    model = random_model("llama")
    draft = HybridDrafter.usual(TransformersModel(resembling(model), max_sequences=8))
    config = SpeculativeConfig(depth="fixed")
    prompts = torch.tensor([[1, 2, 3, 1, 2], [4, 5, 4, 5, 4]])
    asked = {"max_new_tokens": 20, "do_sample": False, "pad_token_id": 0}
    mask = torch.ones_like(prompts)
    plain = model.generate(prompts, attention_mask=mask, **asked)
    found = model.generate(
        prompts, attention_mask=mask, custom_generate=generate_with(draft, config), **asked
    )
    assert found.tolist() == plain.tolist()


@pytest.mark.parametrize("match", ["tokens", "text"])
@pytest.mark.parametrize("shape", [None, (2, 1, 1)])
def test_beside_a_draft_of_another_vocabulary(match: Any, shape: Any) -> None:
    target = TransformersModel(llama(LARGE, 0), max_sequences=2)
    draft = TransformersModel(llama(SMALL, 1), max_sequences=2)
    model = VocabularyDrafter(draft, SMALL, LARGE, target.vocab_size, match=match)
    config = SpeculativeConfig(
        num_speculative_tokens=3, depth="fixed", tree_shape=shape, strict=True
    )
    params = SamplingParams(max_tokens=24, temperature=0)
    prompt = LARGE.encode("for x in x: for x in")
    plain = SpeculativeDecoder(target).generate(prompt, params)
    drafter = HybridDrafter(model, SuffixDrafter(), min_expected=0.1)
    decoder = SpeculativeDecoder(target, drafter, config=config)
    assert decoder.generate(prompt, params).token_ids == plain.token_ids
    sampled = replace(params, temperature=1.0, seed=1)
    assert len(decoder.generate(prompt, sampled).token_ids) <= 24
