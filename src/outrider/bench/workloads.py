"""Built-in prompts: kinds on which drafts do well, and one on which they fail."""

from __future__ import annotations

import ast
import json
import re
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from itertools import count as counting
from itertools import islice, zip_longest
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np

import outrider_demo as demo

from ..errors import InvalidConfigError
from .prompt_files import chat_ids
from .records import Prompt, Workload

_FULL = 2000
"""Characters of a file that a prompt is cut from; files are longer than that."""

_TOKENS = 150
"""Of a prompt that could be of any length."""

_STEP = 650
"""Characters between the starts of two passages of a file, at least."""

_SYSTEM = "You are a helpful assistant. Answer briefly, and show code where it helps."


def built_in(kind: str, tokenizer: Any, vocab_size: int, count: int) -> Workload:
    """Make prompts of one kind; the same arguments give the same prompts.

    - code: the first 150 tokens of Python files that the demo pair was not trained on, then of
      passages further on in them;
    - editing: a function or method of such a file, then its first lines again with a name changed;
    - json: records of one form, of which the next is wanted;
    - chat: a conversation, written by the tokenizer's chat template if it has one;
    - random: 150 tokens drawn uniformly, after which nothing can be foreseen.

    The files are those of Python's own library, so they change with its version.

    Raises:
        InvalidConfigError: there are fewer than `count` prompts of the kind.
    """
    prompts: Iterator[Prompt]
    if kind == "random":
        prompts = _random(vocab_size)
    elif kind == "chat":
        prompts = _chats(tokenizer)
    else:
        most = _TOKENS if kind == "code" else None
        prompts = (
            Prompt(tuple(tokenizer.encode(text)[:most]), name) for name, text in _TEXTS[kind]()
        )
    found = tuple(islice(prompts, count))
    if len(found) < count:
        expected = f"at most {len(found)}, which is how many prompts {kind} has here"
        raise InvalidConfigError("prompts_per_workload", count, expected)
    return Workload(kind, found)


def mixed(tokenizer: Any, vocab_size: int, count: int) -> Workload:
    """Make prompts of several kinds, one of each in turn."""
    kinds = ("editing", "code", "json")
    each = [
        [replace(p, kind=kind) for p in built_in(kind, tokenizer, vocab_size, count).prompts]
        for kind in kinds
    ]
    return Workload("built-in", tuple(p for row in zip(*each, strict=True) for p in row)[:count])


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
        yield Prompt(tuple(rng.integers(1, vocab_size, _TOKENS).tolist()), f"draw {index}")


def _chats(tokenizer: Any) -> Iterator[Prompt]:
    file = Path(__file__).with_name("conversations.json")
    for index, turns in enumerate(json.loads(file.read_text(encoding="utf-8")), 1):
        roles = ("system", "user", "assistant", "user")
        messages = [
            {"role": role, "content": content}
            for role, content in zip(roles, (_SYSTEM, *turns), strict=True)
        ]
        yield Prompt(tuple(chat_ids(messages, tokenizer)), f"conversation {index}")


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
