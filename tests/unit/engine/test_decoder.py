"""The engine from outside: seeds, batches, perfect drafts, stop rules, streams, contracts."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch

from outrider import (
    HybridDrafter,
    ModelDrafter,
    NgramDrafter,
    SamplingParams,
    SpeculativeConfig,
    SpeculativeDecoder,
    StructuredOutput,
    TransformersModel,
)
from outrider.errors import (
    DegenerateDistributionError,
    DistributionWidthError,
    DraftError,
    EmptyPrefixError,
    InvalidConfigError,
    TargetShapeError,
    TokenOutOfRangeError,
    VocabMismatchError,
)
from outrider.policies import AdaptiveDepth
from outrider.runtimes.base import Capabilities, Runtime
from outrider.runtimes.tabular import TabularModel, mock_pair
from outrider.types.records import (
    DraftProposal,
    Prefix,
    RoundRecord,
    TargetScores,
)
from outrider.verification import Verifier
from outrider.verification.lossy import LenientVerification, MixtureVerification
from tests.support.alphabet import alphabet
from tests.support.families import VOCAB, random_model, resembling

METHODS = ("block", "token")


@pytest.fixture(scope="module")
def models() -> tuple[TransformersModel, TransformersModel]:
    target = random_model("llama")
    draft = resembling(target)
    return (
        TransformersModel(target, max_sequences=9),
        TransformersModel(draft, max_sequences=9),
    )


class Scoring(Runtime):
    """The smallest target: each token is followed by the next one."""

    def __init__(self, vocab_size: int) -> None:
        self._capabilities = Capabilities(vocab_size, torch.device("cpu"))

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    def verify(self, prefixes: Sequence[Prefix], proposal: DraftProposal) -> TargetScores:
        last = torch.tensor([[int(prefix.tokens[-1])] for prefix in prefixes])
        tokens = torch.cat([last, proposal.tokens], 1)
        following = (tokens + 1) % self.vocab_size
        return TargetScores(torch.nn.functional.one_hot(following, self.vocab_size) * 50.0)


def config(verification: str = "block", k: int = 4, **more: Any) -> SpeculativeConfig:
    return SpeculativeConfig(
        depth="fixed", num_speculative_tokens=k, verification=verification, **more
    )


@pytest.mark.parametrize("verification", METHODS)
@pytest.mark.parametrize("temperature", [0.0, 0.3, 0.7, 1.0, 1.5])
@pytest.mark.parametrize("filters", [{}, {"top_k": 12, "top_p": 0.9}], ids=["open", "filtered"])
def test_a_perfect_draft_is_always_accepted(
    verification: str, temperature: float, filters: dict[str, Any]
) -> None:
    """The draft model gets the parameters once: another share of rejections would show twice."""
    model = random_model("llama", seed=5)
    target = TransformersModel(copy.deepcopy(model), max_sequences=4)
    draft = TransformersModel(model, max_sequences=4)
    decoder = SpeculativeDecoder(target, draft, config=config(verification))
    params = SamplingParams(max_tokens=41, temperature=temperature, seed=1, n=4, **filters)
    decoder.generate([3, 1, 4], params)
    assert decoder.metrics.drafted == decoder.metrics.accepted >= 4 * 32


@pytest.mark.slow
@pytest.mark.parametrize("verification", METHODS)
def test_one_seed_gives_one_text_alone_and_in_any_batch(
    models: tuple[TransformersModel, TransformersModel], verification: str
) -> None:
    rng = random.Random(0)
    decoder = SpeculativeDecoder(*models, config=config(verification))
    prompts = [[rng.randrange(VOCAB) for _ in range(rng.randrange(1, 30))] for _ in range(9)]
    params = [
        SamplingParams(
            max_tokens=rng.randrange(8, 40),
            temperature=rng.choice([0.0, 0.7, 1.0, 1.3]),
            top_p=rng.choice([1.0, 0.9]),
            top_k=rng.choice([0, 20]),
            seed=seed,
        )
        for seed in range(9)
    ]
    alone = [decoder.generate(*pair) for pair in zip(prompts, params, strict=True)]
    for order in ([0, 1, 2, 3, 4, 5, 6, 7, 8], [8, 3, 5, 1, 0, 7, 2, 6, 4]):
        together = decoder.generate([prompts[i] for i in order], [params[i] for i in order])
        for index, output in zip(order, together, strict=True):
            assert output.token_ids == alone[index].token_ids
            assert output.depths == alone[index].depths


def test_another_seed_or_another_prompt_gives_another_text(
    models: tuple[TransformersModel, TransformersModel],
) -> None:
    decoder = SpeculativeDecoder(*models)
    outputs = decoder.generate(
        [[5], [5], [6]], [SamplingParams(seed=s, max_tokens=20) for s in (1, 2, 1)]
    )
    assert len({output.token_ids for output in outputs}) == 3


def test_a_reported_seed_and_depths_replay_the_run() -> None:
    target, draft = mock_pair(5, 3)
    decoder = SpeculativeDecoder(target, draft, config=config(k=3))
    first = decoder.generate([0, 1], SamplingParams(max_tokens=30))
    other = SpeculativeDecoder(target, draft, config=config(k=7))
    again = other.generate(
        [0, 1], SamplingParams(max_tokens=30, seed=first.seed, depths=first.depths)
    )
    assert again.token_ids == first.token_ids
    assert again.depths == first.depths


def test_no_more_than_the_remaining_tokens_less_one_are_drafted() -> None:
    target, draft = mock_pair(4, 1, agreement=1.0)
    output = SpeculativeDecoder(target, draft, config=config(k=4)).generate(
        [0], SamplingParams(max_tokens=8)
    )
    assert output.depths == (4, 2)
    assert len(output.token_ids) == 8
    assert output.metrics.accepted == 6
    assert output.metrics.emitted == 8


def test_tokens_after_a_stop_are_neither_emitted_nor_accepted() -> None:
    counting = TabularModel(lambda prefix: np.eye(10)[(prefix[-1] + 1) % 10], 10)
    decoder = SpeculativeDecoder(counting, counting, config=config(k=6))
    output = decoder.generate([0], SamplingParams(max_tokens=50, stop_token_ids=(3,)))
    assert output.token_ids == (1, 2, 3)
    assert output.finish_reason == "stop"
    assert (output.metrics.drafted, output.metrics.accepted, output.metrics.emitted) == (6, 3, 3)


def test_origins_tell_drafts_corrections_and_bonuses() -> None:
    counting = TabularModel(lambda prefix: np.eye(10)[(prefix[-1] + 1) % 10], 10)
    wrong_at_four = TabularModel(
        lambda prefix: np.eye(10)[9 if prefix[-1] == 3 else (prefix[-1] + 1) % 10], 10
    )
    decoder = SpeculativeDecoder(counting, wrong_at_four, config=config(k=2))
    events = list(decoder.stream([0], SamplingParams(max_tokens=6)))
    assert [event.token_id for event in events] == [1, 2, 3, 4, 5, 6]
    assert [event.origin for event in events] == [
        "draft", "draft", "bonus", "correction", "draft", "bonus",
    ]  # fmt: skip
    assert [event.round for event in events] == [0, 0, 0, 1, 2, 2]
    assert [event.position for event in events] == list(range(6))
    assert [event.finish_reason for event in events] == [None] * 5 + ["length"]
    plain = SpeculativeDecoder(counting).stream([0], SamplingParams(max_tokens=3))
    assert {event.origin for event in plain} == {"bonus"}


def test_streams_and_generate_agree(models: tuple[TransformersModel, TransformersModel]) -> None:
    decoder = SpeculativeDecoder(*models)
    prompts = [[1, 2], [3], [4, 5, 6]]
    params = SamplingParams(max_tokens=15, seed=3, n=2)
    outputs = decoder.generate(prompts, params)
    streamed: dict[tuple[int, int], list[int]] = {}
    for event in decoder.stream(prompts, params):
        streamed.setdefault((event.request, event.choice), []).append(event.token_id)
    assert streamed == {
        (request, choice.index): list(choice.token_ids)
        for request, output in enumerate(outputs)
        for choice in output.choices
    }


def test_metrics_count_by_their_definitions() -> None:
    counting = TabularModel(lambda prefix: np.eye(10)[(prefix[-1] + 1) % 10], 10)
    wrong_at_four = TabularModel(
        lambda prefix: np.eye(10)[9 if prefix[-1] == 3 else (prefix[-1] + 1) % 10], 10
    )
    decoder = SpeculativeDecoder(counting, wrong_at_four, config=config(k=2))
    decoder.generate([0], SamplingParams(max_tokens=7))
    metrics = decoder.metrics
    # Rounds: (1, 2 | 3), (4 corrected), (5, 6 | 7).
    assert (metrics.rounds, metrics.drafted, metrics.accepted, metrics.emitted) == (3, 6, 4, 7)
    assert metrics.acceptance_rate == 4 / 6
    assert metrics.acceptance_length == 7 / 3
    assert metrics.per_position == (2 / 3, 2 / 3)
    assert metrics.total_s == pytest.approx(metrics.draft_s + metrics.target_s + metrics.other_s)
    decoder.reset_metrics()
    assert decoder.metrics.rounds == 0
    assert decoder.metrics.acceptance_rate is None
    assert decoder.metrics.acceptance_length is None
    assert decoder.metrics.tokens_per_s is None


def test_plain_decoding_is_a_round_that_drafts_nothing() -> None:
    target, draft = mock_pair(4, 1)
    for drafter, k in ((None, 4), (draft, 0)):
        output = SpeculativeDecoder(target, drafter, config=config(k=k)).generate(
            [0], SamplingParams(max_tokens=5, seed=1)
        )
        assert output.depths == (0,) * 5


def test_a_batch_may_mix_drafted_and_undrafted_rows() -> None:
    target, draft = mock_pair(4, 1)
    decoder = SpeculativeDecoder(target, draft, config=config(k=3))
    outputs = decoder.generate([[0], [1]], [SamplingParams(max_tokens=m, seed=1) for m in (1, 12)])
    assert [len(output.token_ids) for output in outputs] == [1, 12]
    assert outputs[0].depths == (0,)


@pytest.mark.parametrize(
    ("prompt", "error", "message"),
    [
        (np.empty(0, int), EmptyPrefixError, "has no tokens; give at least one"),
        ([[0], []], EmptyPrefixError, r"prompt \[\] has no tokens; give at least one"),
        ([[]], EmptyPrefixError, r"prompt \[\] has no tokens; give at least one"),
        ([0, 4], TokenOutOfRangeError, r"prompt has token id 4; expected ids in 0\.\.3"),
        ([0, -1], TokenOutOfRangeError, "token id -1"),
        ([0.5], InvalidConfigError, r"prompt=\[0\.5\]"),
        ("text", InvalidConfigError, "without a tokenizer"),
        (7, InvalidConfigError, "prompts=7"),
    ],
)
def test_bad_prompts_are_refused(prompt: Any, error: type[Exception], message: str) -> None:
    decoder = SpeculativeDecoder(mock_pair(4, 1)[0])
    with pytest.raises(error, match=message):
        decoder.generate(prompt, SamplingParams(max_tokens=2))
    with pytest.raises(error, match=message):
        decoder.stream(prompt, SamplingParams(max_tokens=2))


@pytest.mark.parametrize("none", [[], ()])
@pytest.mark.parametrize("drafts", [False, True])
def test_no_prompts_have_no_outputs(none: Any, drafts: bool) -> None:
    target, draft = mock_pair(4, 1)
    decoder = SpeculativeDecoder(target, draft if drafts else None)
    assert decoder.generate(none) == []
    assert decoder.generate(none, SamplingParams(max_tokens=2)) == []
    assert decoder.generate(none, []) == []
    assert list(decoder.stream(none)) == []
    with pytest.raises(InvalidConfigError, match="params"):
        decoder.generate(none, [SamplingParams()])


def dead_end(prefix: tuple[int, ...]) -> np.ndarray:
    """After a prompt that begins with 3, NaN from the third token on."""
    return np.full(4, np.nan if prefix[0] == 3 and len(prefix) > 3 else 0.25)


class Unchecked(TabularModel):
    """A model whose logits may hold NaN."""

    def __init__(self) -> None:
        super().__init__(lambda prefix: np.nan_to_num(dead_end(prefix), nan=0.25), 4)

    def verify(self, prefixes: Any, proposal: Any) -> Any:
        scores = super().verify(prefixes, proposal)
        for row, prefix in enumerate(prefixes):
            if np.isnan(dead_end(tuple(prefix.tokens))).any():
                scores.logits[row] = torch.nan
        return scores


@pytest.mark.parametrize("room", [None, 1])
def test_the_prompt_that_leads_to_a_dead_end_is_named(
    room: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its place among those that were given, whichever rows are decoded together."""
    monkeypatch.setattr(SpeculativeDecoder, "max_sequences", room)
    decoder, prompts = SpeculativeDecoder(Unchecked()), [[0], [1], [3], [2]]
    params = [SamplingParams(max_tokens=6, n=n) for n in (3, 1, 2, 1)]
    for decode in (decoder.generate, lambda *asked: list(decoder.stream(*asked))):
        with pytest.raises(DegenerateDistributionError, match=r"prompts\[2\]") as caught:
            decode(prompts, params)
        assert caught.value.request == 2
        with pytest.raises(DegenerateDistributionError, match=r"^the target's logits") as caught:
            decode([3], params[0])
        assert caught.value.request == 0
    del prompts[2], params[2]
    assert len(decoder.generate(prompts, params)) == 3


