"""Built-in prompts: kinds on which drafts do well, and one on which they fail."""

from __future__ import annotations

import json
import re
import sysconfig
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import count as counting
from itertools import islice, zip_longest
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np

import outrider_demo as demo

from ..errors import InvalidConfigError
from .prompt_files import chat_ids, has_template
from .records import Prompt, Workload

_CHARACTERS = 500
"""Of code that is to be gone on with."""

_TOKENS = 150
"""Of a random prompt, and of code at most."""

_REQUEST = "{}\n\n```\n{}\n```"


def mixed(kinds: Sequence[str] | None, tokenizer: Any, vocab_size: int, count: int) -> Workload:
    """Make prompts of several kinds in turn; the same arguments give the same prompts.

    None stands for editing, code and json, and for chat where the tokenizer has a chat template.

    - code: how parts of Python files begin that the demo pair was not trained on;
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
    made = [islice(_prompts(kind, tokenizer, vocab_size), count) for kind in kinds]
    found = in_turn([each for own in made for each in own], count)
    name = ", ".join(kinds)
    if len(found) < count:
        expected = f"at most {len(found)}, which is how many prompts {name} has here"
        raise InvalidConfigError("prompts_per_workload", count, expected)
    return Workload(name, found)


def in_turn(prompts: Sequence[Prompt], count: int) -> tuple[Prompt, ...]:
    """Take so many prompts, one of each kind in turn."""
    kinds: dict[str, list[Prompt]] = {}
    for each in prompts:
        kinds.setdefault(each.kind, []).append(each)
    rows = zip_longest(*kinds.values())
    return tuple(islice((each for row in rows for each in row if each is not None), count))


def _prompts(kind: str, tokenizer: Any, vocab_size: int) -> Iterator[Prompt]:
    if kind == "random":
        rng = np.random.default_rng(0)
        for index in counting(1):
            ids = rng.integers(1, vocab_size, _TOKENS).tolist()
            yield Prompt(tuple(ids), f"draw {index}", kind=kind)
    elif kind == "chat":
        file = Path(__file__).with_name("conversations.json")
        for index, turns in enumerate(json.loads(file.read_text(encoding="utf-8")), 1):
            roles = zip(("user", "assistant", "user"), turns, strict=True)
            messages = [{"role": role, "content": content} for role, content in roles]
            yield Prompt(tuple(chat_ids(messages, tokenizer)), f"conversation {index}", kind=kind)
    else:
        for name, text, request in {"code": _code, "editing": _edits, "json": _records}[kind]():
            if has_template(tokenizer):
                ids = chat_ids([{"role": "user", "content": request}], tokenizer)
            else:
                ids = tokenizer.encode(text)[: _TOKENS if kind == "code" else None]
            yield Prompt(tuple(ids), name, kind=kind)


def _code() -> Iterator[tuple[str, str, str]]:
    """Name beginnings of code; each as a text, and as what a user asks."""
    asked = "Here is how a Python file begins. Write the next fifty lines, as code alone."
    for name, part in _parts():
        if len(part) > _CHARACTERS:
            text = part[:_CHARACTERS].rpartition("\n")[0]
            yield name, text, _REQUEST.format(asked, text)


def _edits() -> Iterator[tuple[str, str, str]]:
    """Name functions of 8 to 25 lines, likewise; a text goes on with the lines to be changed."""
    for name, part in _parts():
        function = dedent(part)
        found = re.match(r"def (\w+)", function)
        if found and 8 <= function.count("\n") <= 25:
            old, new = found[1], f"new_{found[1]}"
            asked = (
                f"Change the name {old} to {new} wherever it occurs in this Python function, and "
                "write out all of it again. Answer with the code alone."
            )
            start = "\n".join(function.replace(old, new).splitlines()[:3])
            yield f"{name} {old}", f"{function}\n\n\n{start}\n", _REQUEST.format(asked, function)


def _records() -> Iterator[tuple[str, str, str]]:
    """Name lists of records, likewise."""
    asked = "Here is how a list of records begins. Write the next twenty, as JSON alone."
    rng = np.random.default_rng(0)
    names = ("alice", "bob", "carol", "dave", "erin", "frank")
    for index in counting(1):
        rows = [
            {"id": int(rng.integers(100)), "name": str(rng.choice(names)), "active": True}
            for _ in range(5)
        ]
        text = json.dumps(rows, indent=4).removesuffix("\n]") + ',\n    {\n        "id":'
        yield f"records {index}", text, _REQUEST.format(asked, text)


@cache
def _parts() -> list[tuple[str, str]]:
    """Cut the library's files that the demo pair was not trained on at functions and methods.

    The first part of every file, then the second of those that have one, and so on.
    """
    library = Path(sysconfig.get_path("stdlib"))
    names = json.loads((Path(demo.__file__).parent / "held_out.json").read_text())
    files = {
        name: re.split(r"\n\n+(?=\S|    [@d])", (library / name).read_text(encoding="utf-8"))
        for name in names
        if (library / name).is_file()
    }
    return [
        (f"{name} {place}", part)
        for place, row in enumerate(zip_longest(*files.values()), 1)
        for name, part in zip(files, row, strict=True)
        if part is not None
    ]
