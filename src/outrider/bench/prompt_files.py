"""Prompt files: texts, and JSON lines of prompts, Spec-Bench rows and OpenAI batch requests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..config import validation
from ..errors import InvalidConfigError
from .records import Prompt, Workload

FORMATS = (
    'rows such as {"prompt": "def f(x):"}, {"prompt": [17, 4]}, Spec-Bench\'s {"turns": ["..."]}, '
    'or OpenAI batch requests {"body": {"messages": [...]}}'
)


def read_prompts(paths: Sequence[Path], tokenizer: Any) -> Workload:
    """Make one workload of all files; formats may be mixed.

    A .jsonl file has rows: {"prompt": text or token ids}; Spec-Bench's {"question_id", "category",
    "turns"}, of which the first turn is taken; and OpenAI's batch requests {"custom_id", "body"},
    whose parameters do not count. Messages are written by the tokenizer's chat template; without
    one their contents stand alone. Any other file is one prompt.

    Raises:
        InvalidConfigError: a file cannot be read, is not UTF-8 or has no prompt, or a row cannot be
            used.
    """
    prompts = []
    names = [path.name for path in paths]
    for path in paths:
        name = path.name if names.count(path.name) == 1 else str(path)
        text = validation.read_text("prompts", path).removeprefix("\ufeff")
        if not text.strip():
            wanted = FORMATS if path.suffix == ".jsonl" else "a text"
            raise InvalidConfigError("prompts", str(path), wanted, given=f"{path} is empty")
        if path.suffix == ".jsonl":
            rows = [(f"{name} line {n}", row) for n, row in enumerate(text.split("\n"), 1)]
            prompts += [_prompt(*each, path.stem, tokenizer) for each in rows if each[1].strip()]
        else:
            ids = _ids(name, text, tokenizer)
            prompts.append(Prompt(tuple(ids), name, path.suffix[1:] or path.stem))
    return Workload(paths[0].stem if len(paths) == 1 else f"{len(paths)} files", tuple(prompts))


def has_template(tokenizer: Any) -> bool:
    """Say whether a tokenizer, of transformers or of llama.cpp, has a chat template."""
    return bool(getattr(tokenizer, "chat_template", None))


def chat_ids(
    messages: Sequence[Mapping[str, str]], tokenizer: Any, where: str = "messages"
) -> list[int]:
    """Encode a conversation, up to where the assistant is to speak; `where` is for errors.

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
        given = f"{where}: the model's chat template refuses the messages ({error})"
        raise InvalidConfigError(where, messages, "other messages", given=given) from error
    return [int(token) for token in tokenizer.encode(text, add_special_tokens=False)]


def _prompt(place: str, line: str, kind: str, tokenizer: Any) -> Prompt:
    try:
        row = _of(dict, place, json.loads(line))
    except (json.JSONDecodeError, RecursionError) as error:
        given = f"{place} is not JSON ({error})"
        raise InvalidConfigError("prompts", line, FORMATS, given=given) from error
    row = _of(dict, f"{place}: body", row.get("body", row))
    if "prompt" in row:
        ids = _ids(f"{place}: prompt", row["prompt"], tokenizer)
    else:
        ids = chat_ids(_messages(place, row), tokenizer, place)
    category = row.get("category")
    if isinstance(category, str):
        place, kind = f"{place} ({category})", category
    return Prompt(tuple(ids), place, kind)


def _messages(place: str, row: dict[str, Any]) -> list[dict[str, str]]:
    """Return the messages of a batch request, or the first turn of Spec-Bench as one."""
    if "turns" in row:
        content = validation.text(place, _of(list, f"{place}: turns", row["turns"])[0])
        return [{"role": "user", "content": content}]
    if "messages" not in row:
        raise InvalidConfigError(place, row, FORMATS)
    messages = enumerate(_of(list, f"{place}: messages", row["messages"]))
    return [_message(f"{place}: messages[{index}]", each) for index, each in messages]


def _message(where: str, message: Any) -> dict[str, str]:
    """Check a message as OpenAI's API has it, and join the parts of its content."""
    content = _of(dict, where, message).get("content")
    role = validation.text(f"{where}.role", message.get("role"))
    parts = content if isinstance(content, list) else [{"text": content}]
    where = f"{where}.content"
    texts = [validation.text(where, _of(dict, where, part).get("text")) for part in parts]
    return {"role": role, "content": "".join(texts)}


def _of(kind: type[Any], where: str, value: object) -> Any:
    """Check that a value is an object, or a list with entries."""
    if isinstance(value, kind) and value != []:
        return value
    expected = "an object" if kind is dict else "a list with at least one entry"
    raise InvalidConfigError(where, value, expected)


def _ids(where: str, given: object, tokenizer: Any) -> list[int]:
    """Encode a text, or check given token ids against the vocabulary."""
    if isinstance(given, list):
        found = [validation.integer(where, token, 0, len(tokenizer) - 1) for token in given]
    else:
        text = validation.text(where, given, "a text, or a list of token ids")
        found = [int(token) for token in tokenizer.encode(text)]
    if not found:
        raise InvalidConfigError(where, given, "at least one token")
    return found
