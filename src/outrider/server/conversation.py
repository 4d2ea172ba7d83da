"""Conversations as a model's chat template writes them, with nothing left out."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

from ..errors import InvalidConfigError, OutriderError, missing

Message = Mapping[str, Any]
Write = Callable[[Sequence[Message]], str]
Mark = tuple[str, Any, str]
"""The path of a text or number in a conversation, itself, and the digits written in its place."""

_OF_THE_SERVER = frozenset(
    (
        *("chat_template", "conversation", "messages", "tokenize", "tools", "documents"),
        *("add_generation_prompt", "continue_final_message"),
        *("bos_token", "eos_token", "pad_token", "unk_token"),
        *("sep_token", "cls_token", "mask_token"),
    )
)
"""Variables of a template that a client does not choose."""

_GENERATION = re.compile(r"{%[-+]?\s*(end)?generation\s*[-+]?%}")
"""The tags that transformers adds to Jinja's; what is between them is read without them."""

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
    of tool calls are mappings, or JSON text where the template takes no mapping, or prints one.

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
    source = str(getattr(tokenizer, "chat_template", None) or "")
    if not source:
        expected = "a model with a chat template; send the text to /v1/completions"
        raise InvalidConfigError("messages", f"{len(messages)} messages", expected)
    own = {"tokenize": False, "add_generation_prompt": answers and not continues}
    write: Write = partial(tokenizer.apply_chat_template, **{**(variables or {}), **own})
    failures: list[Exception] = []
    try:
        known, words = _names(source)
        for name in (variables or {}).keys() - (known - _OF_THE_SERVER):
            expected = "names that the model's chat template reads, and not the server's own"
            raise InvalidConfigError("chat_template_kwargs", name, expected)
        given = [_taken(place, message, words) for place, message in enumerate(messages)]
        for spell in (list, _spelled):
            try:
                return _whole(write, spell(given), continues=continues)
            except Exception as error:  # A template may raise anything.
                failures.append(error)
        # What is left out says more than how a template failed.
        raise min(failures, key=lambda error: not isinstance(error, InvalidConfigError))
    except OutriderError:
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        said, expected = f"{len(messages)} messages", f"what the template takes ({why})"
        raise InvalidConfigError("messages", said, expected) from error


@lru_cache(maxsize=4)
def _names(source: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the variables that a template reads, and the names and texts in its code."""
    with missing("server"):
        from jinja2 import Environment
        from jinja2.meta import find_undeclared_variables
        from jinja2.nodes import Const, Getattr

    extensions = ("jinja2.ext.do", "jinja2.ext.loopcontrols")
    template = Environment(extensions=extensions).parse(_GENERATION.sub("", source))
    names = {node.attr for node in template.find_all(Getattr)}
    texts = {node.value for node in template.find_all(Const) if isinstance(node.value, str)}
    return frozenset(find_undeclared_variables(template)), frozenset(names | texts)


def _taken(place: int, message: Message, words: frozenset[str]) -> Message:
    """Return a message with a role that the template knows; refuse fields that it does not read."""
    for name, value in message.items():
        if name not in _SHOWN | _OTHERS | words:
            expected = "none: the model's chat template does not read it"
            raise InvalidConfigError(f"messages[{place}].{name}", value, expected)
    unknown = message["role"] == "developer" and "developer" not in words
    return {**message, "role": "system"} if unknown else message


def _spelled(messages: Sequence[Message]) -> list[Message]:
    """Return messages with the arguments of tool calls as JSON text."""
    found: list[Message] = []
    for message in messages:
        calls = []
        for call in message.get("tool_calls", ()):
            arguments = json.dumps(call["function"]["arguments"], ensure_ascii=False)
            calls.append({**call, "function": {**call["function"], "arguments": arguments}})
        found.append({**message, "tool_calls": calls} if calls else message)
    return found


def _whole(write: Write, messages: Sequence[Message], *, continues: bool) -> str:
    """Return what a template writes, and refuse a conversation of which it leaves a part out.

    Each part is written once more as a mark of its own, and is left out if its mark is. Where the
    template takes no marks, since it goes by what messages say, the parts themselves are looked
    for: one that stands within another is not missed then. A mapping of arguments that is printed
    as Python does is no JSON, and so left out. Not noticed is what a template cuts beyond 25
    characters, or prints as Python inside of arguments.
    """
    text = write(messages)
    marks: list[Mark] = []
    marked = [_marked(each, f"messages[{place}]", marks) for place, each in enumerate(messages)]
    try:
        shown, takes_marks = write(marked), True
    except Exception:  # A template may raise anything.
        shown, takes_marks, marked = text, False, list(messages)
    expected = "what the model's chat template writes, which leaves this out"
    for path, part, digits in marks:
        sought = digits if takes_marks else str(part).strip()
        if sought not in shown and json.dumps(sought, ensure_ascii=False)[1:-1] not in shown:
            raise InvalidConfigError(path, part, expected)
    calls = [call["function"] for each in marked for call in each.get("tool_calls", ())]
    for arguments in (call["arguments"] for call in calls):
        if arguments and isinstance(arguments, Mapping) and str(arguments) in shown:
            raise InvalidConfigError("messages", "tool calls", "a template that takes their JSON")
    return _continued(write, messages) if continues else text


def _marked(part: Any, path: str, marks: list[Mark]) -> Any:
    """Return a part of a message with a mark in place of each text and number in it; note them."""
    if isinstance(part, list):
        return [_marked(each, f"{path}[{place}]", marks) for place, each in enumerate(part)]
    if isinstance(part, Mapping):
        if ".arguments" in path:
            return {
                _marked(k, path, marks): _marked(v, f"{path}.{k}", marks) for k, v in part.items()
            }
        shown = _SHOWN & part.keys()
        if part.get("role") == "tool":
            shown -= {"name"}  # the call that it answers has it
        return {k: _marked(v, f"{path}.{k}", marks) if k in shown else v for k, v in part.items()}
    if part is None or isinstance(part, bool) or not str(part).strip():
        return part
    digits = _mark()
    marks.append((path, part, digits))
    return digits if isinstance(part, str) else int(digits)


def _mark() -> str:
    """Return digits that no conversation has: templates change no digits."""
    return str(10**24 + secrets.randbelow(10**24))


def _continued(write: Write, messages: Sequence[Message]) -> str:
    """Return the text of a conversation up to the end of the last message's content."""
    *before, last = messages
    mark = _mark()
    text = write([*before, {**last, "content": last["content"] + mark}])
    begun, found, _ = text.rpartition(mark)
    if not found:
        expected = "a last message whose content the model's chat template writes"
        raise InvalidConfigError("continue_final_message", True, expected)
    return begun
