"""From JSON to a body whose fields are all known: which others are ignored, which refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from ..errors import InvalidConfigError

Body = TypeVar("Body", bound=BaseModel)
_LONGEST_NAME = 200

IGNORED = frozenset(
    (
        *("user", "safety_identifier"),  # who asks changes no answer
        *("metadata", "request_id"),  # a client's own notes
        *("store", "service_tier"),  # nothing is stored, and there is one tier
        "priority",  # requests are served in their order
        *("prompt_cache_key", "prompt_cache_retention", "cache_prompt"),  # caches change no answer
        "parallel_tool_calls",  # tools are not called
        "spaces_between_special_tokens",  # special tokens are not in the text
    )
)
"""Fields that change no answer."""

_NOTHING: Mapping[str, tuple[Any, ...]] = {
    "top_k": (-1,),
    "seed": (-1,),
    "logprobs": (False,),
    "echo": (False,),
    "suffix": ("",),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "json_object": (False,),
    "use_beam_search": (False,),
    "length_penalty": (1,),
    "early_stopping": (False,),
    "detokenize": (True,),
    "skip_special_tokens": (True,),
    "prompt_logprobs": (False,),
    "typical_p": (1,),
    "tfs_z": (1,),
    "mirostat": (0,),
    "dry_multiplier": (0,),
    "xtc_probability": (0,),
    "dynatemp_range": (0,),
}
"""Values by which clients say none, or ask for what is done in any case."""

_INSTEAD: Mapping[str, str] = {
    "echo": "false: prompts are not repeated",
    "suffix": "none: text is continued, not filled in",
    "tools": "none: tools are not called",
    "tool_choice": "none: tools are not called",
    "functions": "none: tools are not called",
    "function_call": "none: tools are not called",
    "max_new_tokens": "max_tokens in its place",
    "max_completion_tokens": "max_tokens in its place",
    "n_predict": "max_tokens in its place",
    "top_logprobs": "logprobs, a number, in its place",
    "stop_sequences": "stop in its place",
    "repeat_penalty": "repetition_penalty in its place",
    "grammar": "guided_grammar, or structured_outputs with a grammar, in its place",
    "regex": "guided_regex, or structured_outputs with a regex, in its place",
    "choice": "guided_choice, or structured_outputs with a choice, in its place",
    "json_schema": "response_format with a json_schema, or guided_json, in its place",
    "schema": "response_format with a json_schema, or guided_json, in its place",
    "prompt_logprobs": "none: log-probabilities are those of the answer",
    "truncate_prompt_tokens": "none: shorten the prompt, of which nothing is left out",
    "reasoning_effort": "it in chat_template_kwargs, where the template has it",
    "enable_thinking": "it in chat_template_kwargs, where the template has it",
    "chat_template": "none: conversations are written by the model's own template",
}
"""What to do in place of some fields that are not served."""

_EXPECTED: Mapping[str, str] = {
    "model_type": "a JSON object",
    "dict_type": "a JSON object",
    "int_parsing": "an integer",
    "too_long": "at most {max_length} of them",
    "too_short": "at least {min_length} of them",
    "greater_than_equal": "a number >= {ge}",
    "less_than_equal": "a number <= {le}",
}
"""What is allowed, by the kind of an error, where pydantic's message says it in words of Python."""


def read_body(kind: type[Body], data: bytes) -> Body:
    """Read the JSON of a body.

    Raises:
        InvalidConfigError: it is no JSON object, or a field is not known, or has a value that is
            not allowed; the field's path is named.
    """
    try:
        given = json.loads(data)
    except (ValueError, RecursionError) as error:
        why = "too deeply nested" if isinstance(error, RecursionError) else str(error)
        start = data[:40].decode(errors="replace")
        raise InvalidConfigError("body", start, f"a JSON object ({why})") from None
    if not isinstance(given, dict):
        raise InvalidConfigError("body", given, "a JSON object")
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        # Of the forms that a value may have, the one that it comes closest to says what is wrong.
        wrong = [(_path(given, each), each) for each in error.errors(include_url=False)]
        path, first = max(wrong, key=_closeness)
    name = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path)
    field = name.removeprefix(".")[:_LONGEST_NAME]
    if first["type"] == "missing":
        missing = f"{field} is missing"
        raise InvalidConfigError(field, first["input"], "a value", given=missing) from None
    if first["type"] == "extra_forbidden":
        expected = _INSTEAD.get(field, "none: there is no such field")
    elif first["type"] in _EXPECTED:
        expected = _EXPECTED[first["type"]].format_map(first.get("ctx", {}))
    else:
        expected = first["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    raise InvalidConfigError(field, first["input"], expected) from None


def _closeness(found: tuple[list[str | int], Any]) -> tuple[int, bool]:
    path, error = found
    return len(path), not error["type"].endswith("_type")


def _path(given: Any, error: Any) -> list[str | int]:
    """Return where an error is in what was given, without the names of forms that were tried."""
    path: list[str | int] = []
    there, places = False, error["loc"] or ("body",)
    for key in places:
        keys = range(len(given)) if isinstance(given, list) else given
        there = isinstance(given, list | dict) and key in keys
        if there:
            given = given[key]
            path.append(key)
    absent = not there and (error["type"] == "missing" or not path)
    return [*path, places[-1]] if absent else path


def asks_for_nothing(name: str, value: Any) -> bool:
    """Return whether a field has a value that asks for nothing but what is done in any case."""
    nothing = _NOTHING.get(name, ())
    return any(
        value == each and isinstance(value, bool) == isinstance(each, bool) for each in nothing
    )
