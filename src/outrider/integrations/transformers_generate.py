"""Decode speculatively inside transformers' own `model.generate`, as its `custom_generate`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor
from transformers import (
    EosTokenCriteria,
    GenerationConfig,
    MaxLengthCriteria,
    PreTrainedModel,
)
from transformers.generation import ConfidenceCriteria, GenerateDecoderOnlyOutput

from ..config.params import SamplingParams, SpeculativeConfig
from ..drafters.base import Drafter
from ..drafters.model import ModelDrafter
from ..engine.decoder import SpeculativeDecoder
from ..engine.scheduler import Scheduler
from ..errors import InvalidConfigError, UserCodeError
from ..runtimes.transformers.model import TransformersModel
from ..runtimes.transformers.support import refuse_unsupported
from .generation_config import from_generation_config, token_ids
from .given_processors import custom_processors, of_row

_SETTINGS = (MaxLengthCriteria, EosTokenCriteria)
"""Criteria that parameters cover."""

_IDLE = ("use_cache", "logits_to_keep")
"""What transformers passes to every decoding method, and asks for nothing here."""


def generate_with(
    draft_model: PreTrainedModel | Drafter | None,
    config: SpeculativeConfig | None = None,
    *,
    max_sequences: int = 8,
) -> Callable[..., Any]:
    """Make a decoding method for `model.generate(..., custom_generate=generate_with(draft_model))`.

    The generation config is honoured, or refused by name. A `MaxLengthCriteria` or
    `EosTokenCriteria` of the caller's own takes the place of its setting. The other criteria are
    asked after every token, for each row by itself, with `scores` None; where there are logits
    processors of the caller's own, after drafted tokens as well, since none of these is called
    behind a stop. They are called for each row and each drafted position by itself, in
    transformers' order; one that remembers earlier calls comes as `StatefulProcessor(processor)`,
    called with [1, L] and [1, V] like the others, since drafts that are refused are seen as well.
    Rows that have ended are padded. What sampling draws follows from `torch.manual_seed`.
    transformers itself drops a `streamer`, `assistant_model` or `tokenizer`; stop strings are
    passed as a `StopStringCriteria`.

    The models' caches are kept from call to call, not what is in them, so that weights may change
    in between. The models themselves are left as they are.

    Args:
        draft_model: a transformers model of the target's vocabulary, or any drafter, such as
            `NgramDrafter()`; None decodes plainly. Where only the padding of the vocabularies
            differs, `ModelDrafter(TransformersModel(draft), vocab_size=...)` aligns them.
        config: how speculation is done.
        max_sequences: how many rows are decoded together; the others wait.

    Returns:
        A function that transformers calls. It returns int64 [B * n, L], prompts and new tokens, or
        a `GenerateDecoderOnlyOutput` with these `sequences` and nothing else: `past_key_values` and
        its other fields are None.

    Raises:
        VocabMismatchError: (the function) the draft's vocabulary is of another size.
        InvalidConfigError: (the function) a setting, a logits processor, a stopping criterion or an
            input cannot be honoured.
        ModelError: (the function) a model cannot be decoded speculatively: an encoder-decoder.
        UserCodeError: (the function) a logits processor or stopping criterion failed.
    """
    decoder_of = _decoders(draft_model, config or SpeculativeConfig(), max_sequences)

    def decode(
        model: PreTrainedModel,
        input_ids: Tensor,
        logits_processor: Sequence[Any],
        stopping_criteria: Sequence[Any],
        generation_config: GenerationConfig,
        **model_kwargs: Any,
    ) -> Tensor | GenerateDecoderOnlyOutput:
        refuse_unsupported(model)  # Before the inputs that such a model comes with.
        asked = copy.copy(generation_config)
        # These come as stopping criteria, too.
        asked.max_time = asked.stop_strings = None
        # This one comes as a logits processor.
        asked.no_repeat_ngram_size = None
        params = _params(asked, stopping_criteria, input_ids.shape[1])
        custom = custom_processors(logits_processor, asked)
        criteria = [each for each in stopping_criteria if type(each) not in _SETTINGS]
        prompts = _prompts(input_ids, **model_kwargs)
        padding = [asked.pad_token_id, *params.stop_token_ids, None]
        pad = next((token for token in padding if token is not None), None)
        if pad is None and criteria and len(prompts) > 1:
            raise InvalidConfigError(
                "pad_token_id", None, "a token id, because rows may end at different lengths"
            )
        outputs = _decoded(decoder_of(model), input_ids, prompts, params, criteria, custom)
        width = max(map(len, outputs))
        rows = [[*tokens, *[pad] * (width - len(tokens))] for tokens in outputs]
        sequences = torch.cat([input_ids, input_ids.new_tensor(rows)], 1)
        if asked.return_dict_in_generate:
            return GenerateDecoderOnlyOutput(sequences=sequences)
        return sequences

    return decode


def _decoders(
    draft: PreTrainedModel | Drafter | None, config: SpeculativeConfig, max_sequences: int
) -> Callable[[PreTrainedModel], SpeculativeDecoder]:
    """Keep the decoder of the last model, with what it has learnt of costs and acceptance."""

    @lru_cache(maxsize=1)
    def made(*parts: Any) -> tuple[SpeculativeDecoder, list[TransformersModel]]:
        """Make a decoder; `parts` are its models, each with its device and its dtype."""
        runtimes = [TransformersModel(own, max_sequences=max_sequences) for own in parts[::3]]
        drafter = ModelDrafter(runtimes[1]) if len(runtimes) > 1 else draft
        return SpeculativeDecoder(runtimes[0], drafter, config=config), runtimes

    def decoder_of(model: PreTrainedModel) -> SpeculativeDecoder:
        """Return a model's decoder, with nothing left in its cache of earlier calls."""
        models = [model, draft] if isinstance(draft, PreTrainedModel) else [model]
        decoder, runtimes = made(*(part for own in models for part in (own, own.device, own.dtype)))
        for runtime in runtimes:
            runtime.reset()
        return decoder

    return decoder_of


