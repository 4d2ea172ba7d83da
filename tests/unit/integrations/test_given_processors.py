"""Logits processors that are passed to `generate`, with speculation inside: the same meaning."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import transformers as tf
from torch import Tensor

import outrider
from outrider import SpeculativeConfig, SpeculativeDecoder, StatefulProcessor
from outrider.errors import UserCodeError
from outrider.sampling import distributions as sampling
from outrider.sampling.packed import PackedLogitsParams
from outrider.sampling.pipeline import LogitsPipeline, Path
from outrider.types.records import SequenceState
from tests.support.families import PAD, VOCAB, padded, random_model, resembling

FAMILIES = ("llama", "gemma3")
LENGTH = 12


class Odd(tf.LogitsProcessor):
    """Looks at all of the history, padding included, and at the sizes of logits."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        turned = [
            torch.roll(row.clamp(min=-20), int(ids.sum()) % VOCAB)
            for ids, row in zip(input_ids, scores, strict=True)
        ]
        return 1.5 * scores - 0.7 * torch.stack(turned)


def squared(input_ids: Tensor, scores: Tensor) -> Tensor:
    """A function in the place of a processor; it does not commute with a temperature."""
    return scores * scores.abs() / 4 + 0.3 * (input_ids[:, -1:] % 5)


def allowed(row: int, tokens: Tensor) -> list[int]:
    """Other tokens for each row."""
    return [t for t in range(VOCAB) if (t + row + len(tokens)) % 3]


ASKED: list[dict[str, Any]] = [
    {"logits_processor": [Odd()]},
    {"logits_processor": [squared, Odd(), tf.TopKLogitsWarper(7)]},
    {"logits_processor": [tf.RepetitionPenaltyLogitsProcessor(1.4), Odd()]},
    {
        "logits_processor": [Odd(), tf.NoBadWordsLogitsProcessor([[7], [8, 9]])],
        "repetition_penalty": 1.3,
        "sequence_bias": {(3,): 2.0, (5,): -1.0},
        "suppress_tokens": [2, 11],
        "eos_token_id": list(range(0, VOCAB, 9)),
        "min_new_tokens": 5,
    },
    {"prefix_allowed_tokens_fn": allowed, "logits_processor": [Odd()]},
    {"no_repeat_ngram_size": 1},
]


@pytest.fixture(scope="module", params=FAMILIES)
def models(request: pytest.FixtureRequest) -> Any:
    target = random_model(request.param)
    return target, resembling(target)


@pytest.mark.parametrize("case", range(len(ASKED)), ids=lambda case: ", ".join(ASKED[case]))
@pytest.mark.slow
def test_greedy_equals_generate_at_every_depth(models: Any, case: int) -> None:
    """In a batch with padding, which processors see."""
    target, draft = models
    inputs = padded((2, 17, 9, 17))
    common = ASKED[case] | {"max_new_tokens": LENGTH, "pad_token_id": PAD}
    expected = target.generate(**inputs, **common)
    plain = target.generate(**inputs, max_new_tokens=LENGTH, pad_token_id=PAD)
    assert not any(row.equal(other) for row, other in zip(expected, plain, strict=True))
    for k in (1, 4, 8):
        config = SpeculativeConfig(depth="fixed", num_speculative_tokens=k)
        inside = outrider.generate_with(draft, config, max_sequences=3)
        found = target.generate(**inputs, **common, custom_generate=inside)
        assert found.equal(expected), k


SAMPLED: list[dict[str, Any]] = [
    *ASKED,
    {"temperature": 0.6, "top_k": 9, "logits_processor": [squared]},
    {
        "temperature": 1.4,
        "top_p": 0.8,
        "top_k": 0,
        "logits_processor": [tf.TemperatureLogitsWarper(0.5), squared, tf.TopKLogitsWarper(20)],
        "renormalize_logits": True,
    },
    # The last is the caller's own, and the setting makes none.
    {"top_k": 0, "logits_processor": [squared, tf.TemperatureLogitsWarper(0.5)]},
    {"top_k": 5, "logits_processor": [tf.TopKLogitsWarper(5), squared], "temperature": 0.7},
    {"min_p": 0.05, "logits_processor": [tf.LogitNormalization(), squared]},
]