def test_params_must_match_the_prompts() -> None:
    decoder = SpeculativeDecoder(mock_pair(4, 1)[0])
    with pytest.raises(InvalidConfigError, match="one for all prompts, or 2"):
        decoder.generate([[0], [1]], [SamplingParams()] * 3)
    with pytest.raises(TokenOutOfRangeError, match="stop_token_ids has token id 9"):
        decoder.generate([0], SamplingParams(stop_token_ids=(9,)))


def test_vocabularies_must_match() -> None:
    with pytest.raises(VocabMismatchError, match="5 tokens and the target's 4"):
        SpeculativeDecoder(mock_pair(4, 1)[0], mock_pair(5, 1)[0])


def test_what_a_verifier_of_ones_own_may_do_is_known() -> None:
    """As if the configuration had named it."""
    target, draft = mock_pair(4, 1)
    lossy = Verifier(LenientVerification(0.5))
    mix = HybridDrafter(ModelDrafter(draft), NgramDrafter())
    with pytest.raises(InvalidConfigError, match="verification='LenientVerification'"):
        SpeculativeDecoder(target, mix, verifier=lossy)
    assert SpeculativeDecoder(target, draft, verifier=lossy).metrics.lossy
    mixture = SpeculativeDecoder(
        target, draft, verifier=Verifier(MixtureVerification(0.1)), tokenizer=alphabet(tuple("abc"))
    )
    form = StructuredOutput(choice=("a",))
    with pytest.raises(InvalidConfigError, match="which keeps what the form forbids"):
        mixture.start([0], SamplingParams(structured_output=form))
    coupled = SpeculativeDecoder(target, draft, verifier=Verifier(None))
    named = SpeculativeDecoder(target, draft, config=SpeculativeConfig(verification="coupled"))
    assert isinstance(coupled.policy, AdaptiveDepth)
    assert isinstance(named.policy, AdaptiveDepth)
    states = coupled.start([0], SamplingParams(seed=1))
    assert (
        coupled.policy.plan(coupled.knowledge, states).depth
        == named.policy.plan(named.knowledge, states).depth
    )
    with pytest.raises(InvalidConfigError, match=r"it takes a Method: Verifier\(method\)"):
        SpeculativeDecoder(target, draft, verifier=cast(Any, LenientVerification(0.5)))


