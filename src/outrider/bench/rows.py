"""Rows of prompt files: plain ones, Spec-Bench's, and those of OpenAI's batch files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .records import Prompt

FORMATS = (
    'rows such as {"prompt": "def f(x):"}, {"prompt": [17, 4]}, Spec-Bench\'s {"turns": ["..."]}, '
    'or OpenAI batch requests {"body": {"messages": [...]}}'
)


class BadRowError(ValueError):
    """A row cannot be used; the message says why."""


def prompt_of(line: bytes, name: str, tokenizer: Any) -> Prompt:
    """The prompt of one line of a JSONL file.

    Args:
        line: a JSON object in UTF-8.
        name: of the prompt, such as "line 3".
        tokenizer: makes token ids of text, as transformers' tokenizers do, and has the model's
            vocabulary.

    Raises:
        BadRowError: it is none of `FORMATS`, or its prompt has no tokens or strange ones.
    """
    row = _parsed(line)
    if "body" in row:
        row = _mapping("body", row["body"])
    if "prompt" in row:
        ids = _prompt_ids(row["prompt"], tokenizer)
    elif "messages" in row:
        ids = chat_ids(_messages(row["messages"]), tokenizer)
    elif "turns" in row:
        ids = chat_ids([{"role": "user", "content": _first_turn(row["turns"])}], tokenizer)
    else:
        raise BadRowError(f"no prompt, messages or turns; expected {FORMATS}")
    if not ids:
        raise BadRowError("the prompt is empty; expected at least one token")
    _check_ids("", ids, tokenizer)
    category = row.get("category")
    shown = f"{name} ({category})" if isinstance(category, str) else name
    return Prompt(tuple(ids), shown, _max_tokens(row), _prediction(row, tokenizer))


def chat_ids(messages: Sequence[Mapping[str, str]], tokenizer: Any) -> list[int]:
    """A conversation as token ids, up to where the assistant is to speak.

    It is written by the tokenizer's chat template. A tokenizer that has none, such as that of the
    demo pair, gets the contents alone, with empty lines between them.

    Raises:
        BadRowError: the template refuses the messages.
    """
    if getattr(tokenizer, "chat_template", None) is None:
        text = "\n\n".join(message["content"] for message in messages) + "\n\n"
        return [int(token) for token in tokenizer.encode(text)]
    try:
        text = tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=True
        )
    except Exception as error:
        # Templates are programs of others, and raise what they like.
        raise BadRowError(f"the chat template refuses the messages: {error}") from error
    return [int(token) for token in tokenizer.encode(text, add_special_tokens=False)]


def _parsed(line: bytes) -> Mapping[str, Any]:
    try:
        row = json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise BadRowError("it is not UTF-8 text") from error
    except json.JSONDecodeError as error:
        raise BadRowError(f"it is not JSON ({error.msg}: character {error.pos + 1})") from error
    except (ValueError, RecursionError) as error:
        raise BadRowError(f"it is not JSON ({error})") from error
    return _mapping("the row", row)


def _mapping(what: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise BadRowError(f"{what} is a {type(value).__name__}; expected an object")
    return value


def _prompt_ids(prompt: object, tokenizer: Any) -> list[int]:
    if isinstance(prompt, str):
        return [int(token) for token in tokenizer.encode(_text("prompt", prompt))]
    if isinstance(prompt, list) and all(type(token) is int for token in prompt):
        return prompt
    raise BadRowError("prompt is neither a text nor a list of token ids")


def _check_ids(of: str, ids: Sequence[int], tokenizer: Any) -> None:
    size = len(tokenizer)
    for token in (min(ids), max(ids)):
        if not 0 <= token < size:
            raise BadRowError(f"{of}token id {token} is outside the vocabulary, 0..{size - 1}")


def _prediction(row: Mapping[str, Any], tokenizer: Any) -> tuple[int, ...] | None:
    """What is expected: a text, token ids, or a content of text as OpenAI's API has it."""
    given = row.get("prediction")
    if given is None:
        return None
    if isinstance(given, dict):
        given = _content("prediction", given.get("content"))
    if isinstance(given, str):
        text = _text("prediction", given)
        given = [int(token) for token in tokenizer.encode(text, add_special_tokens=False)]
    if not isinstance(given, list) or not all(type(token) is int for token in given):
        raise BadRowError("prediction is neither a text nor a list of token ids")
    if given:
        _check_ids("prediction: ", given, tokenizer)
    return tuple(given)


def _messages(messages: object) -> list[dict[str, str]]:
    if not isinstance(messages, list) or not messages:
        raise BadRowError("messages is not a list with at least one message")
    found = []
    for message in messages:
        given = _mapping("a message", message)
        if not isinstance(given.get("role"), str):
            raise BadRowError("a message has no role")
        found.append({"role": given["role"], "content": _content("content", given.get("content"))})
    return found


def _content(what: str, content: object) -> str:
    if isinstance(content, list):
        parts = [_mapping(f"a part of {what}", part) for part in content]
        return "".join(_text(f"a part of {what}", part.get("text")) for part in parts)
    return _text(what, content)


def _first_turn(turns: object) -> str:
    if not isinstance(turns, list) or not turns:
        raise BadRowError("turns is not a list with at least one text")
    return _text("turns[0]", turns[0])


def _text(what: str, value: object) -> str:
    if not isinstance(value, str):
        raise BadRowError(f"{what} is not a text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise BadRowError(f"{what} has half a character (a lone surrogate)") from error
    return value


def _max_tokens(row: Mapping[str, Any]) -> int | None:
    value = row.get("max_completion_tokens", row.get("max_tokens"))
    if value is None:
        return None
    if type(value) is not int or value < 1:
        raise BadRowError(f"max_tokens={value!r} is not allowed: expected an integer >= 1")
    return value