def _decoded(
    decoder: SpeculativeDecoder,
    input_ids: Tensor,
    prompts: list[list[int]],
    params: SamplingParams,
    criteria: list[Any],
    processors: list[Any],
) -> list[list[int]]:
    """Return the new tokens of each row, decoded to its end.

    `prompts` are the rows of `input_ids`, int64 [B, L], without padding. Those that sample are
    given a seed from torch's generator. The parameters do not cover the criteria and processors.
    """
    seeds: list[int | None] = [None] * len(prompts)
    if not params.greedy:
        seeds = torch.randint(2**63 - 1, (len(prompts),)).tolist()
    outputs: list[list[int]] = [[] for _ in prompts]

    def ended(row: int, history: Tensor) -> bool:
        """Whether a criterion ends a row after a token of [L] behind its output so far."""
        first = input_ids.shape[1] + len(outputs[row]) + 1
        lengths = range(first, len(history) + 1)
        return any(_met(ends, row, history[:length]) for length in lengths for ends in criteria)

    row_of = {}
    states = []
    for row, (prompt, seed) in enumerate(zip(prompts, seeds, strict=True)):
        padding = input_ids[row, : input_ids.shape[1] - len(prompt)]
        own = tuple(of_row(each, row, padding, partial(ended, row)) for each in processors)
        (state,) = decoder.start(prompt, replace(params, seed=seed, logits_processors=own))
        states.append(state)
        row_of[state.prefix.sequence_id] = row
    with Scheduler(decoder, discard=True) as scheduler:
        scheduler.submit(states)
        while (step := scheduler.step()) is not None:
            for state, tokens in zip(step.batch.states, step.emitted, strict=True):
                row = row_of[state.prefix.sequence_id]
                for token in tokens:
                    new = input_ids.new_tensor([*outputs[row], token])
                    ends = ended(row, torch.cat([input_ids[row], new]))
                    outputs[row].append(token)
                    if ends:
                        scheduler.cancel(state.prefix.sequence_id)
                        break
    return outputs


def _met(criterion: Any, row: int, history: Tensor) -> bool:
    """Ask a criterion of the caller's own whether a row ends with a history [L].

    Raises:
        UserCodeError: it raised.
    """
    try:
        return bool(torch.as_tensor(criterion(history[None], None)).all())
    except Exception as error:
        raise UserCodeError(
            f"the stopping criterion {type(criterion).__name__} failed on row {row}, after "
            f"{len(history)} tokens: {type(error).__name__}: {error}"
        ) from error


def _params(asked: GenerationConfig, criteria: Sequence[Any], length: int) -> SamplingParams:
    """Return the parameters that settings and criteria ask for, of prompts of some length.

    transformers makes criteria of settings, and drops those for a caller's own of the same type.

    Raises:
        InvalidConfigError: a criterion cannot be honoured beside the settings.
    """
    longest = [each.max_length for each in criteria if type(each) is MaxLengthCriteria]
    if longest:
        # Criteria are asked after a token, so that one comes in any case.
        asked.max_new_tokens = max(1, min(longest) - length)
    known = token_ids(asked.eos_token_id)
    given = [each.eos_token_id.tolist() for each in criteria if type(each) is EosTokenCriteria]
    eos = tuple(dict.fromkeys(token for ids in given for token in ids))
    eos = known if set(eos) == set(known) else eos
    params = from_generation_config(
        asked, prompt_length=length, n=1, ignore_eos=True, stop_token_ids=eos
    )
    if params.min_tokens and eos != known:
        expected = f"the ids of eos_token_id={list(known)}, beside min_new_tokens or min_length"
        raise InvalidConfigError("stopping_criteria", f"EosTokenCriteria({list(eos)})", expected)
    if any(type(each) is ConfidenceCriteria for each in criteria):
        raise InvalidConfigError("stopping_criteria", "ConfidenceCriteria", "none that need scores")
    return params


def _prompts(
    input_ids: Tensor,
    *,
    attention_mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    past_key_values: Any = None,
    cache: Any = None,
    **others: Any,
) -> list[list[int]]:
    """Return the rows of [B, L] without the padding on their left.

    Raises:
        InvalidConfigError: padding elsewhere, other positions, a filled cache, or inputs beside
            tokens.
    """
    for name, value in others.items():
        if value is not None and name not in _IDLE:
            raise InvalidConfigError(name, type(value).__name__, "None; only token ids are read")
    for name, given in (("past_key_values", past_key_values), ("cache", cache)):
        if given is not None and given.get_seq_length() > 0:
            raise InvalidConfigError(name, "a filled cache", "None, or an empty cache")
    columns = torch.arange(input_ids.shape[1], device=input_ids.device)
    mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
    real = mask.to(input_ids.device) != 0
    starts = real.int().argmax(1)
    if not real.equal(columns >= starts[:, None]):
        raise InvalidConfigError(
            "attention_mask", mask.tolist(), "rows of zeros, then ones to the end: left padding"
        )
    if position_ids is not None:
        expected = (columns - starts[:, None]).clamp(min=0)
        given = position_ids.to(input_ids.device)
        if given.ndim != 2 or not ((given == expected) | ~real).all():
            raise InvalidConfigError(
                "position_ids", given.tolist(), "None, or each row's tokens counted from 0"
            )
    return [row[keep].tolist() for row, keep in zip(input_ids, real, strict=True)]
