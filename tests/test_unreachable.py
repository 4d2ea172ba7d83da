"""What is drafted where decoding never comes: no processor is asked, and no dead end counts."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from outrider import (
    NgramDrafter,
    PredictionDrafter,
    SamplingParams,
    SpeculativeConfig,
    SpeculativeDecoder,
    StructuredOutput,
)
from outrider.certify import exact_law
from outrider.certify.reference import distance
from outrider.models.tabular import mock_pair
from outrider.shaping import Shaper

from .alphabet import alphabet

PROMPT = (0, 1)
FOLLOWS = {0: [1, 2], 1: [0, 3], 2: [0]}
END = 3


def trie(history: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """Allows what follows in a table, which knows nothing of the end nor of other histories."""
    output = history[2:].tolist()
    for before, after in zip(output, output[1:], strict=False):
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
    plain = exact_law(SpeculativeDecoder(target), PROMPT, params)
    config = SpeculativeConfig(**SPECULATION[how])
    decoder = SpeculativeDecoder(target, drafter(kind), config=config)
    assert distance(exact_law(decoder, PROMPT, params), plain) < 1e-12


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
    laws = []
    for source in (None, PredictionDrafter([0, 1, 2, 1, 0])):
        config = SpeculativeConfig(num_speculative_tokens=3, depth="fixed")
        tokenizer = alphabet("abc")
        decoder = SpeculativeDecoder(target, source, config=config, tokenizer=tokenizer)
        laws.append(exact_law(decoder, PROMPT, params))
    assert distance(*laws) < 1e-12


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
    law = exact_law(decoder, PROMPT, params)
    assert law.keys() == {(0, 0), (1, 0), (2, 0)}


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
