"""Prompt files: texts, and JSON lines of prompts, Spec-Bench rows and OpenAI batch requests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..config.validation import read_text, unreadable
from ..errors import InvalidConfigError
from .records import Prompt, Workload

FORMATS = (
    'rows such as {"prompt": "def f(x):"}, {"prompt": [17, 4]}, Spec-Bench\'s {"turns": ["..."]}, '
    'or OpenAI batch requests {"body": {"messages": [...]}}'
)

Line = tuple[str, bytes]
"""A line of a file and its place in words, such as "line 3"."""

_NAMES: dict[type, str] = {dict: "an object", list: "a list", str: "a text"}


class BadRow(ValueError):
    """A row cannot be used; the message says why."""


def read_prompts(path: Path) -> list[Line] | str:
    """Read a file of prompts: of JSON lines those that are not empty, of others the whole text.

    A .jsonl file has JSON lines, and a .json file whose first line is an object.

    Raises:
        InvalidConfigError: the file cannot be read, is not UTF-8, or has nothing in it.
    """
    try:
        lines = path.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    except OSError as error:
        raise unreadable("prompts", path, "a file of prompts", error) from error
    found = [(f"line {number}", line) for number, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise InvalidConfigError("prompts", str(path), FORMATS, given=f"{path} has no prompt")
    objects = path.suffix == ".json" and found[0][1].rstrip().endswith(b"}")
    return found if objects or path.suffix == ".jsonl" else read_text("prompts", path)


def workload_of(files: Mapping[Path, list[Line] | str], tokenizer: Any) -> Workload:
    """Make one workload of what `read_prompts` read; formats may be mixed.

    Rows are {"prompt": text or token ids}, with "max_tokens" and a "prediction" of the output if
    wanted; Spec-Bench's {"question_id", "category", "turns"}, of which the first turn is taken;
    and OpenAI's batch requests {"custom_id", "body"}. Messages are written by the tokenizer's chat
    template; without one their contents stand alone. A row that cannot be used is skipped, and
    `Workload.skipped` says why.

    Raises:
        InvalidConfigError: no row can be used.
    """
    prompts, skipped = [], []
    for path, found in files.items():
        if isinstance(found, str):
            ids = _ids("prompt", found, tokenizer, special=True)
            prompts.append(Prompt(tuple(ids), path.name, kind=path.suffix[1:] or path.stem))
            continue
        for line, data in found:
            place = line if len(files) == 1 else f"{path.name} {line}"
            try:
                prompts.append(_prompt(data, place, path.stem, tokenizer))
            except BadRow as error:
                skipped.append(f"{place}: {error}")
    name = next(iter(files)).stem if len(files) == 1 else f"{len(files)} files"
    if not prompts:
        more = f" (and {len(skipped) - 1} more rows cannot be used)" if len(skipped) > 1 else ""
        given = f"{name} has no prompt: {skipped[0]}{more}"
        raise InvalidConfigError("prompts", name, FORMATS, given=given)
    return Workload(name, tuple(prompts), tuple(skipped))


def has_template(tokenizer: Any) -> bool:
    """Say whether a tokenizer, of transformers or of llama.cpp, has a chat template."""
    return bool(getattr(tokenizer, "chat_template", None))


def chat_ids(messages: Sequence[Mapping[str, str]], tokenizer: Any) -> list[int]:
    """Encode a conversation, up to where the assistant is to speak.

    A tokenizer without a chat template, such as that of the demo pair, gets the contents alone,
    with empty lines between them.
    """
    if not has_template(tokenizer):
        text = "\n\n".join(message["content"] for message in messages) + "\n\n"
        return [int(token) for token in tokenizer.encode(text)]
    try:
        text = tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=True
        )
    except Exception as error:
        # Templates are programs of others, and raise what they like.
        raise BadRow(f"the chat template refuses the messages: {error}") from error
    return [int(token) for token in tokenizer.encode(text, add_special_tokens=False)]


def _prompt(line: bytes, name: str, kind: str, tokenizer: Any) -> Prompt:
    try:
        row = _of(dict, "the row", json.loads(line.decode()))
    except UnicodeDecodeError as error:
        raise BadRow("it is not UTF-8 text") from error
    except (json.JSONDecodeError, RecursionError) as error:
        raise BadRow(f"it is not JSON ({error})") from error
    row = _of(dict, "body", row.get("body", row))
    if "prompt" in row:
        ids = _ids("prompt", row["prompt"], tokenizer, special=True)
    elif "messages" in row:
        messages = [_of(dict, "a message", each) for each in _of(list, "messages", row["messages"])]
        said = [
            {"role": _of(str, "the role of a message", each.get("role")), "content": _content(each)}
            for each in messages
        ]
        ids = chat_ids(said, tokenizer)
    elif "turns" in row:
        turns = _of(list, "turns", row["turns"])
        ids = chat_ids([{"role": "user", "content": _of(str, "turns[0]", turns[0])}], tokenizer)
    else:
        raise BadRow(f"no prompt, messages or turns; expected {FORMATS}")
    if not ids:
        raise BadRow("the prompt is empty; expected at least one token")
    max_tokens = row.get("max_completion_tokens", row.get("max_tokens"))
    if max_tokens is not None and (type(max_tokens) is not int or max_tokens < 1):
        raise BadRow(f"max_tokens={max_tokens!r} is not allowed: expected an integer >= 1")
    expected = row.get("prediction")
    if isinstance(expected, dict):  # as OpenAI's API has it
        expected = _content(expected)
    if expected is not None:
        expected = tuple(_ids("prediction", expected, tokenizer, special=False))
    category = row.get("category")
    shown, kind = (f"{name} ({category})", category) if isinstance(category, str) else (name, kind)
    return Prompt(tuple(ids), shown, max_tokens, expected, kind)


def _of(kind: type[Any], what: str, value: object) -> Any:
    """Check a value's type; that a list has entries, and that a text is one in UTF-8."""
    if not isinstance(value, kind):
        raise BadRow(f"{what} is of type {type(value).__name__}; expected {_NAMES[kind]}")
    if value == []:
        raise BadRow(f"{what} is empty; expected at least one entry")
    try:
        return value.encode().decode() if isinstance(value, str) else value
    except UnicodeEncodeError as error:
        raise BadRow(f"{what} has half a character (a lone surrogate)") from error


def _ids(what: str, given: object, tokenizer: Any, *, special: bool) -> list[int]:
    """Encode a text, or check given token ids against the vocabulary."""
    if not isinstance(given, list):
        text = _of(str, what, given)
        return [int(token) for token in tokenizer.encode(text, add_special_tokens=special)]
    for token in given:
        if type(token) is not int or not 0 <= token < len(tokenizer):
            most = len(tokenizer) - 1
            raise BadRow(f"{what}: {token!r} is no token id of the vocabulary, 0..{most}")
    return given


def _content(message: Mapping[str, Any]) -> str:
    """Join the parts of a content, as OpenAI's API has them."""
    content = message.get("content")
    if not isinstance(content, list):
        return str(_of(str, "content", content))
    parts = [_of(dict, "a part of content", part) for part in content]
    return "".join(_of(str, "a part of content", part.get("text")) for part in parts)
