"""The door: prompts and parameters come in as users write them, and leave as sequence states."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..config.params import SamplingParams
from ..config.processors import forked
from ..errors import ContextLengthError, EmptyPrefixError, InvalidConfigError, TokenOutOfRangeError
from ..random import stream_key
from ..sampling.grammar import Grammar, Grammars
from ..types.protocols import Tokenizer
from ..types.records import Prefix, SequenceState

Prompt = str | Sequence[int]


@dataclass(frozen=True, slots=True)
class Limits:
    """What requests have to fit.

    Attributes:
        vocab_size: the target's.
        max_length: the shortest context of the models, None if unbounded.
        shortest: whose context that is: "target" or "draft".
        eos_token_ids: tokens that end a sequence.
        drafts: whether there is anything to draft with.
        mixes: whether a drafted token may be kept that the target would never draw.
    """

    vocab_size: int
    max_length: int | None
    shortest: str
    eos_token_ids: frozenset[int]
    drafts: bool
    mixes: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """A validated request: its prompt's tokens, its parameters, and the seed it will use.

    `stop_ids` are the tokens that end it, `grammar` says which may follow if it asks for a form,
    `prediction` is what its output is expected to be, in tokens, int64 [m].
    """

    token_ids: tuple[int, ...]
    params: SamplingParams
    seed: int
    stop_ids: frozenset[int]
    grammar: Grammar | None
    prediction: NDArray[np.int64] | None = None

    def states(self, first_id: int) -> list[SequenceState]:
        """The starting state of each of its n choices, with sequence ids from `first_id`."""
        key = stream_key(self.seed, self.token_ids)
        return [
            SequenceState(
                prefix=Prefix(first_id + choice, self.token_ids),
                prompt_length=len(self.token_ids),
                params=self.params,
                stop_ids=self.stop_ids,
                stream_key=key,
                choice=choice,
                processors=tuple(map(forked, self.params.logits_processors)),
                grammar=None if self.grammar is None else self.grammar.copy(),
                prediction=self.prediction,
            )
            for choice in range(self.params.n)
        ]


def is_single_prompt(prompts: Any) -> bool:
    """Whether this is one prompt, text or token ids, and not a list of prompts.

    An empty list is one of no prompts; an empty array is a prompt of no tokens.

    Raises:
        InvalidConfigError: it is neither.
    """
    if isinstance(prompts, str):
        return True
    try:
        if len(prompts) == 0:
            return not isinstance(prompts, Sequence)
        first: Any = prompts[0]
    except (TypeError, KeyError):
        raise InvalidConfigError(
            "prompts", prompts, "a text, a sequence of token ids, or a list of those"
        ) from None
    return not (isinstance(first, str | Sequence) or np.ndim(first) > 0)


def parse_request(
    prompt: Any, params: Any, tokenizer: Tokenizer | None, limits: Limits, grammars: Grammars
) -> Request:
    """Check one prompt and its parameters against the models' limits.

    Args:
        prompt: text or token ids.
        params: its parameters.
        tokenizer: the decoder's.
        limits: what it has to fit.
        grammars: makes its grammar, if it asks for a form.

    Raises:
        EmptyPrefixError: the prompt has no tokens.
        TokenOutOfRangeError: the prompt or a parameter has an id outside the vocabulary.
        ContextLengthError: prompt and `max_tokens` do not fit the context together.
        InvalidConfigError: the prompt is text without a tokenizer, or neither text nor ids; or no
            text has the form asked for, or none that the other parameters allow, or they forbid
            every token; or a processor cannot be copied.
    """
    if not isinstance(params, SamplingParams):
        raise InvalidConfigError("params", params, "SamplingParams, or a list with one a prompt")
    ids = _token_ids(prompt, tokenizer)
    if not ids:
        raise EmptyPrefixError(
            f"the prompt {prompt!r} has no tokens; give at least one, for instance the tokenizer's "
            "beginning-of-text token"
        )
    expected = None
    if params.prediction is not None:
        expected = _token_ids(params.prediction, tokenizer, "prediction")
        if isinstance(params.prediction, str) and tokenizer is not None:
            expected = _text_alone(expected, tokenizer)
    check_tokens(limits.vocab_size, params, prompt=ids, prediction=expected or ())
    if limits.max_length is not None and len(ids) + params.max_tokens > limits.max_length:
        room = limits.max_length - len(ids)
        remedy = f"use max_tokens <= {room}" if room > 0 else "shorten the prompt"
        raise ContextLengthError(
            f"the prompt has {len(ids)} tokens and max_tokens={params.max_tokens}; together they "
            f"exceed the {limits.shortest}'s context of {limits.max_length} tokens; {remedy}"
        )
    if params.stop and tokenizer is None:
        raise InvalidConfigError(
            "stop", params.stop, "none, because the decoder was made without a tokenizer"
        )
    if params.depths is not None and any(params.depths) and not limits.drafts:
        raise InvalidConfigError(
            "depths", params.depths, "None or zeros, because the decoder has no drafter"
        )
    stop_ids = frozenset(params.stop_token_ids)
    if not params.ignore_eos:
        stop_ids |= limits.eos_token_ids
    _check_some_left(params, stop_ids, limits.vocab_size)
    grammar = None
    if params.structured_output is not None:
        if limits.mixes:
            raise InvalidConfigError(
                "structured_output",
                params.structured_output,
                "None with verification='mixture', which keeps what the form forbids",
            )
        grammar = grammars.of(params.structured_output, stop_ids)
        _check_beginning(grammar, params, ids, stop_ids)
    _check_forks(params)
    seed = secrets.randbits(63) if params.seed is None else params.seed
    prediction = None if expected is None else np.array(expected, dtype=np.int64)
    return Request(ids, params, seed, stop_ids, grammar, prediction)


def check_tokens(vocab_size: int, params: SamplingParams, prefix: str = "", **named: Any) -> None:
    """Raise TokenOutOfRangeError if parameters name a token outside the vocabulary.

    Args:
        vocab_size: the target's V.
        params: the parameters.
        prefix: comes before their names in the message.
        named: other token ids, by name.
    """
    named |= {
        f"{prefix}stop_token_ids": params.stop_token_ids,
        f"{prefix}logit_bias": tuple(token for token, _ in params.biases),
        f"{prefix}bad_words": tuple(token for word in params.bad_words for token in word),
    }
    for name, values in named.items():
        for value in (min(values, default=0), max(values, default=0)):
            if not 0 <= value < vocab_size:
                raise TokenOutOfRangeError(
                    f"{name} has token id {value}; expected ids in 0..{vocab_size - 1}, the "
                    "target's vocabulary (is the tokenizer the model's own?)"
                )


def _check_some_left(params: SamplingParams, stop_ids: frozenset[int], vocab_size: int) -> None:
    """Refuse what forbids every token of the vocabulary."""
    banned = {word[0] for word in params.bad_words if len(word) == 1}
    if len(banned) == vocab_size:
        raise InvalidConfigError("bad_words", params.bad_words, "none that forbid every token")
    if params.min_tokens and len(banned | stop_ids) == vocab_size:
        raise InvalidConfigError(
            "min_tokens",
            params.min_tokens,
            "0, because every token ends the request or is one of bad_words",
        )


def _check_beginning(
    grammar: Grammar, params: SamplingParams, prompt: tuple[int, ...], stop_ids: frozenset[int]
) -> None:
    """Refuse what leaves a form no first token, or a choice too short."""
    allowed = grammar.first()
    before = len(prompt) + 1
    banned = {word[-1] for word in params.bad_words if prompt[before - len(word) :] == word[:-1]}
    if allowed <= banned:
        raise InvalidConfigError(
            "bad_words", params.bad_words, "none that forbid every beginning of structured_output"
        )
    if not params.min_tokens:
        return
    if allowed <= banned | stop_ids:
        raise InvalidConfigError(
            "min_tokens", params.min_tokens, "0, because structured_output can only be empty"
        )
    choices = grammar.asked.choice
    if choices is not None and max(len(text.encode()) for text in choices) < params.min_tokens:
        raise InvalidConfigError(
            "min_tokens", params.min_tokens, "no more tokens than a choice has bytes"
        )


def _check_forks(params: SamplingParams) -> None:
    """Refuse processors that cannot be copied."""
    for processor in params.logits_processors:
        try:
            forked(processor)
        except Exception as error:
            raise InvalidConfigError(
                "logits_processors",
                processor,
                f"one that can be copied ({type(error).__name__}: {error}); give "
                "StatefulProcessor a `fork` of your own",
            ) from error


def _text_alone(ids: tuple[int, ...], tokenizer: Tokenizer) -> tuple[int, ...]:
    """Token ids without those at both ends that have no text, which a tokenizer puts around it."""
    first, end = 0, len(ids)
    while first < end and not tokenizer.decode([ids[first]], skip_special_tokens=True):
        first += 1
    while end > first and not tokenizer.decode([ids[end - 1]], skip_special_tokens=True):
        end -= 1
    return ids[first:end]


def _token_ids(prompt: Any, tokenizer: Tokenizer | None, name: str = "prompt") -> tuple[int, ...]:
    if isinstance(prompt, str):
        if tokenizer is None:
            raise InvalidConfigError(
                name, prompt, "token ids, because the decoder was made without a tokenizer"
            )
        return tuple(tokenizer.encode(prompt))
    try:
        ids = np.asarray(prompt)
    except (TypeError, ValueError):
        ids = np.empty((0, 0))
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise InvalidConfigError(name, prompt, "a text or a flat sequence of integer token ids")
    return tuple(int(token) for token in ids)
