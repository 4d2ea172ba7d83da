"""What is drafted where decoding never comes: no processor is asked, and no dead end counts."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from outrider import (
    HybridDrafter,
    NgramDrafter,
    PredictionDrafter,
    SamplingParams,
    SpeculativeConfig,
    SpeculativeDecoder,
    StructuredOutput,
)
from outrider.certify import exact_distribution
from outrider.certify.reference import distance
from outrider.errors import DegenerateDistributionError
from outrider.runtimes.tabular import TabularModel, mock_pair
from outrider.sampling.shaping import Shaper

from .alphabet import alphabet

PROMPT = (0, 1)
FOLLOWS = {0: [1, 2], 1: [0, 3], 2: [0]}
END = 3


def trie(history: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """Allows what follows in a table, which knows nothing of the end nor of other histories."""
    output = history[2:].tolist()
    for before, after in pairwise(output):
        assert after in FOLLOWS[before], output
    allowed = FOLLOWS[output[-1]] if output else [0, 1, 2]
    kept = torch.full_like(logits, -torch.inf)
    kept[allowed] = logits[allowed]
    return kept


def drafter(kind: str, vocab_size: int = 4) -> Any:
    if kind == "model":
        return mock_pair(vocab_size, 3)[1]
    return NgramDrafter(2) if kind == "ngram" else PredictionDrafter([0, 0, 1, 3, 1, 2])


SPECULATION: dict[str, dict[str, Any]] = {
    "chain": {"num_speculative_tokens": 2},
    "coupled": {"num_speculative_tokens": 2, "verification": "coupled"},
    "tree": {"tree_shape": (2, 2)},
    "wide tree": {"tree_shape": (3, 1), "tree_children": "without_replacement"},
    "drafts otherwise": {"num_speculative_tokens": 2, "draft_params": SamplingParams()},
}


@pytest.mark.parametrize("how", SPECULATION)
@pytest.mark.parametrize("kind", ["model", "prediction", "ngram"])
def test_a_processor_is_asked_about_no_impossible_history(how: str, kind: str) -> None:
    target, _ = mock_pair(4, 3)
    params = SamplingParams(max_tokens=3, stop_token_ids=(END,), logits_processors=(trie,))
    plain = exact_distribution(SpeculativeDecoder(target), PROMPT, params)
    config = SpeculativeConfig(**SPECULATION[how])
    decoder = SpeculativeDecoder(target, drafter(kind), config=config)
    assert distance(exact_distribution(decoder, PROMPT, params), plain) < 1e-12


@pytest.mark.parametrize(
    "forbids",
    [{"bad_words": ((1,),)}, {"structured_output": StructuredOutput(regex="[ac]{2}")}],
    ids=["a ban", "a form"],
)
def test_nor_about_one_that_the_request_forbids(forbids: dict[str, Any]) -> None:
    """Drafts below the letter b."""

    def hears_no_b(history: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        assert 1 not in history[2:], history
        return logits

    target, _ = mock_pair(4, 3)
    params = SamplingParams(
        max_tokens=3, stop_token_ids=(END,), logits_processors=(hears_no_b,), **forbids
    )
    distributions = []
    for source in (None, PredictionDrafter([0, 1, 2, 1, 0])):
        config = SpeculativeConfig(num_speculative_tokens=3, depth="fixed")
        tokenizer = alphabet("abc")
        decoder = SpeculativeDecoder(target, source, config=config, tokenizer=tokenizer)
        distributions.append(exact_distribution(decoder, PROMPT, params))
    assert distance(*distributions) < 1e-12


def test_a_mixture_comes_below_what_is_forbidden() -> None:
    """There the processor's word counts still: it allows the drafted token to be kept, then 0."""

    def only_zero(history: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        kept = torch.full_like(logits, -torch.inf)
        kept[[0, 2] if len(history) == 2 else [0]] = 0.0
        return kept

    target, _ = mock_pair(4, 3)
    params = SamplingParams(max_tokens=2, logits_processors=(only_zero,))
    config = SpeculativeConfig(
        verification="mixture", mixture_budget=0.5, num_speculative_tokens=1, depth="fixed"
    )
    decoder = SpeculativeDecoder(target, PredictionDrafter([1]), config=config)
    distribution = exact_distribution(decoder, PROMPT, params)
    assert distribution.keys() == {(0, 0), (1, 0), (2, 0)}


def test_what_processors_forbid_is_fetched_once_a_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """For every row and node of a depth together, so that a device is seldom waited for."""
    fetched = []
    stack = torch.stack

    def noted(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if tensors[0].dtype == torch.bool:
            fetched.append(len(tensors))
        return stack(tensors, *args, **kwargs)

    target, _ = mock_pair(4, 3)
    config = SpeculativeConfig(num_speculative_tokens=2, depth="fixed")
    decoder = SpeculativeDecoder(target, PredictionDrafter([0, 1, 0, 1]), config=config)
    params = SamplingParams(temperature=0, logits_processors=(lambda history, logits: logits,))
    states = [decoder.start(PROMPT, params)[0] for _ in range(3)]
    monkeypatch.setattr(torch, "stack", noted)
    decoder.step(decoder.pack(states))
    assert fetched == [3, 3]


def test_a_shaper_that_asks_everywhere_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault."""
    monkeypatch.setattr(Shaper, "_reached", lambda self, places: [True] * len(places))
    with pytest.raises((AssertionError, KeyError)):
        test_a_processor_is_asked_about_no_impossible_history("tree", "prediction")


DEAD_END: dict[str, Any] = {"bad_words": ((2,), (2, 0), (2, 1), (2, 2), (2, 3))}
"""2 may not come, and nothing after it."""


@pytest.mark.parametrize("how", [*SPECULATION, "token", "recursive tree", "mixed tree"])
@pytest.mark.parametrize("filters", [{}, {"top_k": 3}, {"temperature": 0}], ids=str)
@pytest.mark.parametrize("kind", ["model", "prediction", "hybrid"])
def test_a_dead_end_that_was_only_drafted_is_no_error(
    how: str, kind: str, filters: dict[str, Any]
) -> None:
    target, draft = mock_pair(4, 3)
    looked_up = PredictionDrafter([2, 0, 1, 2, 1])
    source = {"model": draft, "prediction": looked_up, "hybrid": HybridDrafter(draft, looked_up)}
    more = {
        "token": {"verification": "token", "num_speculative_tokens": 3},
        "recursive tree": {"verification": "recursive", "tree_shape": (3, 2)},
        "mixed tree": {"tree_shape": (4, 1), "tree_children": "greedy"},
    }
    chosen = {"strict": True, "depth": "fixed"} | (SPECULATION | more)[how]
    params = SamplingParams(max_tokens=3, **DEAD_END, **filters)
    plain = exact_distribution(SpeculativeDecoder(target), PROMPT, params)
    decoder = SpeculativeDecoder(target, source[kind], config=SpeculativeConfig(**chosen))
    assert distance(exact_distribution(decoder, PROMPT, params), plain) < 1e-12


def test_one_that_decoding_comes_to_is_an_error() -> None:
    """And only there: 2 may come, and nothing after it. The rest of a seeded text is the same."""
    target, draft = mock_pair(4, 3)
    ended = []
    for source in (None, draft, PredictionDrafter([2, 0, 1, 2, 1])):
        config = SpeculativeConfig(num_speculative_tokens=3, verification="coupled", depth="fixed")
        decoder = SpeculativeDecoder(target, source, config=config)
        texts: list[Any] = []
        for seed in range(40):
            params = SamplingParams(max_tokens=3, bad_words=DEAD_END["bad_words"][1:], seed=seed)
            try:
                texts.append(decoder.generate(PROMPT, params).choices[0].token_ids)
            except DegenerateDistributionError as error:
                texts.append(str(error).split("'s logits")[0])
        ended.append(texts)
    assert 0 < ended[0].count("the target") < 40
    assert ended[0] == ended[1] == ended[2]


class Broken(TabularModel):
    """Says 2 with a chance, and nothing but NaN below it."""

    def __init__(self, chance: float) -> None:
        super().__init__(lambda _: np.array([0.5, 0.3, chance, 0.2 - chance]), 4)

    def _logits(self, prefix: tuple[int, ...]) -> torch.Tensor:
        logits = super()._logits(prefix)
        return logits * torch.nan if 2 in prefix[len(PROMPT) :] else logits


@pytest.mark.parametrize("filters", [{}, {"top_k": 3}], ids=["unfiltered", "filtered"])
@pytest.mark.parametrize("how", ["block", "token", "coupled", "tree"])
@pytest.mark.parametrize("kind", ["model", "prediction"])
def test_nan_spoils_no_verdict_on_another_path(
    how: str, kind: str, filters: dict[str, Any]
) -> None:
    params = SamplingParams(max_tokens=3, **filters)
    shape: dict[str, Any] = {"num_speculative_tokens": 3, "verification": how}
    shape = {"tree_shape": (3, 2)} if how == "tree" else shape
    config = SpeculativeConfig(depth="fixed", **shape)
    source = mock_pair(4, 3)[1] if kind == "model" else PredictionDrafter([0, 2, 1])
    decoder = SpeculativeDecoder(Broken(0.0), source, config=config)
    plain = exact_distribution(SpeculativeDecoder(Broken(0.0)), PROMPT, params)
    assert distance(exact_distribution(decoder, PROMPT, params), plain) < 1e-12
    reached = SpeculativeDecoder(Broken(0.1), source, config=config)
    with pytest.raises(DegenerateDistributionError):
        exact_distribution(reached, PROMPT, params)
