"""transformers' own generate with speculation inside: the same tokens, or a clear refusal."""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest
import torch
import transformers as tf
from transformers.generation import ConfidenceCriteria

import outrider
from outrider import SpeculativeConfig, StatefulProcessor
from outrider.errors import InvalidConfigError, ModelError, UserCodeError, VocabMismatchError
from tests.support.families import PAD, VOCAB, padded, random_model, resembling
from tests.support.tokenizers import toy_tokenizer


class Models:
    def __init__(self) -> None:
        self.target: Any = random_model("llama")
        self.draft: Any = resembling(self.target)
        # Prompts longer than a round, and more rows than are decoded together.
        self.inside = outrider.generate_with(
            self.draft, SpeculativeConfig(depth="fixed", num_speculative_tokens=3), max_sequences=3
        )


@pytest.fixture(scope="module")
def models() -> Models:
    return Models()


GREEDY: list[dict[str, Any]] = [
    {"max_new_tokens": 12},
    {"max_length": 30, "pad_token_id": PAD},
    {"max_new_tokens": 14, "eos_token_id": list(range(0, VOCAB, 9))},
    {"max_new_tokens": 14, "eos_token_id": list(range(0, VOCAB, 5)), "min_new_tokens": 6},
    {"max_new_tokens": 14, "eos_token_id": list(range(1, VOCAB, 6)), "min_length": 25},
    {
        "max_new_tokens": 12,
        "repetition_penalty": 1.4,
        "bad_words_ids": [[3], [7, 8], [5]],
        "sequence_bias": {(4,): 2.5, (9,): -4.0, (11,): float("-inf"), (2, 6): float("-inf")},
        "suppress_tokens": [13, 21],
        "eos_token_id": 5,
        "pad_token_id": 2,
        "renormalize_logits": True,
    },
]


@pytest.mark.parametrize("asked", GREEDY, ids=str)
def test_greedy_equals_generate(models: Models, asked: dict[str, Any]) -> None:
    """In a batch with padding, ended rows padded as generate pads them."""
    inputs = padded((2, 17, 9, 17, 5))
    expected = models.target.generate(**inputs, **asked)
    found = models.target.generate(**inputs, **asked, custom_generate=models.inside)
    assert found.dtype == torch.int64
    assert found.equal(expected)


@pytest.mark.parametrize("family", ["gpt2", "gemma3"])
def test_greedy_equals_generate_with_another_family(family: str) -> None:
    target: Any = random_model(family)
    inputs, inside = padded((2, 17, 9)), outrider.generate_with(resembling(target))
    expected = target.generate(**inputs, max_new_tokens=15)
    assert target.generate(**inputs, max_new_tokens=15, custom_generate=inside).equal(expected)


@pytest.mark.parametrize("drafter", [None, outrider.NgramDrafter()])
def test_any_drafter_will_do(models: Models, drafter: Any) -> None:
    inputs, inside = padded((6, 4)), outrider.generate_with(drafter)
    expected = models.target.generate(**inputs, max_new_tokens=15)
    found = models.target.generate(**inputs, max_new_tokens=15, custom_generate=inside)
    assert found.equal(expected)


def test_samples_repeat_with_torchs_seed_and_differ_among_themselves(models: Models) -> None:
    inputs = padded((4, 11))
    asked = {"do_sample": True, "num_return_sequences": 3, "max_new_tokens": 10, "top_p": 0.9}

    def sampled(seed: int) -> Any:
        torch.manual_seed(seed)
        found = models.target.generate(
            **inputs, **asked, custom_generate=models.inside, return_dict_in_generate=True
        )
        assert [name for name, value in found.items() if value is not None] == ["sequences"]
        return found.sequences

    first = sampled(1)
    assert first.shape == (6, 21)
    assert first[:, :11].equal(inputs["input_ids"].repeat_interleave(3, 0))
    assert len(set(map(tuple, first.tolist()))) == 6
    assert sampled(1).equal(first)
    assert not sampled(2).equal(first)


def test_samples_stay_in_the_filters(models: Models) -> None:
    """With top_k = 1, and with a min_p of 1, sampling is greedy."""
    inputs = padded((4, 11))
    expected = models.target.generate(**inputs, max_new_tokens=10)
    for asked in ({"top_k": 1}, {"min_p": 1.0}, {"top_p": 1e-6}, {"temperature": 1e-5}):
        found = models.target.generate(
            **inputs, **asked, max_new_tokens=10, do_sample=True, custom_generate=models.inside
        )
        assert found.equal(expected), asked


