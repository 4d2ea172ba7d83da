"""What a transformers `GenerationConfig` means, as sampling parameters.

What a setting asks for is done, or refused with its name; nothing is passed over. Two kinds of
settings ask for nothing here: those of caches and compilation, and those of transformers' own
assisted generation.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor
from transformers import GenerationConfig, NoRepeatNGramLogitsProcessor

from ..config.params import SamplingParams
from ..errors import InvalidConfigError

REFUSED: dict[str, tuple[tuple[object, ...], str]] = {
    "num_beams": ((1,), "1; beam search has no distribution of the next token that could be kept"),
    "num_beam_groups": (
        (1,),
        "1; beam search has no distribution of the next token that could be kept",
    ),
    "diversity_penalty": ((0,), "0; it belongs to beam search"),
    "constraints": ((), "None; they belong to beam search"),
    "force_words_ids": ((), "None; they belong to beam search"),
    "guidance_scale": ((1,), "1; guidance needs a second prompt, which is not supported"),
    "penalty_alpha": ((0,), "None; contrastive search is not supported, use top_k or min_p"),
    "dola_layers": ((), "None; only the last layer's logits are used"),
    "encoder_no_repeat_ngram_size": ((0,), "0; use bad_words_ids"),
    "encoder_repetition_penalty": ((1,), "1; use repetition_penalty"),
    "exponential_decay_length_penalty": ((), "None; use max_new_tokens"),
    "forced_bos_token_id": ((), "None; put the token into the prompt"),
    "forced_eos_token_id": ((), "None; append the token to the output"),
    "begin_suppress_tokens": ((), "None; use suppress_tokens"),
    "remove_invalid_values": ((False,), "False; NaN logits are an error here"),
    "watermarking_config": ((), "None; watermarks are not supported"),
    "token_healing": ((False,), "False; trim the prompt instead"),
    "max_time": ((), "None; close the stream of `SpeculativeDecoder.stream` when time is up"),
    "use_mtp": ((False,), "False; draft with a draft model"),
    "prompt_lookup_num_tokens": ((), "None; draft with outrider.NgramDrafter()"),
    "assistant_early_exit": ((), "None; draft with a draft model"),
    "assistant_ensemble_weight": ((), "None; SpeculativeConfig(verification='mixture') is alike"),
    "speculation_type": ((), "None; SpeculativeConfig says how to speculate"),
    "output_scores": ((False,), "False; use SamplingParams(logprobs=...)"),
    "output_logits": ((False,), "False; use SamplingParams(logprobs=...)"),
    "output_attentions": ((False,), "False; attention weights are not kept"),
    "output_hidden_states": ((False,), "False; hidden states are not kept"),
}
"""Settings that cannot be honoured: the values beside None that ask for nothing, and a remedy."""

REFUSED_IN_SAMPLING: dict[str, tuple[tuple[object, ...], str]] = {
    "typical_p": ((1,), "1; use top_p"),
    "epsilon_cutoff": ((0,), "0; use min_p"),
    "eta_cutoff": ((0,), "0; use min_p"),
    "top_h": ((), "None; use top_p"),
}
"""Likewise; without sampling they ask for nothing."""


def from_generation_config(
    generation_config: GenerationConfig, *, prompt_length: int | None = None, **overrides: Any
) -> SamplingParams:
    """The sampling parameters that mean what a transformers `GenerationConfig` means.

    Settings left None mean transformers' defaults: greedy, 20 new tokens, top_k 50 when sampling,
    and the model's own end-of-sequence tokens.

    Args:
        generation_config: such as `model.generation_config`.
        prompt_length: tokens in the prompt, for a config that states `max_length` or `min_length`
            and not the number of new tokens.
        overrides: fields of `SamplingParams` to set otherwise, `seed` for instance.

    Raises:
        InvalidConfigError: a setting cannot be honoured; the message names it and a remedy.
    """
    if not isinstance(generation_config, GenerationConfig):
        raise InvalidConfigError(
            "generation_config", generation_config, "a transformers GenerationConfig"
        )
    asked = generation_config
    _refuse(asked, REFUSED)
    eos = token_ids(asked.eos_token_id)
    biases, words = _biases(asked)
    # A word that is an end-of-sequence token alone is left out, as transformers does.
    words += [
        tuple(word) for word in asked.bad_words_ids or () if list(word) not in [[e] for e in eos]
    ]
    words += [(token,) for token in plain(asked.suppress_tokens) or ()]
    fields: dict[str, Any] = {
        "temperature": 0,
        "max_tokens": 20,
        "repetition_penalty": _or(asked.repetition_penalty, 1.0),
        "logit_bias": biases,
        "bad_words": tuple(words),
        "stop": _or(asked.stop_strings, ()),
        "stop_token_ids": eos,
        "ignore_eos": bool(eos),
        "n": _or(asked.num_return_sequences, 1),
    }
    if asked.no_repeat_ngram_size:
        # It forbids tokens only, so that its place among the others that do does not matter.
        repeated = NoRepeatNGramLogitsProcessor(asked.no_repeat_ngram_size)
        fields["logits_processors"] = (repeated,)
    if asked.do_sample:
        _refuse(asked, REFUSED_IN_SAMPLING)
        fields |= {
            "temperature": _or(asked.temperature, 1.0),
            "top_k": _or(asked.top_k, 50),
            "top_p": _or(asked.top_p, 1.0),
            "min_p": _or(asked.min_p, 0.0),
        }
    if "max_tokens" in overrides:
        fields["max_tokens"] = overrides["max_tokens"]
    elif asked.max_new_tokens is not None:
        fields["max_tokens"] = asked.max_new_tokens
    elif asked.max_length is not None:
        fields["max_tokens"] = asked.max_length - _known(
            "max_length", asked.max_length, prompt_length
        )
    least = asked.min_new_tokens
    if least is None and asked.min_length:
        least = max(0, asked.min_length - _known("min_length", asked.min_length, prompt_length))
    if least and asked.stop_strings and "stop" not in overrides:
        raise InvalidConfigError(
            "min_new_tokens",
            least,
            "0 or None beside stop_strings: SamplingParams(min_tokens=...) holds stop strings back "
            "as well, where transformers does not",
        )
    # Beyond the most tokens there is no end to hold back.
    fields["min_tokens"] = min(least or 0, fields["max_tokens"])
    return SamplingParams(**(fields | overrides))


def _refuse(asked: Any, table: dict[str, tuple[tuple[object, ...], str]]) -> None:
    for field, (neutral, remedy) in table.items():
        value = getattr(asked, field, None)
        if value is not None and value not in neutral:
            raise InvalidConfigError(field, value, remedy)


def _known(field: str, value: int, prompt_length: int | None) -> int:
    if prompt_length is None:
        raise InvalidConfigError(
            field, value, "None, or a prompt_length to count new tokens from; or max_new_tokens"
        )
    return prompt_length


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


def token_ids(given: Any) -> tuple[int, ...]:
    """Token ids: none, one or several."""
    ids = plain(given)
    if ids is None:
        return ()
    return tuple(ids) if isinstance(ids, list | tuple) else (ids,)


def plain(value: Any) -> Any:
    """A setting's value, which may be a tensor, without the tensor."""
    return value.tolist() if isinstance(value, Tensor) else value


def sequence_bias(given: Any) -> dict[tuple[int, ...], float]:
    """A `sequence_bias`, which may be a mapping or a list of pairs, as a mapping."""
    pairs = given.items() if isinstance(given, dict) else given or ()
    return {tuple(tokens): bias for tokens, bias in pairs}


def _biases(asked: Any) -> tuple[dict[int, float], list[tuple[int, ...]]]:
    """The biases of single tokens, and the sequences that are forbidden outright."""
    biases, words = {}, []
    for tokens, bias in sequence_bias(asked.sequence_bias).items():
        if bias == -math.inf:
            words.append(tokens)
        elif len(tokens) == 1 and abs(bias) <= 100:
            biases[tokens[0]] = bias
        else:
            raise InvalidConfigError(
                "sequence_bias",
                {tokens: bias},
                "single tokens with biases in [-100, 100], or -inf to forbid a sequence",
            )
    return biases, words
