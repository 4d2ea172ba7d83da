"""Prompts to measure on: kinds that come built in, or those of a file."""

from __future__ import annotations

import ast
import json
import re
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from itertools import count as counting
from itertools import islice
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np

import outrider_demo as demo

from ..errors import InvalidConfigError
from .conversations import CONVERSATIONS
from .records import Prompt, Workload
from .rows import FORMATS, BadRowError, chat_ids, prompt_of

NAMES = ("code", "editing", "json", "quote", "chat", "random")
"""The kinds that `built_in` makes."""

Lines = Sequence[tuple[str, bytes]]
"""Lines of a file, each with its place in words."""

_BEGINNING = 2000
"""Characters of a file that a prompt is cut from; files are at least that long."""

_STEP = 650
"""Characters between two parts of a file at least."""


def built_in(
    names: Sequence[str],
    tokenizer: Any,
    vocab_size: int,
    count: int,
    prompt_tokens: int = 150,
) -> tuple[Workload, ...]:
    """Prompts of kinds on which drafts do well, and of one on which they fail.

    - code: the beginnings of Python files that the demo pair was not trained on, then parts further
      on in them;
    - editing: a function or method of such a file, then its first lines again with a name changed;
    - json: records of one form, of which the next is wanted;
    - quote: a passage of documentation, then a summary that begins to quote it;
    - chat: a conversation, written by the tokenizer's chat template if it has one;
    - random: tokens drawn evenly, after which nothing can be foreseen.

    The same arguments give the same prompts, whichever kinds are asked for beside them. The files
    are those of Python's own library, so they change with its version.

    Args:
        names: kinds, of `NAMES`.
        tokenizer: of the pair.
        vocab_size: the target's V.
        count: prompts of each kind.
        prompt_tokens: of a prompt of "code" and "random"; those of the others end where they must.

    Raises:
        InvalidConfigError: a kind is not known, or has fewer than `count` prompts.
    """
    for name, value in (("count", count), ("prompt_tokens", prompt_tokens)):
        if not isinstance(value, int) or value < 1:
            raise InvalidConfigError(name, value, "an integer >= 1")
    made = []
    for kind in names:
        if kind not in NAMES:
            raise InvalidConfigError("workloads", kind, f"some of {', '.join(NAMES)}")
        prompts: Iterator[Prompt]
        if kind == "random":
            prompts = _random(vocab_size, prompt_tokens)
        elif kind == "chat":
            prompts = _chats(tokenizer)
        else:
            most = prompt_tokens if kind == "code" else None
            prompts = (
                Prompt(tuple(tokenizer.encode(text)[:most]), name) for name, text in _TEXTS[kind]()
            )
        found = tuple(islice(prompts, count))
        if len(found) < count:
            raise InvalidConfigError(
                "count", count, f"at most {len(found)}, which is how many prompts {kind} has here"
            )
        made.append(Workload(kind, found))
    return tuple(made)


def read(path: str | Path, tokenizer: Any, lines: Lines | None = None) -> Workload:
    """The prompts of a JSONL file, one a line; empty lines mean nothing.

    Three formats are read, even mixed: {"prompt": text or token ids}, with "max_tokens" and the
    "prediction" of its output if wanted; Spec-Bench's {"question_id", "category", "turns"}, the
    first turn alone; and OpenAI's batch requests {"custom_id", "body"}, with a prompt or messages
    in the body, and a prediction's content. Turns and messages are
    written by the tokenizer's chat template; without one their contents stand alone, with empty
    lines between them. A row that cannot be used is skipped, and named in `Workload.skipped`.

    Args:
        path: of the file, UTF-8.
        tokenizer: of the pair, as transformers has them.
        lines: what `lines_of` has read of it; a pipe can be read but once.

    Raises:
        InvalidConfigError: the file cannot be read, is empty, or no row of it can be used.
    """
    shown = str(path)
    prompts, skipped = [], []
    for name, line in lines_of(path) if lines is None else lines:
        try:
            prompts.append(prompt_of(line, name, tokenizer))
        except BadRowError as error:
            skipped.append(f"{name}: {error}")
    if not prompts:
        more = f" (and {len(skipped) - 1} more rows are of no use)" if len(skipped) > 1 else ""
        raise InvalidConfigError(
            "prompts", shown, FORMATS, given=f"{shown} has no prompt: {skipped[0]}{more}"
        )
    return Workload(Path(path).stem, tuple(prompts), tuple(skipped))


