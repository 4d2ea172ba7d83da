"""Every sampling parameter, of requests and of drafts, under speculation: the exact distribution.

The engine is enumerated with chains and trees, and held against a recursion that shapes one row at
a time from the definitions.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider import SamplingParams, SpeculativeConfig, SpeculativeDecoder
from outrider.certify import exact_distribution
from outrider.certify.reference import distance, target_distribution
from outrider.errors import TokenOutOfRangeError
from outrider.runtimes.tabular import TabularModel, mock_pair
from outrider.sampling.paths import Path
from outrider.sampling.pipeline import LogitsPipeline

V = 3
TOLERANCE = 1e-12
PROMPT = (0, 1)

ALONE: list[dict[str, Any]] = [
    {"repetition_penalty": 1.4},
    {"repetition_penalty": 0.6},
    {"presence_penalty": 1.5},
    {"presence_penalty": -1.0},
    {"frequency_penalty": 0.8},
    {"frequency_penalty": -0.7},
    {"logit_bias": {1: 2.0, 2: -3.0}},
    {"bad_words": ((2,),)},
    {"bad_words": ((1, 2), (0, 0, 1))},
    {"allowed_token_ids": (0, 2)},
    {"allowed_token_ids": (1,), "repetition_penalty": 1.4},
    {"min_tokens": 2, "stop_token_ids": (0, 1)},
]
SHAPES: list[dict[str, Any]] = [
    {"num_speculative_tokens": 2, "verification": "block"},
    {"num_speculative_tokens": 2, "verification": "token"},
    {"num_speculative_tokens": 2, "verification": "coupled"},
    {"num_speculative_tokens": 2, "tree_shape": (2, 1)},
    {"num_speculative_tokens": 2, "tree_budget": 3, "verification": "recursive"},
]


def error(seed: int, speculation: dict[str, Any], params: SamplingParams) -> float:
    """The largest error in an output's probability."""
    target, draft = mock_pair(V, seed)
    decoder = SpeculativeDecoder(
        target, draft, config=SpeculativeConfig(depth="fixed", **speculation)
    )
    return distance(
        exact_distribution(decoder, PROMPT, params), target_distribution(target, PROMPT, params)
    )


@pytest.mark.parametrize("speculation", SHAPES, ids=str)
@pytest.mark.parametrize("shaping", ALONE, ids=str)
def test_the_distribution_under_each_parameter(
    speculation: dict[str, Any], shaping: dict[str, Any]
) -> None:
    params = SamplingParams(max_tokens=3, **shaping)
    assert error(1, speculation, params) < TOLERANCE


ANY = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.sampled_from([0.0, 0.5, 1.7]),
        "top_k": st.sampled_from([1, 2]),
        "top_p": st.sampled_from([0.6, 0.9]),
        "min_p": st.sampled_from([0.1, 0.4]),
        "repetition_penalty": st.sampled_from([0.5, 1.2, 3.0]),
        "presence_penalty": st.sampled_from([-2.0, 0.4, 2.0]),
        "frequency_penalty": st.sampled_from([-0.3, 1.1]),
        "logit_bias": st.dictionaries(st.integers(0, V - 1), st.sampled_from([-5.0, 1.0])),
        "bad_words": st.lists(
            st.lists(st.integers(0, V - 1), min_size=2, max_size=3).map(tuple), max_size=2
        ).map(tuple),
        "allowed_token_ids": st.sampled_from([None, (0, 2), (2, 1, 0)]),
        "min_tokens": st.integers(0, 2),
        "stop_token_ids": st.sampled_from([(), (1,)]),
        "depths": st.sampled_from([None, (1, 2), (0, 1)]),
    },
)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 50), st.sampled_from(SHAPES), ANY)
def test_the_distribution_under_any_of_them_together(
    seed: int, speculation: dict[str, Any], shaping: dict[str, Any]
) -> None:
    params = SamplingParams(max_tokens=3, **shaping)
    assert error(seed, speculation, params) < TOLERANCE


def test_rows_of_a_batch_keep_their_own_parameters() -> None:
    target, draft = mock_pair(V, 2)
    for speculation in SHAPES:
        decoder = SpeculativeDecoder(
            target, draft, config=SpeculativeConfig(depth="fixed", **speculation)
        )
        mates = [
            decoder.start([0] * (i + 1), SamplingParams(max_tokens=9, **shaping))[0]
            for i, shaping in enumerate(ALONE[:4])
        ]
        params = SamplingParams(max_tokens=3, presence_penalty=1.0, top_p=0.9)
        found = exact_distribution(decoder, PROMPT, params, mates=mates)
        assert distance(found, target_distribution(target, PROMPT, params)) < TOLERANCE


