"""Translate a transformers `GenerationConfig` into sampling parameters.

What a setting asks for is done, or refused with its name; nothing is passed over. Two kinds of
settings ask for nothing here: those of caches and compilation, and those of transformers' own
assisted generation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from ..config.params import SamplingParams
from ..config.validation import integer, integers, plain, texts, token_sequences
from ..errors import InvalidConfigError, missing

with missing("transformers"):
    from transformers import GenerationConfig, NoRepeatNGramLogitsProcessor

_BEAMS = "1; beam search has no distribution of the next token that could be kept"

REFUSED: dict[str, tuple[object, str]] = {
    "num_beams": (1, _BEAMS),
    "num_beam_groups": (1, _BEAMS),
    "diversity_penalty": (0, "0; it belongs to beam search"),
    "constraints": (None, "None; they belong to beam search"),
    "force_words_ids": (None, "None; they belong to beam search"),
    "guidance_scale": (1, "1; guidance needs a second prompt, which is not supported"),
    "penalty_alpha": (0, "None; contrastive search is not supported, use top_k or min_p"),
    "dola_layers": (None, "None; only the last layer's logits are used"),
    "encoder_no_repeat_ngram_size": (0, "0; use bad_words_ids"),
    "encoder_repetition_penalty": (1, "1; use repetition_penalty"),
    "exponential_decay_length_penalty": (None, "None; use max_new_tokens"),
    "forced_bos_token_id": (None, "None; put the token into the prompt"),
    "forced_eos_token_id": (None, "None; append the token to the output"),
    "begin_suppress_tokens": (None, "None; use suppress_tokens"),
    "remove_invalid_values": (False, "False; NaN logits are an error here"),
    "watermarking_config": (None, "None; watermarks are not supported"),
    "token_healing": (False, "False; trim the prompt instead"),
    "max_time": (None, "None; close the stream of `SpeculativeDecoder.stream` when time is up"),
    "use_mtp": (False, "False; draft with a draft model"),
    "prompt_lookup_num_tokens": (None, "None; draft with outrider.NgramDrafter()"),
    "assistant_early_exit": (None, "None; draft with a draft model"),
    "assistant_ensemble_weight": (None, "None; SpeculativeConfig(verification='mixture') is alike"),
    "speculation_type": (None, "None; SpeculativeConfig says how to speculate"),
    "output_scores": (False, "False; use SamplingParams(logprobs=...)"),
    "output_logits": (False, "False; use SamplingParams(logprobs=...)"),
    "output_attentions": (False, "False; attention weights are not kept"),
    "output_hidden_states": (False, "False; hidden states are not kept"),
}
"""Settings that cannot be honoured: the value beside None that asks for nothing, and a remedy."""

REFUSED_IN_SAMPLING: dict[str, tuple[object, str]] = {
    "typical_p": (1, "1; use top_p"),
    "epsilon_cutoff": (0, "0; use min_p"),
    "eta_cutoff": (0, "0; use min_p"),
    "top_h": (None, "None; use top_p"),
}
"""Likewise; without sampling they ask for nothing."""


def from_generation_config(
    generation_config: GenerationConfig, *, prompt_length: int | None = None, **overrides: Any
) -> SamplingParams:
    """Make the sampling parameters that mean what a transformers `GenerationConfig` means.

    Settings left None mean transformers' defaults: greedy, 20 new tokens, top_k 50 when sampling,
    and the model's own end-of-sequence tokens.

    Args:
        generation_config: such as `model.generation_config`.
        prompt_length: tokens in the prompt, for a config that states `max_length` or `min_length`
            and not the number of new tokens.
        overrides: fields of `SamplingParams` to set otherwise, `seed` for instance.

    Raises:
        InvalidConfigError: a setting cannot be honoured, or has a value of the wrong type; the
            message names it and a remedy.
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
    forbidden = _read(asked, token_sequences, "bad_words_ids") or ()
    words += [word for word in forbidden if word not in [(token,) for token in eos]]
    words += [(token,) for token in _read(asked, integers, "suppress_tokens") or ()]
    penalty = asked.repetition_penalty
    fields: dict[str, Any] = {
        "temperature": 0,
        "max_tokens": 20,
        "repetition_penalty": 1.0 if penalty is None else penalty,
        "logit_bias": biases,
        "bad_words": tuple(words),
        "stop": _read(asked, texts, "stop_strings") or (),
        "stop_token_ids": eos,
        "ignore_eos": bool(eos),
        "n": _read(asked, integer, "num_return_sequences", low=1) or 1,
    }
    repeated = _read(asked, integer, "no_repeat_ngram_size", low=0)
    if repeated:
        # It forbids tokens only, so that its place among the others that do does not matter.
        fields["logits_processors"] = (NoRepeatNGramLogitsProcessor(repeated),)
    if asked.do_sample:
        _refuse(asked, REFUSED_IN_SAMPLING)
        filters = {
            name: getattr(asked, name) for name in ("temperature", "top_k", "top_p", "min_p")
        }
        known = {name: value for name, value in filters.items() if value is not None}
        fields |= {"temperature": 1.0, "top_k": 50} | known
    most = _read(asked, integer, "max_new_tokens", low=1)
    longest = _read(asked, integer, "max_length", low=0)
    if "max_tokens" in overrides:
        fields["max_tokens"] = integer("max_tokens", overrides["max_tokens"], 1)
    elif most is not None:
        fields["max_tokens"] = most
    elif longest is not None:
        fields["max_tokens"] = longest - _known("max_length", longest, prompt_length)
    least = _read(asked, integer, "min_new_tokens", low=0)
    shortest = _read(asked, integer, "min_length", low=0)
    if least is None and shortest:
        least = max(0, shortest - _known("min_length", shortest, prompt_length))
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


def _refuse(asked: Any, table: dict[str, tuple[object, str]]) -> None:
    """Refuse settings that ask for what cannot be honoured."""
    for field, (neutral, remedy) in table.items():
        value = plain(getattr(asked, field, None))
        if value is not None and value != neutral:
            raise InvalidConfigError(field, value, remedy)


def _read(asked: Any, check: Callable[..., Any], field: str, **limits: Any) -> Any:
    """Return a setting, checked; None where it is not set."""
    value = plain(getattr(asked, field))
    return None if value is None else check(field, value, **limits)


def _known(field: str, value: int, prompt_length: int | None) -> int:
    if prompt_length is None:
        raise InvalidConfigError(
            field, value, "None, or a prompt_length to count new tokens from; or max_new_tokens"
        )
    return prompt_length


def token_ids(given: Any) -> tuple[int, ...]:
    """Return an `eos_token_id` as token ids: none, one or several."""
    ids = plain(given)
    if ids is None:
        return ()
    several = ids if isinstance(ids, list | tuple) else (ids,)
    return integers("eos_token_id", several, expected="a token id, or several")


def sequence_bias(given: Any) -> dict[tuple[int, ...], float]:
    """Return a `sequence_bias`, which may be a mapping or a list of pairs, as a mapping."""
    try:
        pairs = given.items() if isinstance(given, Mapping) else given or ()
        return {tuple(plain(tokens)): float(bias) for tokens, bias in pairs}
    except (TypeError, ValueError):
        expected = "a mapping of token id sequences to numbers, or a list of such pairs"
        raise InvalidConfigError("sequence_bias", given, expected) from None


def _biases(asked: Any) -> tuple[dict[int, float], list[tuple[int, ...]]]:
    """Return the biases of single tokens, and the sequences that are forbidden."""
    biases, words = {}, []
    for tokens, bias in sequence_bias(asked.sequence_bias).items():
        integers("sequence_bias", tokens)
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
