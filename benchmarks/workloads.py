"""Prompts for the demo pair, of kinds on which drafts do well, and one on which they fail."""

from __future__ import annotations

import json
import sysconfig
from pathlib import Path

import numpy as np

from outrider.models import demo
from outrider.protocols import Tokenizer

PROMPT_TOKENS = 150


def workloads(tokenizer: Tokenizer, count: int) -> dict[str, list[list[int]]]:
    """`count` prompts of each kind, as token ids.

    - code: the beginnings of files that neither model was trained on;
    - editing: a function of such a file, then its first lines again with a name changed;
    - json: records of one form, of which the next is wanted;
    - random: tokens drawn evenly, after which nothing can be foreseen.
    """
    texts = _held_out()[: 4 * count]
    functions = [found for text in texts for found in _functions(text)]
    rng = np.random.default_rng(0)
    return {
        "code": [tokenizer.encode(text)[:PROMPT_TOKENS] for text in texts[:count]],
        "editing": [tokenizer.encode(_edited(text)) for text in functions[:count]],
        "json": [tokenizer.encode(_records(rng)) for _ in range(count)],
        "random": rng.integers(1, 4096, (count, PROMPT_TOKENS)).tolist(),
    }


def _held_out() -> list[str]:
    library = Path(sysconfig.get_path("stdlib"))
    names = json.loads((Path(demo.__file__).parent / "held_out.json").read_text())
    found = [library / name for name in names]
    texts = [path.read_text() for path in found if path.is_file()]
    # Long ones first in their listed order, so that every prompt is full.
    return [text for text in texts if len(text) > 3000]


def _functions(text: str) -> list[str]:
    """Top-level functions of 8 to 25 lines."""
    parts = text.split("\ndef ")[1:]
    bodies = ["def " + part.split("\n\n\n")[0] for part in parts]
    return [body for body in bodies if 8 <= body.count("\n") <= 25]


def _edited(function: str) -> str:
    """A function, then the start of it again under another name."""
    name = function.removeprefix("def ").split("(")[0]
    changed = function.replace(name, f"new_{name}")
    start = "\n".join(changed.split("\n")[:3])
    return f"{function}\n\n\n{start}\n"


def _records(rng: np.random.Generator) -> str:
    names = ("alice", "bob", "carol", "dave", "erin", "frank")
    rows = [
        {"id": int(rng.integers(100)), "name": str(rng.choice(names)), "active": True}
        for _ in range(5)
    ]
    return json.dumps(rows, indent=4).removesuffix("\n]") + ',\n    {\n        "id":'