def test_greedy_leaves_torchs_generator_alone(models: Models) -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    models.target.generate(**padded((4,)), max_new_tokens=5, custom_generate=models.inside)
    assert torch.get_rng_state().equal(before)


def test_stop_strings_and_other_criteria_end_rows_where_generate_ends_them(models: Models) -> None:
    """Both stop a row mid-round, and the row's prompt counts as generate counts it."""
    tokenizer = toy_tokenizer()
    inputs = padded((2, 9, 5))
    plain = models.target.generate(**inputs, max_new_tokens=16)[:, 9:]
    texts = [tokenizer.decode(row) for row in plain.tolist()]

    class Sum(tf.StoppingCriteria):
        def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
            return input_ids.sum(1) % 13 == 4

    strings = [text[7:9] for text in texts]
    for criterion in (tf.StopStringCriteria(tokenizer, strings), Sum()):
        # An end-of-sequence token that does not occur, so that generate pads ended rows.
        absent = next(t for t in range(VOCAB) if t not in plain)
        asked = {"max_new_tokens": 16, "eos_token_id": absent, "pad_token_id": PAD}
        asked["stopping_criteria"] = [criterion]
        expected = models.target.generate(**inputs, **asked)
        found = models.target.generate(**inputs, **asked, custom_generate=models.inside)
        assert expected.shape[1] < 9 + 16 or (expected[:, -1] == PAD).any()
        assert found.equal(expected)


class Longer(tf.MaxLengthCriteria):
    """Of another type, so that it stands beside the setting's."""


CRITERIA: list[dict[str, Any]] = [
    {"stopping_criteria": [tf.MaxLengthCriteria(9 + 7)], "max_length": 40},
    {"stopping_criteria": [tf.MaxLengthCriteria(9 + 7)], "max_new_tokens": 3},
    {"stopping_criteria": [tf.MaxLengthCriteria(4)], "max_new_tokens": 12},
    {"stopping_criteria": [tf.MaxLengthCriteria(99), tf.MaxLengthCriteria(14)], "max_length": 12},
    {"stopping_criteria": [Longer(9 + 5)], "max_new_tokens": 12},
    {"stopping_criteria": [tf.MaxTimeCriteria(-1.0)], "max_new_tokens": 12},
    {"stopping_criteria": [tf.MaxTimeCriteria(999.0)], "max_new_tokens": 12},
    {"stopping_criteria": [tf.EosTokenCriteria(list(range(0, VOCAB, 5)))], "max_length": 30},
    {
        "stopping_criteria": [tf.EosTokenCriteria(list(range(0, VOCAB, 5)))],
        "eos_token_id": list(range(1, VOCAB, 4)),
        "max_new_tokens": 12,
    },
    {
        "stopping_criteria": [tf.EosTokenCriteria(7), tf.MaxLengthCriteria(9 + 9)],
        "eos_token_id": 7,
        "min_new_tokens": 4,
        "max_new_tokens": 12,
    },
]


@pytest.mark.parametrize("asked", CRITERIA, ids=lambda asked: ",".join(asked))
def test_a_criterion_of_a_settings_type_takes_its_place(
    models: Models, asked: dict[str, Any]
) -> None:
    inputs = padded((2, 9, 5))
    asked = {"pad_token_id": PAD, **asked}
    expected = models.target.generate(**inputs, **asked)
    assert models.target.generate(**inputs, **asked, custom_generate=models.inside).equal(expected)


@pytest.mark.parametrize("draft", [True, False])
def test_a_criterion_or_processor_that_raises_names_itself_and_its_row(
    models: Models, draft: bool
) -> None:
    inside = models.inside if draft else outrider.generate_with(None)

    class Failing(tf.StoppingCriteria):
        def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
            if input_ids.shape[1] > 12 and (input_ids[0, :4] == PAD).all():
                raise LookupError("no more")
            return torch.tensor([False])

    class Broken(tf.LogitsProcessor):
        def __call__(self, input_ids: Any, scores: Any) -> Any:
            if (input_ids[0, :4] == PAD).all():
                raise LookupError("not this row")
            return scores

    inputs: dict[str, Any] = {**padded((9, 9, 5)), "max_new_tokens": 9, "pad_token_id": PAD}
    for asked, named in (
        ({"stopping_criteria": [Failing()]}, "stopping criterion Failing failed on row 2"),
        ({"logits_processor": [Broken()]}, "logits_processor of row 2, Broken, failed"),
    ):
        with pytest.raises(UserCodeError, match=named) as told:
            models.target.generate(**inputs, **asked, custom_generate=inside)
        assert isinstance(told.value.__cause__, LookupError)


