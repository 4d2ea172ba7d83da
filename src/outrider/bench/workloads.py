"""Built-in prompts: kinds on which drafts do well, and one on which they fail."""

from __future__ import annotations

import ast
import json
import re
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import count as counting
from itertools import islice, zip_longest
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np

import outrider_demo as demo

from ..errors import InvalidConfigError
from .prompt_files import BadRow, chat_ids, has_template
from .records import Prompt, Workload

_FULL = 2000
"""Characters of a file that a prompt is cut from; files are longer than that."""

_TOKENS = 150
"""Of a prompt that could be of any length."""

_STEP = 650
"""Characters between the starts of two passages of a file, at least."""

_ASKED = 500
"""Characters of code that a user asks to go on with."""

_REQUESTS = {
    "code": "Here is how a Python file begins. Write the next fifty lines, as code alone.",
    "editing": "Change the name {0} to new_{0} wherever it occurs in this Python function, and "
    "write out all of it again. Answer with the code alone.",
    "json": "Here is how a list of records begins. Write the next twenty, as JSON alone.",
}

_SYSTEM = "You are a helpful assistant. Answer briefly, and show code where it helps."


def built_in(kind: str, tokenizer: Any, vocab_size: int, count: int) -> Workload:
    """Make prompts of one kind; see `mixed`."""
    return mixed((kind,), tokenizer, vocab_size, count)


def mixed(kinds: Sequence[str] | None, tokenizer: Any, vocab_size: int, count: int) -> Workload:
    """Make prompts of several kinds in turn; the same arguments give the same prompts.

    None stands for editing, code and json, and for chat where the tokenizer has a chat template.

    - code: the first 150 tokens of Python files that the demo pair was not trained on, then of
      passages further on in them;
    - editing: a function or method of such a file, then its first lines again with a name changed;
    - json: records of one form, of which the next is wanted;
    - chat: a conversation, written by the tokenizer's chat template if it has one;
    - random: 150 tokens drawn uniformly, after which nothing can be foreseen.

    Where the tokenizer has a chat template, a user asks for what comes next in the code or the
    list, and for the whole function with its name changed. The files are those of Python's own
    library, so they change with its version.

    Raises:
        InvalidConfigError: there are fewer than `count` prompts of these kinds.
    """
    kinds = kinds or ("editing", "code", "json", *["chat"] * has_template(tokenizer))
    rows = zip_longest(*(islice(_prompts(kind, tokenizer, vocab_size), count) for kind in kinds))
    found = tuple(islice((each for row in rows for each in row if each is not None), count))
    name = ", ".join(kinds)
    if len(found) < count:
        expected = f"at most {len(found)}, which is how many prompts {name} has here"
        raise InvalidConfigError("prompts_per_workload", count, expected)
    return Workload(name, found)


def _prompts(kind: str, tokenizer: Any, vocab_size: int) -> Iterator[Prompt]:
    if kind == "random":
        yield from _random(vocab_size)
    elif kind == "chat":
        yield from _chats(tokenizer)
    else:
        most = _TOKENS if kind == "code" else None
        for name, text in _TEXTS[kind]():
            if has_template(tokenizer):
                asked = [{"role": "user", "content": _request(kind, text)}]
                ids = chat_ids(asked, tokenizer)
            else:
                ids = tokenizer.encode(text)[:most]
            yield Prompt(tuple(ids), name, kind=kind)


def _request(kind: str, text: str) -> str:
    """What a user asks for with such a prompt."""
    name = ""
    if kind == "code":
        text = text[:_ASKED].rpartition("\n")[0]
    elif kind == "editing":
        text, _, changed = text.partition("\n\n\ndef new_")
        name = changed.partition("(")[0]
    return f"{_REQUESTS[kind].format(name)}\n\n```\n{text}\n```"


@cache
def _held_out() -> dict[str, str]:
    """The library's files that the demo pair was not trained on, by name; long ones only."""
    library = Path(sysconfig.get_path("stdlib"))
    names = json.loads((Path(demo.__file__).parent / "held_out.json").read_text())
    texts = {
        name: (library / name).read_text(encoding="utf-8")
        for name in names
        if (library / name).is_file()
    }
    return {name: text for name, text in texts.items() if len(text) > _FULL}


def _random(vocab_size: int) -> Iterator[Prompt]:
    rng = np.random.default_rng(0)
    for index in counting(1):
        ids = tuple(rng.integers(1, vocab_size, _TOKENS).tolist())
        yield Prompt(ids, f"draw {index}", kind="random")


def _chats(tokenizer: Any) -> Iterator[Prompt]:
    file = Path(__file__).with_name("conversations.json")
    for index, turns in enumerate(json.loads(file.read_text(encoding="utf-8")), 1):
        roles = ("system", "user", "assistant", "user")
        messages = [
            {"role": role, "content": content}
            for role, content in zip(roles, (_SYSTEM, *turns), strict=True)
        ]
        try:
            ids = chat_ids(messages, tokenizer)
        except BadRow:
            ids = chat_ids(messages[1:], tokenizer)  # some templates have no system's messages
        yield Prompt(tuple(ids), f"conversation {index}", kind="chat")


def _code() -> Iterator[tuple[str, str]]:
    for file, text in _held_out().items():
        yield file, text[:_FULL]
    yield from _each_file_in_turn(_passages)


def _passages(text: str) -> list[str]:
    """Parts that begin after two empty lines, each at least a step beyond the last."""
    passages, last = list[str](), 0
    for found in re.finditer(r"\n\n\n(?=\S)", text):
        place = found.end()
        if last + _STEP <= place <= len(text) - _FULL:
            passages.append(text[place : place + _FULL])
            last = place
    return passages


def _edited(text: str) -> list[str]:
    """Functions of 8 to 25 lines, each followed by its first lines under another name."""
    edited = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            source = ast.get_source_segment(text, node, padded=True) or ""
            if 8 <= source.count("\n") <= 25:
                function = dedent(source)
                changed = function.replace(node.name, f"new_{node.name}")
                start = "\n".join(changed.splitlines()[:3])
                edited.append(f"{function}\n\n\n{start}\n")
    return edited


def _records() -> Iterator[tuple[str, str]]:
    rng = np.random.default_rng(0)
    names = ("alice", "bob", "carol", "dave", "erin", "frank")
    for index in counting(1):
        rows = [
            {"id": int(rng.integers(100)), "name": str(rng.choice(names)), "active": True}
            for _ in range(5)
        ]
        text = json.dumps(rows, indent=4).removesuffix("\n]") + ',\n    {\n        "id":'
        yield f"records {index}", text


def _each_file_in_turn(cut: Callable[[str], list[str]]) -> Iterator[tuple[str, str]]:
    """The first piece cut from every file, then the second of those that have one, and so on."""
    texts = zip_longest(*map(cut, _held_out().values()))
    for place, row in enumerate(texts, 1):
        for file, text in zip(_held_out(), row, strict=True):
            if text is not None:
                yield f"{file} {place}", text


_TEXTS: dict[str, Callable[[], Iterator[tuple[str, str]]]] = {
    "code": _code,
    "editing": lambda: _each_file_in_turn(_edited),
    "json": _records,
}
