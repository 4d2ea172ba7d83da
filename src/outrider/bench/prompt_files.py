"""Prompt files: JSON lines of plain prompts, Spec-Bench rows and OpenAI batch requests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import InvalidConfigError
from .records import Prompt, Workload

FORMATS = (
    'rows such as {"prompt": "def f(x):"}, {"prompt": [17, 4]}, Spec-Bench\'s {"turns": ["..."]}, '
    'or OpenAI batch requests {"body": {"messages": [...]}}'
)

Line = tuple[str, bytes]
"""A line of a file and its place in words, such as "line 3"."""


class _BadRow(ValueError):
    """A row cannot be used; the message says why."""


def lines_of(path: Path) -> list[Line]:
    """Read the lines of a file that are not empty.

    Raises:
        InvalidConfigError: the file cannot be read, or has no such line.
    """
    try:
        lines = path.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InvalidConfigError("prompts", str(path), f"a readable file ({reason})") from error
    found = [(f"line {number}", line) for number, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise InvalidConfigError("prompts", str(path), FORMATS, given=f"{path} has no prompt")
    return found


def parse_lines(lines: Sequence[Line], name: str, tokenizer: Any) -> Workload:
    """Make a workload of the lines of a JSONL file; formats may be mixed.

    Rows are {"prompt": text or token ids}, with "max_tokens" and a "prediction" of the output if
    wanted; Spec-Bench's {"question_id", "category", "turns"}, of which the first turn is taken;
    and OpenAI's batch requests {"custom_id", "body"}. Messages are written by the tokenizer's chat
    template; without one their contents stand alone. A row that cannot be used is skipped, and
    `Workload.skipped` says why.

    Args:
        lines: of the file.
        name: of the workload.
        tokenizer: the target's, as transformers has them.

    Raises:
        InvalidConfigError: no row can be used.
    """
    prompts, skipped = [], []
    for place, line in lines:
        try:
            prompts.append(_prompt(line, place, tokenizer))
        except _BadRow as error:
            skipped.append(f"{place}: {error}")
    if not prompts:
        more = f" (and {len(skipped) - 1} more rows cannot be used)" if len(skipped) > 1 else ""
        given = f"{name} has no prompt: {skipped[0]}{more}"
        raise InvalidConfigError("prompts", name, FORMATS, given=given)
    return Workload(name, tuple(prompts), tuple(skipped))


def chat_ids(messages: Sequence[Mapping[str, str]], tokenizer: Any) -> list[int]:
    """Encode a conversation, up to where the assistant is to speak.

    A tokenizer without a chat template, such as that of the demo pair, gets the contents alone,
    with empty lines between them.
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
        raise _BadRow(f"the chat template refuses the messages: {error}") from error
    return [int(token) for token in tokenizer.encode(text, add_special_tokens=False)]


def _prompt(line: bytes, name: str, tokenizer: Any) -> Prompt:
    row = _parsed(line)
    if "body" in row:
        row = _mapping("body", row["body"])
    if "prompt" in row:
        ids = _ids("prompt", row["prompt"], tokenizer, special=True)
    elif "messages" in row:
        ids = chat_ids(_messages(row["messages"]), tokenizer)
    elif "turns" in row:
        turns = row["turns"]
        if not isinstance(turns, list) or not turns:
            raise _BadRow("turns is not a list with at least one text")
        ids = chat_ids([{"role": "user", "content": _text("turns[0]", turns[0])}], tokenizer)
    else:
        raise _BadRow(f"no prompt, messages or turns; expected {FORMATS}")
    if not ids:
        raise _BadRow("the prompt is empty; expected at least one token")
    category = row.get("category")
    shown = f"{name} ({category})" if isinstance(category, str) else name
    return Prompt(tuple(ids), shown, _max_tokens(row), _prediction(row, tokenizer))


def _parsed(line: bytes) -> Mapping[str, Any]:
    try:
        row = json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise _BadRow("it is not UTF-8 text") from error
    except json.JSONDecodeError as error:
        raise _BadRow(f"it is not JSON ({error.msg}: character {error.pos + 1})") from error
    except (ValueError, RecursionError) as error:
        raise _BadRow(f"it is not JSON ({error})") from error
    return _mapping("the row", row)


def _mapping(what: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _BadRow(f"{what} is a {type(value).__name__}; expected an object")
    return value


def _ids(what: str, given: object, tokenizer: Any, *, special: bool) -> list[int]:
    """Token ids of a text, or those given, checked against the vocabulary."""
    if isinstance(given, str):
        text = _text(what, given)
        return [int(token) for token in tokenizer.encode(text, add_special_tokens=special)]
    if not isinstance(given, list) or not all(type(token) is int for token in given):
        raise _BadRow(f"{what} is neither a text nor a list of token ids")
    for token in given:
        if not 0 <= token < len(tokenizer):
            raise _BadRow(
                f"{what}: token id {token} is outside the vocabulary, 0..{len(tokenizer) - 1}"
            )
    return given


def _prediction(row: Mapping[str, Any], tokenizer: Any) -> tuple[int, ...] | None:
    """The expected output: a text, token ids, or a content of text as OpenAI's API has it."""
    given = row.get("prediction")
    if isinstance(given, dict):
        given = _content("prediction", given.get("content"))
    return None if given is None else tuple(_ids("prediction", given, tokenizer, special=False))


def _messages(messages: object) -> list[dict[str, str]]:
    if not isinstance(messages, list) or not messages:
        raise _BadRow("messages is not a list with at least one message")
    found = []
    for message in messages:
        given = _mapping("a message", message)
        if not isinstance(given.get("role"), str):
            raise _BadRow("a message has no role")
        found.append({"role": given["role"], "content": _content("content", given.get("content"))})
    return found


def _content(what: str, content: object) -> str:
    if isinstance(content, list):
        parts = [_mapping(f"a part of {what}", part) for part in content]
        return "".join(_text(f"a part of {what}", part.get("text")) for part in parts)
    return _text(what, content)


def _text(what: str, value: object) -> str:
    if not isinstance(value, str):
        raise _BadRow(f"{what} is not a text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise _BadRow(f"{what} has half a character (a lone surrogate)") from error
    return value


def _max_tokens(row: Mapping[str, Any]) -> int | None:
    value = row.get("max_completion_tokens", row.get("max_tokens"))
    if value is None:
        return None
    if type(value) is not int or value < 1:
        raise _BadRow(f"max_tokens={value!r} is not allowed: expected an integer >= 1")
    return value
