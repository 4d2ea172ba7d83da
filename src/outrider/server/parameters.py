"""From a body to the parameters of a request."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..config.params import SamplingParams
from ..config.structured import StructuredOutput
from ..engine.requests import banned
from ..errors import InvalidConfigError
from .fields import checked
from .schema import (
    ChatBody,
    Common,
    CompletionBody,
    NamedSchema,
    ResponseFormat,
    Structured,
    joined,
)

_COMPLETION_TOKENS = 16
"""What /v1/completions emits at most where nothing is said, as OpenAI has it."""

_AS_THEY_ARE = (
    *("temperature", "top_p", "top_k", "min_p", "n", "seed", "ignore_eos", "min_tokens", "stop"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "stop_token_ids"),
    *("allowed_token_ids", "include_stop_str_in_output", "logit_bias"),
)

_OF_SCHEMAS = frozenset(
    ("type", "properties", "items", "enum", "const", "anyOf", "oneOf", "allOf", "$ref", "$defs")
)
"""Keywords by which a JSON schema is known."""


def sampling_params(body: Common, room: int | None, tokenizer: Any) -> SamplingParams:
    """Make the parameters that a body asks for.

    Args:
        body: of a request.
        room: tokens that the context has room for; None if there is no end of it.
        tokenizer: of the model.

    Raises:
        InvalidConfigError: a value is not allowed.
    """
    _check(body)
    given: dict[str, Any] = {
        name: value for name in _AS_THEY_ARE if (value := getattr(body, name)) is not None
    }
    if body.bad_words is not None:
        words = [word for word in body.bad_words if isinstance(word, str)]
        ids = [tuple(word) for word in body.bad_words if not isinstance(word, str)]
        given["bad_words"] = (*ids, *banned("bad_words", words, tokenizer))
    if body.prediction is not None:
        given["prediction"] = joined(body.prediction.content)
    return SamplingParams(
        **given,
        max_tokens=_most_tokens(body, room),
        structured_output=_form(body),
        logprobs=body.top,
    )


@contextmanager
def named_as_asked(body: Common) -> Iterator[None]:
    """Name the form of a text in errors as the body does, and not as the library."""
    try:
        yield
    except InvalidConfigError as error:
        before, _, kind = error.field.partition(".")
        if before != "structured_output" or not kind:
            raise
        short = "json" if kind == "json_schema" else kind
        named = f"guided_{short}"
        if body.structured_outputs is not None:
            named = f"structured_outputs.{short}"
        elif body.response_format is not None and getattr(body, named) is None:
            named = "response_format"
        renamed = copy.copy(error)
        renamed.field, renamed.args = named, (str(error).replace(error.field, named),)
        raise renamed from None


def _check(body: Common) -> None:
    """Refuse fields that do not go together."""
    if isinstance(body, CompletionBody) and body.best_of not in (None, body.n or 1):
        raise InvalidConfigError("best_of", body.best_of, "n, or none: nothing is ranked")
    if isinstance(body, ChatBody) and body.top_logprobs and not body.logprobs:
        raise InvalidConfigError("top_logprobs", body.top_logprobs, "logprobs: true beside it")


def _most_tokens(body: Common, room: int | None) -> int:
    """Return how many tokens are emitted at most: no more than the context has room for."""
    chats = isinstance(body, ChatBody)
    name, asked = "max_tokens", body.max_tokens
    if isinstance(body, ChatBody) and body.max_completion_tokens is not None:
        if asked not in (None, body.max_completion_tokens):
            raise InvalidConfigError(name, asked, "the same as max_completion_tokens, or none")
        name, asked = "max_completion_tokens", body.max_completion_tokens
    end = 2**20 if room is None else room
    if asked is None:
        return end if chats else min(end, _COMPLETION_TOKENS)
    if asked < 1 and asked != -1:
        expected = "an integer >= 1, or -1 for all that the context has room for"
        raise InvalidConfigError(name, asked, expected)
    return end if asked == -1 else asked if room is None else min(asked, room)


def _form(body: Common) -> StructuredOutput | None:
    """Find the form that a body asks for, under any of its names."""
    found: dict[str, StructuredOutput] = {}
    asked = body.response_format
    schema = None if asked is None else _schema(asked)
    if schema is not None:
        found["response_format"] = StructuredOutput(json_schema=schema)
    guided = Structured(
        json=body.guided_json,
        regex=body.guided_regex,
        choice=body.guided_choice,
        grammar=body.guided_grammar,
    )
    if any(value is not None for value in guided.model_dump().values()):
        found["guided_*"] = _structured(guided)
    if body.structured_outputs is not None:
        found["structured_outputs"] = _structured(body.structured_outputs)
    if len(found) > 1:
        raise InvalidConfigError("response_format", list(found), "one of these fields")
    return next(iter(found.values()), None)


def _schema(asked: ResponseFormat) -> dict[str, Any] | None:
    """Find the schema of a response format, wherever it is; None for any text.

    Raises:
        InvalidConfigError: there is none where one is needed, or several, or one beside "text".
    """
    places = {"json_schema": asked.json_schema, "schema": asked.schema_, "value": asked.value}
    given = [name for name, value in places.items() if value is not None]
    expected = "none beside type: text" if asked.type == "text" else "one schema"
    if len(given) > (asked.type != "text"):
        name = given[-1]
        raise InvalidConfigError(f"response_format.{name}", places[name], expected)
    if asked.type == "text":
        return None
    if given == ["json_schema"] and asked.json_schema is not None:
        return _unwrapped(asked.json_schema)
    if given:
        return places[given[0]]
    if asked.type == "json_object":
        return {"type": "object"}
    missing = "response_format.json_schema is missing"
    name = "response_format.json_schema"
    raise InvalidConfigError(name, None, "one: {name, schema}", given=missing)


def _unwrapped(given: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of {name, schema}, or what is a schema itself."""
    wraps = given.keys() & {"schema", "name", "strict"}
    if not wraps and given.keys() & _OF_SCHEMAS:
        return given
    return checked(NamedSchema, given, "response_format.json_schema").schema_


def _structured(asked: Structured) -> StructuredOutput:
    if asked.json_object and asked.json_ is not None:
        raise InvalidConfigError("structured_outputs", ["json", "json_object"], "one of these")
    return StructuredOutput(
        json_schema={"type": "object"} if asked.json_object else asked.json_,
        regex=asked.regex,
        choice=None if asked.choice is None else tuple(asked.choice),
        grammar=asked.grammar,
    )
