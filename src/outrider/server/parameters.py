"""From a body to the parameters of a request."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..config.params import SamplingParams
from ..config.structured import StructuredOutput
from ..engine.requests import banned
from ..errors import InvalidConfigError, OutriderError
from .schema import Body, ChatBody, CompletionBody, ResponseFormat, joined

_COMPLETION_TOKENS = 16
"""What /v1/completions emits at most where nothing is said, as OpenAI has it."""

_AS_THEY_ARE = (
    *("temperature", "top_p", "top_k", "min_p", "n", "seed", "ignore_eos", "min_tokens"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "stop_token_ids"),
    *("allowed_token_ids", "include_stop_str_in_output", "logit_bias"),
)

_KINDS = {
    "json": "json_schema",
    "json_object": "json_schema",
    "regex": "regex",
    "choice": "choice",
    "grammar": "grammar",
}
"""Forms as vLLM names them, and as `StructuredOutput` does."""


@dataclass(frozen=True, slots=True)
class Form:
    """The form of a text that a body asks for.

    Attributes:
        path: of the field that asks for it.
        kind, value: as `StructuredOutput` takes them.
    """

    path: str
    kind: str
    value: Any


def asked_form(body: Body) -> Form | None:
    """Find the form that a body asks for, under any of its names.

    Raises:
        InvalidConfigError: there are several, or none where there is to be one.
    """
    guided = ((f"guided_{name}", name) for name in _KINDS)
    found = [(path, name, getattr(body, path, None)) for path, name in guided]
    if body.structured_outputs is not None:
        named = [(name.rstrip("_"), value) for name, value in body.structured_outputs]
        if all(value is None for _, value in named):
            raise InvalidConfigError("structured_outputs", {}, f"one of {', '.join(_KINDS)}")
        found += [(f"structured_outputs.{name}", name, value) for name, value in named]
    if body.response_format is not None:
        found.append(("response_format", "json", _schema(body.response_format)))
    forms = [
        Form(path, _KINDS[name], {"type": "object"} if name == "json_object" else value)
        for path, name, value in found
        if value is not None
    ]
    if len(forms) > 1:
        raise InvalidConfigError(forms[1].path, forms[1].value, f"none beside {forms[0].path}")
    return forms[0] if forms else None


def sampling_params(
    body: Body, form: Form | None, room: int | None, tokenizer: Any
) -> SamplingParams:
    """Make the parameters that a body asks for.

    `room` is how many tokens the context has room for; None if there is no end of it.

    Raises:
        InvalidConfigError: a value is not allowed.
    """
    if isinstance(body, CompletionBody) and body.best_of not in (None, body.n or 1):
        raise InvalidConfigError("best_of", body.best_of, "n, or none: nothing is ranked")
    if isinstance(body, ChatBody) and body.top_logprobs and not body.logprobs:
        raise InvalidConfigError("top_logprobs", body.top_logprobs, "logprobs: true beside it")
    given: dict[str, Any] = {
        name: value for name in _AS_THEY_ARE if (value := getattr(body, name)) is not None
    }
    if body.bad_words is not None:
        words = [word for word in body.bad_words if isinstance(word, str)]
        ids = [tuple(word) for word in body.bad_words if not isinstance(word, str)]
        given["bad_words"] = (*ids, *banned("bad_words", words, tokenizer))
    if body.prediction is not None:
        given["prediction"] = joined(body.prediction.content)
    if form is not None:
        given["structured_output"] = StructuredOutput(**{form.kind: form.value})
    stops = [body.stop] if isinstance(body.stop, str) else body.stop or ()
    return SamplingParams(
        **given,
        stop=tuple(filter(None, stops)),
        max_tokens=_most_tokens(body, room),
        logprobs=body.top,
    )


@contextmanager
def named_as_asked(form: Form | None, prompt: str = "prompt") -> Iterator[None]:
    """Name fields in errors as a body with this form and prompt does, and not as the library."""
    names = {"prompt": prompt}
    if form is not None:
        names |= {f"structured_output.{form.kind}": form.path, "structured_output": form.path}
    try:
        yield
    except OutriderError as error:
        renamed = copy.copy(error)
        library = rf"\b({'|'.join(map(re.escape, names))})\b"
        renamed.args = (re.sub(library, lambda name: names[name[0]], str(error), count=1),)
        renamed.field = names.get(error.field or "", error.field)
        raise renamed from error.__cause__


def _most_tokens(body: Body, room: int | None) -> int:
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


def _schema(asked: ResponseFormat) -> dict[str, Any] | None:
    """Find the schema of a response format, wherever it is; None for any text.

    Raises:
        InvalidConfigError: there is none where one is needed, or several, or one beside "text".
    """
    wrapped = None if asked.json_schema is None else asked.json_schema.schema_
    places = {"json_schema": wrapped, "schema": asked.schema_, "value": asked.value}
    given = {name: value for name, value in places.items() if value is not None}
    if len(given) > (asked.type != "text"):
        expected = "none beside type: text" if asked.type == "text" else "one schema"
        name, value = given.popitem()
        raise InvalidConfigError(f"response_format.{name}", value, expected)
    if asked.type == "json_schema" and not given:
        name = "response_format.json_schema"
        raise InvalidConfigError(name, None, "one: {name, schema}", given=f"{name} is missing")
    any_object = {"type": "object"} if asked.type == "json_object" else None
    return next(iter(given.values()), any_object)