class Heard:
    """A call's processors as transformers has merged them, and what is made of them."""

    def __init__(self) -> None:
        target: Any = random_model("llama")
        self.target, self.draft = target, resembling(target)
        self.theirs: Any = None
        self.states: list[SequenceState] = []

    def listen(self, inputs: dict[str, Tensor], asked: dict[str, Any]) -> None:
        inside = outrider.generate_with(self.draft, SpeculativeConfig(depth="fixed"))
        start = SpeculativeDecoder.start
        self.states = []

        def noted(decoder: Any, prompt: Any, params: Any = None) -> list[SequenceState]:
            found = start(decoder, prompt, params)
            self.states += found
            return found

        def between(*args: Any, logits_processor: Any, **kwargs: Any) -> Any:
            self.theirs = logits_processor
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(SpeculativeDecoder, "start", noted)
                return inside(*args, logits_processor=logits_processor, **kwargs)

        self.target.generate(
            **inputs, **asked, do_sample=True, max_new_tokens=LENGTH, custom_generate=between
        )

    def distribution(self, row: int, drafted: Tensor, logits: Tensor) -> Tensor:
        """Ours, of the token after a row's prompt and `drafted` tokens."""
        state, device = self.states[row], torch.device("cpu")
        shaping = PackedLogitsParams.pack([state], device)
        assert shaping is not None
        pipeline = LogitsPipeline(shaping, [state], device)
        shaped = pipeline(logits[None, None], Path.of(drafted[None, None])).logits
        packed = sampling.PackedParams.pack([state.params], VOCAB, device)
        distributions, _ = sampling.distributions(shaped, packed)
        assert distributions.probs is not None
        return distributions.probs[0, 0]


@pytest.fixture(scope="module")
def heard() -> Heard:
    return Heard()


def largest_error(heard: Heard, inputs: dict[str, Tensor], asked: dict[str, Any]) -> float:
    heard.listen(inputs, asked)
    drawn = torch.Generator().manual_seed(2)
    worst = 0.0
    for row, ids in enumerate(inputs["input_ids"]):
        # After an end token nothing follows, and processors are not asked.
        ends = heard.states[row].stop_ids
        going_on = torch.tensor([token for token in range(VOCAB) if token not in ends])
        for length in range(1, 7):
            drafted = going_on[torch.randint(len(going_on), (length,), generator=drawn)]
            logits = 3 * torch.randn(VOCAB, generator=drawn, dtype=torch.float64)
            # Every row, because some processors know theirs by its place among them.
            whole = torch.cat([ids, drafted])[None].repeat(len(inputs["input_ids"]), 1)
            theirs = heard.theirs(whole, logits[None].repeat(len(whole), 1))[row].softmax(-1)
            worst = max(
                worst, float((heard.distribution(row, drafted, logits) - theirs).abs().max())
            )
    return worst


@pytest.mark.parametrize("asked", SAMPLED, ids="-".join)
def test_the_distribution_of_a_token_is_that_of_transformers_own_list(
    heard: Heard, asked: dict[str, Any]
) -> None:
    """After random tokens and logits: the order counts, against temperature and filters too."""
    assert largest_error(heard, padded((4, 9, 6)), asked) < 1e-12


