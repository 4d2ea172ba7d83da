"""Conversations as a model's chat template writes them, with nothing left out."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from ..errors import InvalidConfigError

Message = Mapping[str, Any]
Write = Callable[[Sequence[Message]], str]
Mark = tuple[str, str, str]
"""The path of a text, the text, and what takes its place."""

_OF_THE_SERVER = frozenset(
    (
        *("chat_template", "conversation", "messages", "tokenize", "tools", "documents"),
        *("add_generation_prompt", "continue_final_message"),
    )
)
"""Arguments of `apply_chat_template` that a client does not choose: a template is a program."""

_SHOWN = frozenset(("content", "name", "tool_calls", "function", "arguments"))
"""Parts of messages that have to be in the text."""

_OTHERS = frozenset(("role", "tool_call_id", "reasoning_content", "reasoning", "thinking"))
"""Parts that may be left out: templates drop what was thought in earlier turns."""


def written(
    tokenizer: Any,
    messages: Sequence[Message],
    *,
    answers: bool = True,
    continues: bool = False,
    variables: Mapping[str, Any] | None = None,
) -> str:
    """Write a conversation by the chat template of a tokenizer.

    A developer's message is the system's where the template has no word of developers. Arguments
    of tool calls are mappings, or JSON text where the template takes no mapping.

    Args:
        tokenizer: has a `chat_template`, and `apply_chat_template`.
        messages: each with its role and content.
        answers: whether to end where the assistant is to speak.
        continues: whether to end with the last message's content instead, for it to be continued.
        variables: others that the template reads.

    Raises:
        InvalidConfigError: there is no template, or it refuses the messages, or leaves a part of
            one out, or does not read a variable.
    """
    template = str(getattr(tokenizer, "chat_template", None) or "")
    if not template:
        expected = "a model with a chat template; send the text to /v1/completions"
        raise InvalidConfigError("messages", f"{len(messages)} messages", expected)
    for name in variables or {}:
        if name in _OF_THE_SERVER or not _reads(template, name):
            expected = "names that the model's chat template reads, and not the server's own"
            raise InvalidConfigError("chat_template_kwargs", name, expected)
    write: Write = partial(
        tokenizer.apply_chat_template,
        add_generation_prompt=answers and not continues,
        tokenize=False,
        **(variables or {}),
    )
    given = [_taken(place, message, template) for place, message in enumerate(messages)]
    given, text = _accepted(write, given)
    _check_whole(write, given, text)
    return _continued(write, given) if continues else text


def _reads(template: str, name: str) -> bool:
    """Return whether a template has a name in it."""
    return re.search(rf"\b{re.escape(name)}\b", template) is not None


def _taken(place: int, message: Message, template: str) -> Message:
    """Return a message with a role that the template knows; refuse fields that it does not read."""
    for name, value in message.items():
        if name not in _SHOWN | _OTHERS and not _reads(template, name):
            expected = "none: the model's chat template does not read it"
            raise InvalidConfigError(f"messages[{place}].{name}", value, expected)
    if message["role"] == "developer" and not _reads(template, "developer"):
        return {**message, "role": "system"}
    return message


def _accepted(write: Write, messages: list[Message]) -> tuple[list[Message], str]:
    """Return messages with arguments of tool calls as a template takes them, and its text."""
    try:
        return messages, _text(write, messages)
    except InvalidConfigError:
        if any(message.get("tool_calls") for message in messages):
            with suppress(InvalidConfigError, RecursionError):
                spelled = [_spelled(message) for message in messages]
                return spelled, _text(write, spelled)
        raise


def _spelled(message: Message) -> Message:
    """Return a message with the arguments of its tool calls as JSON text."""
    calls = []
    for call in message.get("tool_calls", ()):
        function = call["function"]
        arguments = json.dumps(function["arguments"])
        calls.append({**call, "function": {**function, "arguments": arguments}})
    return {**message, "tool_calls": calls} if calls else message


def _text(write: Write, messages: Sequence[Message]) -> str:
    """Return what a template writes.

    Raises:
        InvalidConfigError: it refuses the messages.
    """
    try:
        return write(messages)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        given, expected = f"{len(messages)} messages", f"what the template takes ({why})"
        raise InvalidConfigError("messages", given, expected) from error


def _check_whole(write: Write, messages: Sequence[Message], text: str) -> None:
    """Refuse a conversation of which a template leaves a part out.

    Each part is written once more as a mark of its own, and is left out if its mark is. Where the
    template takes no marks, since it goes by what messages say, the parts themselves are looked
    for.
    """
    marks: list[Mark] = []
    marked = [_marked(each, f"messages[{place}]", marks) for place, each in enumerate(messages)]
    try:
        shown, which = _text(write, marked), 2
    except InvalidConfigError:
        shown, which = text, 1
    for mark in marks:
        if mark[which].strip() not in shown:
            expected = "what the model's chat template writes, which leaves this out"
            raise InvalidConfigError(mark[0], mark[1], expected)


def _marked(part: Any, path: str, marks: list[Mark]) -> Any:
    """Return a part of a message with a mark in place of each text in it, and note the marks."""
    if isinstance(part, str) and part.strip():
        marks.append((path, part, _mark()))
        return marks[-1][2]
    if isinstance(part, list):
        return [_marked(each, f"{path}[{place}]", marks) for place, each in enumerate(part)]
    if not isinstance(part, Mapping):
        return part
    if path.endswith(".arguments"):
        return {k: _marked(v, path, marks) if isinstance(v, str) else v for k, v in part.items()}
    shown = _SHOWN & part.keys()
    if part.get("role") == "tool":
        shown -= {"name"}  # the call that it answers has it
    return {k: _marked(v, f"{path}.{k}", marks) if k in shown else v for k, v in part.items()}


def _mark() -> str:
    """Return digits that no conversation has: templates change no digits."""
    return f"{secrets.randbits(80):025}"


def _continued(write: Write, messages: Sequence[Message]) -> str:
    """Return the text of a conversation up to the end of the last message's content."""
    *before, last = messages
    mark = _mark()
    text = _text(write, [*before, {**last, "content": last["content"] + mark}])
    begun, found, _ = text.rpartition(mark)
    if not found:
        expected = "a last message whose content the model's chat template writes"
        raise InvalidConfigError("continue_final_message", True, expected)
    return begun