def test_a_greedy_rows_draft_depends_on_its_confidence_beside_sampled_rows_too() -> None:
    """Its distribution is a point mass, which says nothing of how sure the draft is."""
    target, draft = mock_pair(8, 1)
    asked = SpeculativeConfig(depth="confidence", num_speculative_tokens=8)
    decoder = SpeculativeDecoder(target, draft, config=asked)
    greedy = SamplingParams(max_tokens=24, temperature=0)
    alone = decoder.generate([0], greedy)
    beside, _ = decoder.generate([[0], [1]], [greedy, SamplingParams(max_tokens=24, seed=1)])
    assert max(alone.depths) < 8
    assert beside.depths == alone.depths


@pytest.mark.parametrize(
    ("side", "error"), [("target", DegenerateDistributionError), ("draft model", DraftError)]
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nan_logits_are_refused_and_leave_nothing_behind(
    side: str, error: type[Exception], temperature: float
) -> None:
    healthy = random_model("llama")
    broken = copy.deepcopy(healthy)
    wrapped = TransformersModel(broken, max_sequences=2)
    mate = TransformersModel(healthy, max_sequences=2)
    decoder = SpeculativeDecoder(
        *((wrapped, mate) if side == "target" else (mate, wrapped)),
        config=config(k=2),
    )
    params = SamplingParams(max_tokens=8, temperature=temperature, seed=1)
    expected = decoder.generate([1, 2, 3], params)
    weight = broken.lm_head.weight
    kept = weight.detach().clone()
    weight.data[7] = torch.nan
    with pytest.raises(error, match=rf"the {side}'s logits for sequence \d+"):
        decoder.generate([1, 2, 3], params)
    assert not wrapped.live_sequences
    assert not mate.live_sequences
    weight.data.copy_(kept)
    assert decoder.generate([1, 2, 3], params).token_ids == expected.token_ids


@pytest.mark.parametrize(
    ("shape", "error"), [((1, 2, 4), TargetShapeError), ((1, 1, 5), DistributionWidthError)]
)
def test_malformed_scores_are_refused(shape: tuple[int, ...], error: type[Exception]) -> None:
    class Odd(Scoring):
        def verify(self, prefixes: Sequence[Prefix], proposal: DraftProposal) -> TargetScores:
            return TargetScores(torch.zeros(shape))

    with pytest.raises(error, match="the target returned logits of shape"):
        SpeculativeDecoder(Odd(4)).generate([0], SamplingParams(max_tokens=2))


class Reporting(Scoring):
    """A target that reports how much of its prefixes it found computed."""

    def __init__(self, cached: Any) -> None:
        super().__init__(4)
        self.cached = cached

    def verify(self, prefixes: Sequence[Prefix], proposal: DraftProposal) -> TargetScores:
        return replace(super().verify(prefixes, proposal), cached=self.cached)


@pytest.mark.parametrize(
    "cached", [(1, 2, 3), (1, -1), (0.5, 1), [0, 0], torch.zeros(2, dtype=torch.int64), None]
)
def test_malformed_counts_of_cached_tokens_are_refused(cached: Any) -> None:
    decoder = SpeculativeDecoder(Reporting(cached))
    with pytest.raises(TargetShapeError, match="a tuple of 2 integers"):
        decoder.generate([[0], [1]], SamplingParams(max_tokens=2))


@pytest.mark.parametrize(("cached", "recorded"), [((), (0, 0)), ((3, 1), (3, 1))])
def test_cached_tokens_are_recorded(cached: tuple[int, ...], recorded: tuple[int, ...]) -> None:
    records: list[RoundRecord] = []
    decoder = SpeculativeDecoder(Reporting(cached), on_round=records.append)
    decoder.generate([[0], [1]], SamplingParams(max_tokens=1))
    assert records[0].cached == recorded


def test_a_target_needs_capabilities_and_verify_alone() -> None:
    decoder = SpeculativeDecoder(Scoring(5), NgramDrafter())
    output = decoder.generate([0, 1, 2, 3, 4, 0, 1], SamplingParams(max_tokens=20))
    assert output.token_ids == tuple((2 + i) % 5 for i in range(20))
    assert output.metrics.acceptance_rate == 1