def test_another_order_is_seen(heard: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: the caller's own after the temperature."""
    distributions = sampling.distributions

    def late(logits: Tensor, params: Any) -> Any:
        return distributions(logits * 0.6, params)

    monkeypatch.setattr(sampling, "distributions", late)
    assert largest_error(heard, padded((4, 9)), SAMPLED[len(ASKED)]) > 1e-2


@pytest.mark.parametrize("asked", SAMPLED, ids="-".join)
@pytest.mark.slow
def test_coupled_samples_are_those_of_plain_decoding(heard: Heard, asked: dict[str, Any]) -> None:
    inputs = padded((4, 9, 6))
    texts = []
    for draft, shape in ((None, {}), (heard.draft, {}), (heard.draft, {"tree_shape": (3, 2)})):
        config = SpeculativeConfig(depth="fixed", verification="coupled", **shape)
        torch.manual_seed(4)
        texts.append(
            heard.target.generate(
                **inputs,
                **asked,
                do_sample=True,
                max_new_tokens=LENGTH,
                pad_token_id=PAD,
                custom_generate=outrider.generate_with(draft, config),
            )
        )
    assert texts[0].equal(texts[1])
    assert texts[0].equal(texts[2])


class Echo(tf.LogitsProcessor):
    """Takes from the logits what it remembers of those before, and counts its calls."""

    def __init__(self) -> None:
        self.calls = 0
        self.memory: Any = 0.0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.calls += 1
        self.memory = 0.6 * self.memory + scores
        return scores - 0.7 * self.memory + 0.1 * self.calls * (input_ids[:, -1:] % 7)


def watermark() -> Any:
    return tf.SynthIDTextWatermarkLogitsProcessor(
        ngram_len=3,
        keys=[654, 400, 836, 123],
        sampling_table_size=2**8,
        sampling_table_seed=0,
        context_history_size=16,
        device=torch.device("cpu"),
    )


@pytest.mark.slow
@pytest.mark.parametrize("processor", [Echo, watermark])
def test_one_that_remembers_is_that_of_generate(models: Any, processor: Any) -> None:
    """In the place of the bare one, which transformers calls once a position for both rows."""
    target, draft = models
    inputs = padded((4, 9))
    common: dict[str, Any] = {
        "max_new_tokens": LENGTH,
        "pad_token_id": PAD,
        "repetition_penalty": 1.2,
    }
    bare = [processor(), squared]
    expected = target.generate(**inputs, **common, logits_processor=bare)
    without = target.generate(**inputs, **common, logits_processor=[squared])
    assert not any(row.equal(other) for row, other in zip(expected, without, strict=True))
    own = processor()
    asked = common | {"logits_processor": [StatefulProcessor(own), squared]}
    for k in (0, 1, 3):
        config = SpeculativeConfig(depth="fixed", num_speculative_tokens=k)
        inside = outrider.generate_with(draft, config)
        assert target.generate(**inputs, **asked, custom_generate=inside).equal(expected), k
    assert getattr(own, "calls", 0) == 0, "the caller's own is not called"


def test_a_memory_that_hypotheses_share_is_seen(models: Any) -> None:
    """Planted fault: forks that are one and the same."""
    target, draft = models
    inputs, common = padded((4, 9)), {"max_new_tokens": LENGTH, "pad_token_id": PAD}
    expected = target.generate(**inputs, **common, logits_processor=[Echo()])
    shared = [StatefulProcessor(Echo(), lambda processor: processor)]
    inside = outrider.generate_with(
        draft, SpeculativeConfig(depth="fixed", num_speculative_tokens=3)
    )
    found = target.generate(**inputs, **common, logits_processor=shared, custom_generate=inside)
    assert not found.equal(expected)


def test_a_list_without_processors_is_left_alone(heard: Heard) -> None:
    heard.listen(padded((4,)), {"temperature": 0.7})
    assert heard.states[0].params.logits_processors == ()


def bare(shape: tuple[int, ...] | None) -> Any:
    def returns(history: Tensor, logits: Tensor) -> Any:
        return None if shape is None else torch.zeros(shape)

    return returns


class Theirs(tf.LogitsProcessor):
    def __init__(self, shape: tuple[int, ...] | None) -> None:
        self.shape = shape

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Any:
        return None if self.shape is None else torch.zeros(self.shape)


@pytest.mark.parametrize("wrong", [None, (), (1,), (VOCAB - 1,), (1, VOCAB), (2, VOCAB), (VOCAB,)])
@pytest.mark.parametrize("draft", [False, True])
def test_a_processor_that_returns_something_else_is_named(
    models: Any, wrong: tuple[int, ...] | None, draft: bool
) -> None:
    """A function is asked for [V], one of transformers for [1, V]; nothing is broadcast."""
    target, _ = models
    decoder = SpeculativeDecoder(outrider.TransformersModel(target), None)
    if draft:
        decoder = SpeculativeDecoder(outrider.TransformersModel(target), outrider.NgramDrafter(2))
    for processor, name, right in (
        (bare(wrong), "bare.<locals>.returns", (VOCAB,)),
        (Theirs(wrong), "Theirs", (1, VOCAB)),
        (StatefulProcessor(Theirs(wrong)), "Theirs", (1, VOCAB)),
    ):
        params = outrider.SamplingParams(max_tokens=2, logits_processors=(processor,))
        if wrong == right:
            assert len(decoder.generate([3, 4, 3, 4], params).choices[0].token_ids) == 2
            continue
        with pytest.raises(
            UserCodeError, match=rf"{re.escape(name)}, returned .*; expected logits"
        ):
            decoder.generate([3, 4, 3, 4], params)


@pytest.mark.parametrize("wrong", [None, (), (VOCAB,)])
def test_inside_generate_as_well(models: Any, wrong: tuple[int, ...] | None) -> None:
    target, draft = models
    inside = outrider.generate_with(draft, SpeculativeConfig(depth="fixed"))
    asked = padded((4, 9)) | {"max_new_tokens": 2, "pad_token_id": PAD, "custom_generate": inside}
    with pytest.raises(UserCodeError, match="Theirs"):
        target.generate(**asked, logits_processor=[Theirs(wrong)])
