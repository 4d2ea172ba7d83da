"""Drafts that are shaped otherwise than the request: the distribution is the request's all the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from outrider import SamplingParams, SpeculativeConfig, SpeculativeDecoder, StructuredOutput
from outrider.certify import exact_distribution
from outrider.certify.reference import distance, target_distribution
from outrider.errors import InvalidConfigError, TokenOutOfRangeError
from outrider.runtimes.tabular import mock_pair
from tests.alphabet import alphabet

TOLERANCE = 1e-12
V = 3
PROMPT = (0, 1)
SHAPES: list[dict[str, Any]] = [
    {"num_speculative_tokens": 2, "verification": "block"},
    {"num_speculative_tokens": 2, "verification": "token"},
    {"num_speculative_tokens": 2, "verification": "coupled"},
    {"num_speculative_tokens": 2, "draft_sample_method": "greedy"},
    {"tree_shape": (2, 1), "verification": "traversal"},
    {"tree_shape": (2, 1), "tree_children": "without_replacement", "verification": "recursive"},
    {"num_speculative_tokens": 2, "tree_budget": 3, "verification": "recursive"},
]
DRAFTED: list[dict[str, Any]] = [
    {"temperature": 0.3},
    {"temperature": 0},
    {"temperature": 1.6, "top_k": 2, "repetition_penalty": 1.3},
    {"frequency_penalty": 1.0, "logit_bias": {1: 2.0}, "bad_words": ((2,),)},
]
ASKED: list[dict[str, Any]] = [
    {},
    {"temperature": 0},
    {"temperature": 0.7, "top_p": 0.8, "presence_penalty": 1.0},
]


@pytest.mark.parametrize("speculation", SHAPES, ids=str)
@pytest.mark.parametrize("drafted", DRAFTED, ids=str)
def test_the_distribution_is_the_requests_own(
    speculation: dict[str, Any], drafted: dict[str, Any]
) -> None:
    target, draft = mock_pair(V, 1)
    config = SpeculativeConfig(depth="fixed", draft_params=SamplingParams(**drafted), **speculation)
    for asked in ASKED:
        decoder = SpeculativeDecoder(target, draft, config=config)
        params = SamplingParams(max_tokens=3, **asked)
        found = exact_distribution(decoder, PROMPT, params)
        assert distance(found, target_distribution(target, PROMPT, params)) < TOLERANCE


def acceptance(drafted: SamplingParams | None, **asked: Any) -> float:
    target, _ = mock_pair(8, 3)
    decoder = SpeculativeDecoder(
        target, target, config=SpeculativeConfig(depth="fixed", draft_params=drafted)
    )
    decoder.generate([list(PROMPT)] * 8, SamplingParams(max_tokens=60, seed=1, **asked))
    metrics = decoder.metrics
    assert metrics.acceptance_rate is not None
    return metrics.acceptance_rate


def test_drafts_are_shaped_as_told() -> None:
    """A perfect draft is kept always under the request's own, and under the same told so."""
    asked = {"temperature": 0.6, "repetition_penalty": 1.5}
    assert acceptance(None, **asked) == 1
    assert acceptance(SamplingParams(**asked), **asked) == 1
    assert acceptance(SamplingParams(), **asked) < 0.9
    # A greedy request is drafted greedily: a draft without its penalty is right where that is idle.
    assert acceptance(SamplingParams(temperature=1.5), temperature=0) == 1


def test_a_draft_is_penalised_for_the_prompt_as_it_is_told() -> None:
    """By its own repetition penalty, be the request without one: and for nothing not seen."""
    target, _ = mock_pair(8, 3)
    drafted = SamplingParams(repetition_penalty=1.7)
    config = SpeculativeConfig(
        depth="fixed", num_speculative_tokens=1, draft_params=drafted, verification="coupled"
    )
    decoder = SpeculativeDecoder(target, target, config=config)
    params, told = SamplingParams(max_tokens=2, seed=5), []
    propose = decoder.drafter.propose

    def heard(*given: Any) -> Any:
        told.append(propose(*given))
        return told[-1]

    decoder.drafter.propose = heard
    decoder.generate(list(PROMPT), params)
    logits = torch.from_numpy(target.probabilities(PROMPT)).log()
    for token in set(PROMPT):
        logits[token] *= 1.7 if logits[token] < 0 else 1 / 1.7
    assert torch.allclose(told[0].distributions.probs[0, 0].double(), logits.softmax(-1))


def test_a_form_is_kept_to_by_drafts_in_any_case() -> None:
    target, _ = mock_pair(5, 3)
    config = SpeculativeConfig(depth="fixed", draft_params=SamplingParams(temperature=0.9))
    decoder = SpeculativeDecoder(
        target, target, tokenizer=alphabet(("a", "b", "ab")), config=config
    )
    form = StructuredOutput(regex="(a|b)*")
    params = SamplingParams(max_tokens=40, seed=1, temperature=0.9, structured_output=form)
    assert decoder.generate(list(PROMPT), params).metrics.acceptance_rate == 1


@pytest.mark.parametrize(
    "field",
    [
        {"n": 2},
        {"seed": 1},
        {"max_tokens": 3},
        {"min_tokens": 1},
        {"stop": "x"},
        {"stop_token_ids": (1,)},
        {"ignore_eos": True},
        {"logprobs": 1},
        {"depths": (1,)},
        {"logits_processors": (lambda history, logits: logits,)},
        {"structured_output": StructuredOutput(regex="a")},
    ],
    ids="-".join,
)
def test_what_drafts_cannot_be_told_is_refused(field: dict[str, Any]) -> None:
    (name,) = field
    with pytest.raises(InvalidConfigError, match=rf"draft_params\.{name}="):
        SpeculativeConfig(depth="fixed", draft_params=SamplingParams(**field))


def test_what_is_no_parameters_or_no_token_is_refused() -> None:
    with pytest.raises(InvalidConfigError, match="draft_params="):
        SpeculativeConfig(depth="fixed", draft_params={"temperature": 1})
    for field in ({"logit_bias": {V: 1.0}}, {"bad_words": ((0, V),)}):
        config = SpeculativeConfig(depth="fixed", draft_params=SamplingParams(**field))
        with pytest.raises(TokenOutOfRangeError, match=rf"draft_params\.{next(iter(field))}"):
            SpeculativeDecoder(*mock_pair(V), config=config)