def test_an_encoder_decoder_is_named() -> None:
    config = tf.T5Config(
        vocab_size=VOCAB,
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=1,
        num_heads=2,
        decoder_start_token_id=0,
    )
    model: Any = tf.T5ForConditionalGeneration(config).eval()
    for given in (padded((4, 6)), {"decoder_input_ids": torch.zeros(2, 1, dtype=torch.int64)}):
        asked = {**padded((4, 6)), **given, "max_new_tokens": 4}
        for draft in (None, model, outrider.NgramDrafter()):
            with pytest.raises(ModelError, match="encoder-decoder") as told:
                model.generate(**asked, custom_generate=outrider.generate_with(draft))
            assert "encoder_outputs" not in str(told.value)


def test_a_recurrent_model_is_named() -> None:
    config = tf.RwkvConfig(
        vocab_size=VOCAB, hidden_size=16, num_hidden_layers=2, attention_hidden_size=16
    )
    model: Any = tf.RwkvForCausalLM(config).eval()
    with pytest.raises(ModelError, match="RwkvForCausalLM keeps a recurrent state"):
        model.generate(
            torch.ones(1, 4, dtype=torch.int64),
            max_new_tokens=4,
            custom_generate=outrider.generate_with(None),
        )


def test_no_processor_is_asked_behind_a_criterion_of_the_callers_own(models: Models) -> None:
    """A perfect draft goes on behind every stop."""

    def stops(tokens: Any) -> bool:
        return bool(tokens[7:].remainder(5).eq(2).any())

    class Stop(tf.StoppingCriteria):
        def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
            return torch.tensor([stops(row) for row in input_ids])

    class Strict(tf.LogitsProcessor):
        def __call__(self, input_ids: Any, scores: Any) -> Any:
            behind.extend(filter(stops, input_ids))
            return scores.roll(1, -1)

    behind: list[Any] = []
    inside = outrider.generate_with(
        copy.deepcopy(models.target), SpeculativeConfig(depth="fixed", num_speculative_tokens=6)
    )
    for seed in range(4):
        torch.manual_seed(seed)
        prompt = torch.randint(VOCAB, (1, 7))
        asked: dict[str, Any] = {"max_new_tokens": 20, "pad_token_id": PAD}
        asked |= {"stopping_criteria": [Stop()], "logits_processor": [Strict()]}
        expected = models.target.generate(prompt, **asked)
        assert expected.shape[1] < 27
        assert models.target.generate(prompt, **asked, custom_generate=inside).equal(expected)
    assert not behind


def test_a_limit_on_time_is_honoured(models: Models) -> None:
    """A time that is up before the start ends each row at its first token, as in generate."""
    asked: dict[str, Any] = {"max_time": -1.0, "max_new_tokens": 9, "pad_token_id": PAD}
    inputs = padded((4, 6))
    expected = models.target.generate(**inputs, **asked)
    found = models.target.generate(**inputs, **asked, custom_generate=models.inside)
    assert found.shape == (2, 7)
    assert found.equal(expected)


def test_the_models_are_left_as_they_were(models: Models) -> None:
    for implementation in ("eager", "sdpa"):
        for training in (True, False):
            for model in (models.target, models.draft):
                model.set_attn_implementation(implementation)
                model.train(training)
            models.target.generate(**padded((4,)), max_new_tokens=4, custom_generate=models.inside)
            for model in (models.target, models.draft):
                assert model.config._attn_implementation == implementation
                assert model.training is training


@pytest.mark.parametrize("first", [[5, 9, 30, 31], [7, 14, 21, 28, 3, 4]], ids=str)
def test_weights_may_change_between_calls(first: list[int]) -> None:
    """Nothing computed with the old ones is used with the new, the adapter's own check included.

    That check, at construction, computes tokens 7, 14, 21 and so on.
    """
    target: Any = random_model("llama")
    inside = outrider.generate_with(resembling(target))
    target.generate(torch.tensor([first]), max_new_tokens=8, custom_generate=inside)
    with torch.no_grad():
        for parameter in target.parameters():
            parameter.mul_(-0.8)
    prompt = torch.tensor([[7, 14, 21, 28, 3, 4]])
    expected = target.generate(prompt, max_new_tokens=8)
    assert target.generate(prompt, max_new_tokens=8, custom_generate=inside).equal(expected)


