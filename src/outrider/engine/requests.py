"""Validate prompts and parameters as users write them, and make sequence states of them."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..config.params import SamplingParams
from ..config.processors import forked
from ..config.validation import integers, plain, text
from ..errors import (
    ContextLengthError,
    EmptyPrefixError,
    InvalidConfigError,
    TokenOutOfRangeError,
    UserCodeError,
)
from ..random import stream_key
from ..runtimes.base import Capabilities
from ..sampling.grammar import Grammar, Grammars
from ..types.protocols import Tokenizer, special_tokens
from ..types.records import Prefix, SequenceState

Prompt = str | Sequence[int]
"""A text, or token ids; also what a tokenizer returns of one text."""

_EMPTY = Prefix(0, ())
_SEARCHED = 256
"""The most beginnings of texts that are looked at for one that can be whole."""


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

    def states(self, sequence_ids: Sequence[int]) -> list[SequenceState]:
        """Return the starting state of each of its n choices, under these n sequence ids."""
        key = stream_key(self.seed, self.token_ids)
        return [
            SequenceState(
                prefix=Prefix(sequence_id, self.token_ids),
                prompt_length=len(self.token_ids),
                params=self.params,
                stop_ids=self.stop_ids,
                stream_key=key,
                choice=choice,
                processors=tuple(map(forked, self.params.logits_processors)),
                grammar=None if self.grammar is None else self.grammar.copy(len(self.token_ids)),
                prediction=self.prediction,
            )
            for choice, sequence_id in enumerate(sequence_ids)
        ]


def split_prompts(prompts: Any) -> tuple[list[Any], bool]:
    """Split what a user gives into prompts.

    A list holds a prompt each, and so do the rows of what a tokenizer returns of several texts, or
    of an array [1, L]. Padding is left out where an `attention_mask` says so. An array of several
    rows without one is refused: its padding would be taken for text.

    Args:
        prompts: one prompt, or several.

    Returns:
        The prompts, each a text or token ids, and whether it was one alone.

    Raises:
        InvalidConfigError: it is neither.
    """
    given = _unpadded("prompts", prompts) if isinstance(prompts, Mapping) else prompts
    if isinstance(given, str):
        return [given], True
    listed = plain(given)
    if not isinstance(listed, Sequence):
        raise InvalidConfigError(
            "prompts", prompts, "a text, a sequence of token ids, or a list of those"
        )
    if not listed:
        return ([], False) if listed is given else ([listed], True)
    first: Any = listed[0]
    if not isinstance(first, str | Mapping | Sequence) and np.ndim(first) == 0:
        return [listed], True
    if listed is not given and len(listed) > 1 and not isinstance(first, str):
        raise InvalidConfigError(
            "prompts",
            prompts,
            "a list of prompts, or all that the tokenizer returned, whose attention_mask says "
            "which tokens are padding",
            given=f"prompts are an array of {len(listed)} rows, which may be padded",
        )
    return list(listed), False


def parse_request(
    prompt: Any,
    params: Any,
    tokenizer: Tokenizer | None,
    target: Capabilities,
    grammars: Grammars,
    *,
    drafts: bool,
    mixes: bool = False,
) -> Request:
    """Check one prompt and its parameters against what the target can do.

    Args:
        prompt: text, token ids, or what a tokenizer returned of one text.
        params: its parameters.
        tokenizer: the decoder's.
        target: what it has to fit.
        grammars: makes its grammar, if it asks for a form.
        drafts: whether there is anything to draft with.
        mixes: whether a drafted token may be kept that the target would never draw.

    Raises:
        EmptyPrefixError: the prompt has no tokens.
        TokenOutOfRangeError: the prompt or a parameter has an id outside the vocabulary.
        ContextLengthError: prompt and `max_tokens` do not fit the target's context together.
        InvalidConfigError: the prompt is text without a tokenizer, or neither text nor ids; or no
            text has the form asked for, or none that the other parameters allow, or they forbid
            every token; or a processor cannot be copied.
    """
    if not isinstance(params, SamplingParams):
        raise InvalidConfigError("params", params, "SamplingParams, or a list with one a prompt")
    ids = token_ids(prompt, tokenizer)
    if not ids:
        raise EmptyPrefixError(
            f"the prompt {prompt!r} has no tokens; give at least one, for instance the tokenizer's "
            "beginning-of-text token",
            field="prompt",
        )
    expected = None
    if params.prediction is not None:
        expected = token_ids(params.prediction, tokenizer, "prediction")
        if isinstance(params.prediction, str) and tokenizer is not None:
            expected = _text_alone(expected, tokenizer)
    check_tokens(target.vocab_size, params, prompt=ids, prediction=expected or ())
    if target.max_length is not None and len(ids) + params.max_tokens > target.max_length:
        room = target.max_length - len(ids)
        remedy = f"use max_tokens <= {room}" if room > 0 else "shorten the prompt"
        raise ContextLengthError(
            f"the prompt has {len(ids)} tokens and max_tokens={params.max_tokens}; together they "
            f"exceed the target's context of {target.max_length} tokens; {remedy}",
            field="max_tokens" if room > 0 else "prompt",
        )
    if params.depths is not None and any(params.depths) and not drafts:
        raise InvalidConfigError(
            "depths", params.depths, "None or zeros, because the decoder has no drafter"
        )
    stop_ids = frozenset(params.stop_token_ids) | _named_by_stops(
        params.stop, tokenizer, target.vocab_size
    )
    if not params.ignore_eos:
        stop_ids |= target.eos_token_ids
    _check_some_left(params, stop_ids, target.vocab_size)
    grammar = None
    if params.structured_output is not None:
        if mixes:
            raise InvalidConfigError(
                "structured_output",
                params.structured_output,
                "None with verification='mixture', which keeps what the form forbids",
            )
        grammar = grammars.of(params.structured_output, stop_ids)
        _check_form(grammar, params, ids, stop_ids)
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
        f"{prefix}allowed_token_ids": params.allowed_token_ids or (),
        f"{prefix}bad_words": tuple(token for word in params.bad_words for token in word),
    }
    for name, values in named.items():
        for value in (min(values, default=0), max(values, default=0)):
            if not 0 <= value < vocab_size:
                raise TokenOutOfRangeError(
                    f"{name} has token id {value}; expected ids in 0..{vocab_size - 1}, the "
                    "target's vocabulary (is the tokenizer the model's own?)",
                    field=name,
                )


def _named_by_stops(
    stops: tuple[str, ...], tokenizer: Tokenizer | None, vocab_size: int
) -> frozenset[int]:
    """Return the special tokens that are stop strings: they are not in the text.

    Raises:
        InvalidConfigError: there is no tokenizer, or such a token is a part of a stop string.
    """
    if stops and tokenizer is None:
        raise InvalidConfigError(
            "stop", stops, "none, because the decoder was made without a tokenizer"
        )
    specials = special_tokens(tokenizer) if stops else {}
    names = frozenset(filter(None, specials.values()))
    for stop in stops:
        within = [name for name in names if name in stop]
        if within and stop not in names:
            expected = f"the special token {within[0]!r} alone, or text without it"
            raise InvalidConfigError("stop", stop, f"{expected}: no text has special tokens in it")
    return frozenset(t for t, name in specials.items() if name in stops and t < vocab_size)


def _check_some_left(params: SamplingParams, stop_ids: frozenset[int], vocab_size: int) -> None:
    """Refuse what forbids every token of the vocabulary."""
    banned = {word[0] for word in params.bad_words if len(word) == 1}
    only = params.allowed_token_ids
    allowed = range(vocab_size) if only is None else only
    if banned.issuperset(allowed):
        expected = "none that forbid every token" + (" of allowed_token_ids" if only else "")
        raise InvalidConfigError("bad_words", params.bad_words, expected)
    if params.min_tokens and (banned | stop_ids).issuperset(allowed):
        raise InvalidConfigError(
            "min_tokens",
            params.min_tokens,
            "0, because every token ends the request, or is forbidden by bad_words or "
            "allowed_token_ids",
        )


def _check_form(
    grammar: Grammar, params: SamplingParams, prompt: tuple[int, ...], stop_ids: frozenset[int]
) -> None:
    """Refuse what leaves a form no text, as far as a search shows, or a choice too short."""
    only, words = params.allowed_token_ids, params.bad_words
    expected = "some that leave structured_output a text"
    allowed = partial(_tokens_after, grammar, prompt, only, ())
    if only and not _leads_on(grammar, allowed, params, stop_ids):
        raise InvalidConfigError("allowed_token_ids", only, expected)
    left = partial(_tokens_after, grammar, prompt, only, words)
    if words and not _leads_on(grammar, left, params, stop_ids):
        raise InvalidConfigError("bad_words", words, expected)
    if not params.min_tokens:
        return
    if left(()) <= stop_ids:
        raise InvalidConfigError(
            "min_tokens", params.min_tokens, "0, because structured_output can only be empty"
        )
    choices = grammar.asked.choice
    if choices is not None and max(len(text.encode()) for text in choices) < params.min_tokens:
        raise InvalidConfigError(
            "min_tokens", params.min_tokens, "no more tokens than a choice has bytes"
        )


def _leads_on(
    grammar: Grammar,
    after: Callable[[tuple[int, ...]], frozenset[int]],
    params: SamplingParams,
    stop_ids: frozenset[int],
) -> bool:
    """Return whether a request with a form can come to an end, or too much would be searched."""
    paths: list[tuple[int, ...]] = [()]
    left = _SEARCHED
    while 0 < len(paths) <= left:
        left -= 1
        path = paths.pop()
        over = len(path) == params.max_tokens or grammar.over(_EMPTY, path)
        if over or (path and params.stop):
            return True
        tokens = after(path)
        if tokens & stop_ids:
            return True
        paths += [(*path, token) for token in tokens]
    return bool(paths)


def _tokens_after(
    grammar: Grammar,
    prompt: tuple[int, ...],
    only: tuple[int, ...] | None,
    words: tuple[tuple[int, ...], ...],
    path: tuple[int, ...],
) -> frozenset[int]:
    """Return the tokens that may follow a path by a form, `allowed_token_ids` and `bad_words`."""
    mask = grammar.mask(_EMPTY, path)
    assert mask is not None, "the path was allowed"
    tokens = frozenset(np.flatnonzero(np.unpackbits(mask, bitorder="little")).tolist())
    before = prompt + path
    banned = {word[-1] for word in words if before[len(before) + 1 - len(word) :] == word[:-1]}
    return (tokens if only is None else tokens.intersection(only)) - banned


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


def banned(field: str, words: Sequence[str], tokenizer: Any) -> tuple[tuple[int, ...], ...]:
    """Return `bad_words` of texts: the tokens of each, as it is and after a space.

    Raises:
        InvalidConfigError: there is no tokenizer, or it makes no tokens of one; `field` is named.
    """
    if words and tokenizer is None:
        expected = "none, because the decoder was made without a tokenizer"
        raise InvalidConfigError(field, words, expected)
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        for spelled in (text(field, word), " " + word.lstrip(" ")):
            ids = tuple(tokenizer.encode(spelled, add_special_tokens=False))
            if not ids or not word.strip(" "):
                raise InvalidConfigError(field, word, "a text that has tokens")
            found[ids] = None
    return tuple(found)


def _text_alone(ids: tuple[int, ...], tokenizer: Tokenizer) -> tuple[int, ...]:
    """Drop the token ids at both ends that have no text, which a tokenizer puts around it."""
    first, end = 0, len(ids)
    while first < end and not tokenizer.decode([ids[first]], skip_special_tokens=True):
        first += 1
    while end > first and not tokenizer.decode([ids[end - 1]], skip_special_tokens=True):
        end -= 1
    return ids[first:end]


def token_ids(prompt: Any, tokenizer: Tokenizer | None, name: str = "prompt") -> tuple[int, ...]:
    """Return the token ids of a prompt: of a text, a sequence of ids, or a tokenizer's result.

    A text that begins with the beginning-of-text token, as chat templates write it, gets no second
    one from the tokenizer.

    Args:
        prompt: the prompt.
        tokenizer: the decoder's.
        name: what the message calls it.

    Raises:
        InvalidConfigError: it is none of these, or text without a tokenizer, or no text that UTF-8
            can write.
        UserCodeError: the tokenizer raised.
    """
    if not isinstance(prompt, str):
        found = _unpadded(name, prompt) if isinstance(prompt, Mapping) else plain(prompt)
        one_row = isinstance(found, Sequence) and len(found) == 1 and np.ndim(found[0]) > 0
        expected = "a text, a flat sequence of integer token ids, or a tokenizer's result of one"
        return integers(name, found[0] if one_row else found, -math.inf, expected)
    if tokenizer is None:
        raise InvalidConfigError(
            name, prompt, "token ids, because the decoder was made without a tokenizer"
        )
    written = text(name, prompt)
    try:
        ids = tuple(tokenizer.encode(written))
    except Exception as error:
        failed = f"the tokenizer failed on the {name}: {type(error).__name__}: {error}"
        raise UserCodeError(failed) from error
    first = getattr(tokenizer, "bos_token", None)
    twice = ids[:2] == (getattr(tokenizer, "bos_token_id", None),) * 2
    return ids[1:] if twice and first and prompt.startswith(first) else ids


def _unpadded(name: str, encoding: Mapping[str, Any]) -> Any:
    """Return a tokenizer's input_ids, without what its attention_mask leaves out."""
    try:
        ids, mask = encoding["input_ids"], plain(encoding.get("attention_mask"))
        if mask is None:
            return ids
        ids = plain(ids)
        if ids and np.ndim(ids[0]) > 0:
            return [_kept(*both) for both in zip(ids, mask, strict=True)]
        return _kept(ids, mask)
    except (KeyError, TypeError, ValueError):
        expected = "input_ids and an attention_mask of the same shape, as a tokenizer returns them"
        raise InvalidConfigError(name, list(encoding), expected) from None


def _kept(ids: Any, mask: Any) -> list[Any]:
    return [token for token, real in zip(plain(ids), plain(mask), strict=True) if real]