@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.0, 1.5])
def test_a_perfect_draft_is_accepted_under_every_parameter(temperature: float) -> None:
    """The drafter's logits are shaped once, as the target's are."""
    target, _ = mock_pair(8, 3)
    for shaping in ALONE:
        params = SamplingParams(max_tokens=30, temperature=temperature, seed=1, **shaping)
        for speculation in SHAPES[:3]:
            decoder = SpeculativeDecoder(
                target, target, config=SpeculativeConfig(depth="fixed", **speculation)
            )
            metrics = decoder.generate([0, 1], params).metrics
            # Tokens after a stop count as not accepted.
            cut = 2 if params.stop_token_ids else 0
            assert 0 <= metrics.drafted - metrics.accepted <= cut


@pytest.mark.parametrize("shaping", ALONE, ids=str)
def test_coupled_text_is_that_of_plain_keyed_sampling(shaping: dict[str, Any]) -> None:
    target, draft = mock_pair(9, 4)
    plain = SpeculativeDecoder(
        target, config=SpeculativeConfig(depth="fixed", verification="coupled")
    )
    for speculation in ({"num_speculative_tokens": 3}, {"tree_shape": (3, 2)}):
        config = SpeculativeConfig(depth="fixed", verification="coupled", **speculation)
        decoder = SpeculativeDecoder(target, draft, config=config)
        for seed in range(10):
            params = SamplingParams(max_tokens=20, seed=seed, **shaping)
            found = decoder.generate([0, 1], params).token_ids
            assert found == plain.generate([0, 1], params).token_ids


def test_a_history_without_the_drafted_tokens_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: penalties of one value for all positions, as they were before the round."""
    pipeline = LogitsPipeline.__call__

    def stale(self: LogitsPipeline, logits: Any, path: Path) -> Any:
        return pipeline(self, logits, Path.of(path.tokens[..., :0]))

    monkeypatch.setattr(LogitsPipeline, "__call__", stale)
    params = SamplingParams(max_tokens=3, frequency_penalty=1.5)
    assert error(1, SHAPES[0], params) > 1e-3


def oddly(history: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """A processor of a user's own: it looks at all of the history."""
    return logits - 0.7 * torch.roll(logits, int(history.sum()) % V)


@pytest.mark.parametrize("speculation", SHAPES, ids=str)
def test_the_distribution_under_processors_of_a_users_own(speculation: dict[str, Any]) -> None:
    target, draft = mock_pair(V, 1)

    def shaped_distribution(prefix: tuple[int, ...]) -> Any:
        logits = torch.from_numpy(target.probabilities(prefix)).log()
        history = torch.tensor(prefix)
        logits = oddly(history, logits)
        warped = tf.EpsilonLogitsWarper(0.05)(history[None], logits[None])[0]
        return warped.softmax(-1).numpy()

    params = SamplingParams(
        max_tokens=3, logits_processors=(oddly, tf.EpsilonLogitsWarper(0.05)), temperature=0.8
    )
    decoder = SpeculativeDecoder(
        target, draft, config=SpeculativeConfig(depth="fixed", **speculation)
    )
    plain = SamplingParams(max_tokens=3, temperature=0.8)
    expected = target_distribution(TabularModel(shaped_distribution, V), PROMPT, plain)
    assert distance(exact_distribution(decoder, PROMPT, params), expected) < TOLERANCE


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


@pytest.mark.parametrize(
    "speculation",
    [*SHAPES, {"num_speculative_tokens": 2, "draft_sample_method": "greedy"}],
    ids=str,
)
@pytest.mark.parametrize("drafted", DRAFTED, ids=str)
def test_drafts_that_are_shaped_otherwise_leave_the_requests_distribution(
    speculation: dict[str, Any], drafted: dict[str, Any]
) -> None:
    own = speculation | {"draft_params": SamplingParams(**drafted)}
    for asked in ASKED:
        assert error(1, own, SamplingParams(max_tokens=3, **asked)) < TOLERANCE


def acceptance(drafted: SamplingParams | None, **asked: Any) -> float:
    """The acceptance rate of a perfect draft."""
    target, _ = mock_pair(8, 3)
    config = SpeculativeConfig(depth="fixed", draft_params=drafted)
    decoder = SpeculativeDecoder(target, target, config=config)
    decoder.generate([list(PROMPT)] * 8, SamplingParams(max_tokens=60, seed=1, **asked))
    rate = decoder.metrics.acceptance_rate
    assert rate is not None
    return rate


def test_drafts_are_shaped_as_draft_params_say() -> None:
    """A perfect draft is always kept under the request's own, and under equal ones."""
    asked = {"temperature": 0.6, "repetition_penalty": 1.5}
    assert acceptance(None, **asked) == 1
    assert acceptance(SamplingParams(**asked), **asked) == 1
    assert acceptance(SamplingParams(), **asked) < 0.9
    assert acceptance(SamplingParams(temperature=1.5), temperature=0) == 1


def test_draft_params_of_another_vocabulary_are_refused() -> None:
    for field in ({"logit_bias": {V: 1.0}}, {"bad_words": ((0, V),)}):
        config = SpeculativeConfig(draft_params=SamplingParams(**field))
        with pytest.raises(TokenOutOfRangeError, match=rf"draft_params\.{next(iter(field))}"):
            SpeculativeDecoder(*mock_pair(V), config=config)