def test_what_is_learnt_is_kept_for_the_model_that_it_is_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Any] = []

    class Noted(outrider.SpeculativeDecoder):
        def __init__(self, target: Any, *args: Any, **more: Any) -> None:
            super().__init__(target, *args, **more)
            made.append(target)

    monkeypatch.setattr("outrider.integrations.transformers_generate.SpeculativeDecoder", Noted)
    inside = outrider.generate_with(outrider.NgramDrafter())
    for model in (random_model("llama"), random_model("qwen2")):
        for _ in range(2):
            model.generate(
                **padded((4,)), max_new_tokens=3, do_sample=False, custom_generate=inside
            )
    assert len(made) == 2


def test_a_draft_of_another_width_is_refused_with_its_remedy(models: Models) -> None:
    narrow: Any = random_model("llama", vocab_size=VOCAB - 3)
    inside = outrider.generate_with(narrow)
    with pytest.raises(VocabMismatchError, match=r"ModelDrafter\(model, vocab_size="):
        models.target.generate(**padded((4,)), max_new_tokens=3, custom_generate=inside)
    aligned = outrider.ModelDrafter(outrider.TransformersModel(narrow), vocab_size=VOCAB)
    inside = outrider.generate_with(aligned)
    expected = models.target.generate(**padded((4,)), max_new_tokens=5)
    found = models.target.generate(**padded((4,)), max_new_tokens=5, custom_generate=inside)
    assert found.equal(expected)


REFUSED_CALLS: list[tuple[dict[str, Any], str]] = [
    (
        {
            "repetition_penalty": 1.2,
            "logits_processor": [tf.RepetitionPenaltyLogitsProcessor(1.3)],
        },
        "none beside repetition_penalty=1.2, whose place in the order it would take",
    ),
    (
        {"logits_processor": [tf.UnbatchedClassifierFreeGuidanceLogitsProcessor(1.5, None)]},
        "remember nothing of earlier calls",
    ),
    (
        {
            "logits_processor": [
                StatefulProcessor(tf.ClassifierFreeGuidanceLogitsProcessor(1.5), copy.copy)
            ]
        },
        "need no other row",
    ),
    (
        {
            "repetition_penalty": 1.3,
            "logits_processor": [tf.RepetitionPenaltyLogitsProcessor(1.3, prompt_ignore_length=2)],
        },
        "set repetition_penalty in the generation config",
    ),
    (
        {"eos_token_id": 4, "min_new_tokens": 3, "stopping_criteria": [tf.EosTokenCriteria(3)]},
        "the ids of eos_token_id=[4], beside min_new_tokens",
    ),
    ({"stopping_criteria": [ConfidenceCriteria(0.5)]}, "none that need scores"),
    ({"stopping_criteria": [tf.MaxTimeCriteria(9)]}, "pad_token_id=None"),
    ({"num_beams": 2}, "num_beams=2"),
    ({"forced_eos_token_id": 2}, "forced_eos_token_id=2"),
    ({"output_scores": True, "return_dict_in_generate": True}, "output_scores=True"),
    ({"position_ids": torch.tensor([[0, 0, 1, 2, 3, 4], [1, 2, 3, 4, 5, 6]])}, "position_ids"),
    ({"token_type_ids": torch.zeros(2, 6, dtype=torch.int64)}, "token_type_ids"),
    ({"attention_mask": torch.tensor([[1, 1, 1, 1, 1, 0]] * 2)}, "left padding"),
    ({"attention_mask": torch.tensor([[1, 0, 1, 1, 1, 1]] * 2)}, "left padding"),
]


@pytest.mark.parametrize(("asked", "message"), REFUSED_CALLS, ids=lambda part: str(part)[:40])
def test_what_a_call_cannot_have_is_refused(
    models: Models, asked: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before any forward; past transformers' own look at the names of what is passed."""
    inputs = {**padded((5, 6)), "max_new_tokens": 4, **asked}
    monkeypatch.setattr(type(models.target), "_validate_model_kwargs", lambda *_: None)
    forwards: list[Any] = []
    noted = functools.wraps(models.target.forward)(lambda *given: forwards.append(given))
    monkeypatch.setattr(models.target, "forward", noted)
    with pytest.raises(InvalidConfigError) as caught:
        models.target.generate(**inputs, custom_generate=models.inside)
    assert message in str(caught.value)
    assert forwards == []
