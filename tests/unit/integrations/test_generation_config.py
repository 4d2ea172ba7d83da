"""What a transformers `GenerationConfig` asks for is done, or refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as tf
from transformers import GenerationConfig

import outrider
from outrider import SamplingParams
from outrider.errors import InvalidConfigError
from outrider.integrations.generation_config import REFUSED, REFUSED_IN_SAMPLING


def test_every_setting_is_mapped() -> None:
    config = GenerationConfig(
        do_sample=True,
        max_length=40,
        min_length=13,
        temperature=0.7,
        top_k=9,
        top_p=0.8,
        min_p=0.1,
        repetition_penalty=1.2,
        bad_words_ids=[[1], [2, 3], [6]],
        sequence_bias={(4,): 1.5, (5, 6): float("-inf")},
        suppress_tokens=[8],
        eos_token_id=[6, 7],
        num_return_sequences=2,
    )
    assert outrider.from_generation_config(config, prompt_length=10, seed=3) == SamplingParams(
        max_tokens=30,
        min_tokens=3,
        temperature=0.7,
        top_k=9,
        top_p=0.8,
        min_p=0.1,
        repetition_penalty=1.2,
        bad_words=((5, 6), (1,), (2, 3), (8,)),
        logit_bias={4: 1.5},
        stop_token_ids=(6, 7),
        ignore_eos=True,
        n=2,
        seed=3,
    )


def test_unset_means_transformers_defaults() -> None:
    plain = outrider.from_generation_config(GenerationConfig())
    assert plain == SamplingParams(max_tokens=20, temperature=0)
    sampled = outrider.from_generation_config(GenerationConfig(do_sample=True))
    assert sampled == SamplingParams(max_tokens=20, top_k=50)
    defaults = GenerationConfig._get_default_generation_params()
    assert (defaults["max_length"], defaults["top_k"], defaults["do_sample"]) == (20, 50, False)


def test_repeated_ngrams_are_a_processor() -> None:
    asked = outrider.from_generation_config(GenerationConfig(no_repeat_ngram_size=3))
    (processor,) = asked.logits_processors
    assert type(processor) is tf.NoRepeatNGramLogitsProcessor
    assert processor.ngram_size == 3


def test_overrides_and_lengths() -> None:
    config = GenerationConfig(max_length=9, max_new_tokens=5, min_new_tokens=8, stop_strings="x")
    asked = outrider.from_generation_config(config, stop=("y",))
    assert (asked.max_tokens, asked.min_tokens, asked.stop) == (5, 5, ("y",))
    longer = outrider.from_generation_config(GenerationConfig(max_length=9), max_tokens=7)
    assert longer.max_tokens == 7


REFUSED_CONFIGS: list[tuple[dict[str, Any], str]] = [
    ({"max_length": 9}, "max_length"),
    ({"min_length": 9, "max_new_tokens": 20}, "min_length"),
    ({"min_new_tokens": 2, "stop_strings": ["x"]}, "min_new_tokens"),
    ({"sequence_bias": {(1, 2): 1.0}}, "sequence_bias"),
    ({"sequence_bias": {(1,): 101.0}}, "sequence_bias"),
    ({"num_beams": 3}, "num_beams"),
    ({"guidance_scale": 1.5}, "guidance_scale"),
    ({"penalty_alpha": 0.5}, "penalty_alpha"),
    ({"max_time": 2.0}, "max_time"),
    ({"encoder_repetition_penalty": 1.1}, "encoder_repetition_penalty"),
    ({"encoder_no_repeat_ngram_size": 2}, "encoder_no_repeat_ngram_size"),
    ({"do_sample": True, "typical_p": 0.9}, "typical_p"),
    ({"do_sample": True, "epsilon_cutoff": 0.1}, "epsilon_cutoff"),
    ({"do_sample": True, "eta_cutoff": 0.1}, "eta_cutoff"),
    ({"do_sample": True, "top_h": 0.5}, "top_h"),
    ({"forced_eos_token_id": 3}, "forced_eos_token_id"),
    ({"begin_suppress_tokens": [3]}, "begin_suppress_tokens"),
    ({"watermarking_config": {"bias": 2.0}}, "watermarking_config"),
    ({"do_sample": True, "temperature": 1e-9}, "temperature"),
]


@pytest.mark.parametrize(("asked", "field"), REFUSED_CONFIGS, ids=str)
def test_what_cannot_be_honoured_is_named(asked: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        outrider.from_generation_config(GenerationConfig(**asked))
    assert caught.value.field == field


def test_no_setting_of_transformers_is_undecided() -> None:
    """A setting that a later transformers adds has to be mapped, refused, or named here."""
    mapped = """max_length max_new_tokens min_length min_new_tokens stop_strings do_sample
        temperature top_k top_p min_p repetition_penalty bad_words_ids suppress_tokens
        no_repeat_ngram_size sequence_bias num_return_sequences eos_token_id pad_token_id
        return_dict_in_generate"""
    # Of caches, of compilation, of assistants, of beams, of prompts that generate makes itself,
    # and renormalisation, which changes no distribution.
    nothing = """use_cache cache_implementation cache_config max_cache_len compile_config
        disable_compile prefill_chunk_size low_memory continuous_batching_config is_assistant
        num_assistant_tokens num_assistant_tokens_schedule assistant_confidence_threshold
        max_matching_ngram_size assistant_lookbehind target_lookbehind early_stopping
        length_penalty bos_token_id decoder_start_token_id renormalize_logits
        transformers_version"""
    decided = {*mapped.split(), *nothing.split(), *REFUSED, *REFUSED_IN_SAMPLING}
    fields = {name for name in vars(GenerationConfig()) if not name.startswith("_")}
    assert fields <= decided, fields - decided


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("bad_words_ids", -1),
        ("bad_words_ids", [3]),
        ("bad_words_ids", "no"),
        ("sequence_bias", True),
        ("sequence_bias", [1, 2]),
        ("sequence_bias", {("a",): 1.0}),
        ("suppress_tokens", 5),
        ("eos_token_id", "end"),
        ("eos_token_id", [1.5]),
        ("min_length", "a"),
        ("min_new_tokens", -1),
        ("max_length", "long"),
        ("max_new_tokens", 0),
        ("max_new_tokens", 2.5),
        ("stop_strings", 5),
        ("stop_strings", "\ud800"),
        ("num_return_sequences", 0),
        ("no_repeat_ngram_size", "3"),
        ("repetition_penalty", "big"),
    ],
)
def test_a_malformed_setting_is_named(field: str, value: Any) -> None:
    config = GenerationConfig()
    setattr(config, field, value)
    with pytest.raises(InvalidConfigError, match=f"{field}=") as caught:
        outrider.from_generation_config(config, prompt_length=2)
    assert caught.value.field == field


def test_settings_may_be_tensors() -> None:
    config = GenerationConfig()
    config.eos_token_id, config.suppress_tokens = torch.tensor(3), torch.tensor([4, 5])
    asked = outrider.from_generation_config(config)
    assert (asked.stop_token_ids, asked.bad_words) == ((3,), ((4,), (5,)))