def lines_of(path: str | Path) -> Lines:
    """The lines of a file that are not empty, each with its place: what no tokenizer is needed for.

    Args:
        path: of the file.

    Raises:
        InvalidConfigError: the file cannot be read, or has no such line.
    """
    shown = str(path)
    try:
        lines = Path(path).read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InvalidConfigError("prompts", shown, f"a readable JSONL file ({reason})") from error
    found = [(f"line {number}", line) for number, line in enumerate(lines, 1) if line.strip()]
    if not found:
        given = f"{shown} has no prompt: line 1 and what follows is empty"
        raise InvalidConfigError("prompts", shown, FORMATS, given=given)
    return found


def _held_out() -> dict[str, str]:
    """Files by name, the demo pair's held-out ones, long enough that every prompt is full."""
    library = Path(sysconfig.get_path("stdlib"))
    names = json.loads((Path(demo.__file__).parent / "held_out.json").read_text())
    texts = {
        name: (library / name).read_text(encoding="utf-8")
        for name in names
        if (library / name).is_file()
    }
    return {name: text for name, text in texts.items() if len(text) > _BEGINNING}


def _random(vocab_size: int, length: int) -> Iterator[Prompt]:
    rng = np.random.default_rng(0)
    for index in counting(1):
        yield Prompt(tuple(rng.integers(1, vocab_size, length).tolist()), f"draw {index}")


def _chats(tokenizer: Any) -> Iterator[Prompt]:
    for index, messages in enumerate(CONVERSATIONS, 1):
        yield Prompt(tuple(chat_ids(messages, tokenizer)), f"conversation {index}")


def _code() -> Iterator[tuple[str, str]]:
    texts = _held_out()
    for file, text in texts.items():
        yield file, text[:_BEGINNING]
    yield from _in_turn({f"{file} passage": _passages(text) for file, text in texts.items()})


def _passages(text: str) -> list[str]:
    """Parts of a file that begin after two empty lines, each at least a step beyond the last."""
    passages, last = list[str](), 0
    for found in re.finditer(r"\n\n\n(?=\S)", text):
        place = found.end()
        if last + _STEP <= place <= len(text) - _BEGINNING:
            passages.append(text[place : place + _BEGINNING])
            last = place
    return passages


def _editing() -> Iterator[tuple[str, str]]:
    """Functions of 8 to 25 lines, each followed by its start under another name; then methods."""
    texts = _held_out()
    yield from _in_turn({file: _edited(_functions(text)) for file, text in texts.items()})
    yield from _in_turn({f"{file} method": _edited(_methods(text)) for file, text in texts.items()})


def _functions(text: str) -> list[str]:
    return ["def " + part.split("\n\n\n")[0] for part in text.split("\ndef ")[1:]]


def _methods(text: str) -> list[str]:
    lines = text.split("\n")
    classes = (node for node in ast.parse(text).body if isinstance(node, ast.ClassDef))
    methods = (node for kind in classes for node in kind.body if isinstance(node, ast.FunctionDef))
    return [dedent("\n".join(lines[node.lineno - 1 : node.end_lineno])) for node in methods]


def _edited(functions: Sequence[str]) -> list[str]:
    edited = []
    for function in functions:
        if 8 <= function.count("\n") <= 25:
            name = function.removeprefix("def ").split("(")[0]
            changed = function.replace(name, f"new_{name}")
            start = "\n".join(changed.split("\n")[:3])
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


def _quotes() -> Iterator[tuple[str, str]]:
    """Docstrings of 60 to 200 words, each followed by the start of a summary that quotes it."""
    yield from _in_turn({file: _quoting(text) for file, text in _held_out().items()})


def _quoting(text: str) -> list[str]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    parts = (node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds))
    passages = (ast.get_docstring(part) or "" for part in parts)
    return [
        f'{passage}\n\nIn short, and in its own words: "{" ".join(passage.split()[:4])}'
        for passage in passages
        if 60 <= len(passage.split()) <= 200
    ]


def _in_turn(found: dict[str, list[str]]) -> Iterator[tuple[str, str]]:
    """The first text of every file, then the second of those that have one, and so on."""
    for place in range(max(map(len, found.values()), default=0)):
        for file, texts in found.items():
            if place < len(texts):
                yield f"{file} {place + 1}", texts[place]


_TEXTS: dict[str, Callable[[], Iterator[tuple[str, str]]]] = {
    "code": _code,
    "editing": _editing,
    "json": _records,
    "quote": _quotes,
}
"""Names and texts of prompts, as many as there are."""
