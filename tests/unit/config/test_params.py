"""Bad values are refused where they are given, by name."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from outrider import (
    ModelDrafter,
    NgramDrafter,
    SamplingParams,
    SpeculativeConfig,
    SpeculativeDecoder,
    load,
)
from outrider.errors import (
    DegenerateDistributionError,
    DistributionWidthError,
    InvalidConfigError,
    ModelError,
)
from outrider.runtimes.tabular import TabularModel, mock_pair
from outrider.types.records import TargetScores


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("max_tokens", 0, "an integer >= 1"),
        ("max_tokens", 2.5, "an integer >= 1"),
        ("max_tokens", True, "an integer >= 1"),
        ("temperature", -0.1, "0 for greedy decoding, or a number >= 1e-6"),
        ("temperature", float("nan"), "0 for greedy decoding, or a number >= 1e-6"),
        ("temperature", float("inf"), "0 for greedy decoding, or a number >= 1e-6"),
        ("temperature", 1e-38, "0 for greedy decoding, or a number >= 1e-6"),
        ("temperature", 1e39, "0 for greedy decoding, or a number >= 1e-6, at most 1e30"),
        ("repetition_penalty", 1e-46, "a number > 0, from 1e-20 to 1e20"),
        ("repetition_penalty", 1e39, "a number > 0, from 1e-20 to 1e20"),
        ("temperature", "hot", "0 for greedy decoding, or a number >= 1e-6"),
        ("top_k", -1, "an integer >= 0"),
        ("top_p", 0, r"a number in \(0, 1\]"),
        ("top_p", 1.01, r"a number in \(0, 1\]"),
        ("min_p", -0.5, r"a number in \[0, 1\]"),
        ("min_p", 2, r"a number in \[0, 1\]"),
        ("n", 0, "an integer >= 1"),
        ("seed", -1, r"an integer in \[0, 2\*\*64\)"),
        ("seed", 2**64, r"an integer in \[0, 2\*\*64\)"),
        ("stop_token_ids", 5, "a sequence of integers"),
        ("stop_token_ids", "ab", "a sequence of integers"),
        ("stop_token_ids", [1.5], "a sequence of integers"),
        ("depths", [-1], "a sequence of integers"),
        ("ignore_eos", "no", "True or False"),
        ("ignore_eos", None, "True or False"),
    ],
)
def test_bad_sampling_parameters(field: str, value: Any, expected: str) -> None:
    with pytest.raises(
        InvalidConfigError, match=rf"{field}=.* is not allowed: expected {expected}"
    ):
        SamplingParams(**{field: value})


def test_numbers_of_other_libraries_mean_what_pythons_do() -> None:
    target, draft = mock_pair(5, 1)
    own = {"max_tokens": 5, "n": 2, "seed": 3, "temperature": 0.5, "min_p": 0.25, "logprobs": 1}
    others = {
        "max_tokens": np.int64(5),
        "n": np.int32(2),
        "seed": np.uint64(3),
        "temperature": Fraction(1, 2),
        "min_p": np.float32(0.25),
        "logprobs": np.int8(1),
    }
    given = SamplingParams(**others)
    assert {name: type(getattr(given, name)) for name in own} == {
        name: type(value) for name, value in own.items()
    }
    config = SpeculativeConfig(
        num_speculative_tokens=np.int64(2),
        cost_ratio=Fraction(1, 8),
        strict=True,
    )
    assert config == SpeculativeConfig(num_speculative_tokens=2, cost_ratio=0.125, strict=True)
    decoder = SpeculativeDecoder(target, draft, config=config)
    first, second = (decoder.generate([0], SamplingParams(**f)) for f in (own, others))
    assert [c.token_ids for c in first.choices] == [c.token_ids for c in second.choices]


class Wide:
    """A target in float32 with wide logits, above and below zero."""

    vocab_size = 4

    def verify(self, prefixes: Any, proposal: Any) -> TargetScores:
        logits = torch.tensor([1e4, -1e4, 30.0, 0.0])
        return TargetScores(logits.repeat(len(prefixes), proposal.width + 1, 1))


@pytest.mark.parametrize("temperature", [0.0, 1e-6, 1.0, 1e30])
@pytest.mark.parametrize("penalty", [1e-20, 1.0, 1e20])
def test_the_bounds_of_numbers_mean_something_in_float32(
    temperature: float, penalty: float
) -> None:
    params = SamplingParams(
        max_tokens=3,
        temperature=temperature,
        repetition_penalty=penalty,
        bad_words=((1,),),
        top_p=0.9,
    )
    assert 1 not in SpeculativeDecoder(Wide()).generate([0, 1, 2, 3], params).token_ids


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("num_speculative_tokens", -1, "an integer >= 0"),
        ("verification", "blok", "one of 'block', 'token'"),
        ("depth", "deep", "one of 'fixed'"),
        ("draft_sample_method", "beam", "one of 'probabilistic', 'greedy'"),
    ],
)
def test_bad_configurations(field: str, value: Any, expected: str) -> None:
    with pytest.raises(
        InvalidConfigError, match=rf"{field}={value!r} is not allowed: .*{expected}"
    ):
        SpeculativeConfig(**{field: value})


def test_a_long_value_is_shortened_and_its_type_named() -> None:
    message = str(InvalidConfigError("depths", list(range(100_000)), "fewer"))
    assert message == "depths=[0, 1, 2, 3, 4, 5, ...] (list) is not allowed: expected fewer"
    message = str(InvalidConfigError("prompt", [["token"] * 99] * 99, "text"))
    assert len(message) < 300
    assert "(list) is not allowed: expected text" in message
    assert "'ab' is" in str(InvalidConfigError("prompt", "ab", "more"))


def test_sequences_become_tuples_and_greedy_is_temperature_zero() -> None:
    params = SamplingParams(stop_token_ids=[3, 4], depths=[1, 0], temperature=0)
    assert params.stop_token_ids == (3, 4)
    assert params.depths == (1, 0)
    assert params.greedy
    assert hash(params) == hash(SamplingParams(stop_token_ids=(3, 4), depths=(1, 0), temperature=0))


def test_lookup_lengths() -> None:
    longest = ({"prompt_lookup_max": bad} for bad in (0, 2.5, "3", True))
    for bad in (
        *longest,
        {"prompt_lookup_min": 6},
        {"prompt_lookup_min": 0},
        {"prompt_lookup_min": 1.5},
    ):
        with pytest.raises(InvalidConfigError, match="prompt_lookup_"):
            NgramDrafter(**bad)


def test_tabular_distributions_are_checked() -> None:
    with pytest.raises(InvalidConfigError, match="vocab_size=0"):
        TabularModel(lambda _: [], 0)
    with pytest.raises(InvalidConfigError, match=r"agreement=1\.5"):
        mock_pair(3, 0, 1.5)
    with pytest.raises(DistributionWidthError, match=r"after \(1, 2\) has shape \(3,\)"):
        TabularModel(lambda _: [0.5, 0.25, 0.25], 2).probabilities((1, 2))
    for distribution in ([0.5, 0.6], [1.5, -0.5], [float("nan"), 1.0]):
        with pytest.raises(DegenerateDistributionError, match="sum to one"):
            TabularModel(lambda _, distribution=distribution: distribution, 2).probabilities(())


def test_load_refuses_what_it_cannot_load(tmp_path: Any) -> None:
    missing = tmp_path / "no" / "model"
    with pytest.raises(ModelError, match=f"there is no model at '{missing}'"):
        load(missing)
    for path in ("./nosuch", "nosuch/", "a\\nosuch", Path("nosuch")):
        with pytest.raises(ModelError, match=r"there is no model at '.*nosuch/?'"):
            load(path)
    with pytest.raises(InvalidConfigError, match="a path or a hub id"):
        load(tmp_path, "")
    with pytest.raises(ModelError, match=r"has no config\.json"):
        load(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"cannot load the tokenizer of"):
        load(tmp_path)
    with pytest.raises(InvalidConfigError, match="dtype='int8'"):
        load("demo", dtype="int8")
    with pytest.raises(InvalidConfigError, match="device='tpu9'"):
        load("demo", device="tpu9")


def test_a_draft_of_another_padded_width_is_aligned() -> None:
    narrow, wide = mock_pair(3, 0)[0], mock_pair(6, 0)[0]
    assert ModelDrafter(narrow, 5).vocab_size == 5
    assert ModelDrafter(wide, 5).vocab_size == 5


@pytest.mark.parametrize("model", [object(), TabularModel, "demo"], ids=["object", "class", "name"])
def test_what_is_no_draft_model_is_named(model: Any) -> None:
    with pytest.raises(InvalidConfigError, match=r"model='.*expected an instance of a model"):
        ModelDrafter(model)
