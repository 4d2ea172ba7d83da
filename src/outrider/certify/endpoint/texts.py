"""Texts that were asked for, kept in a file, so that a run that was broken off goes on."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

from ...errors import InvalidConfigError
from .client import Endpoint
from .records import Question, Text, Tokens


@dataclass
class Texts:
    """Asks a server, or reads what it answered before.

    Args:
        endpoint: connected.
        path: of the file, a line of JSON for each answer; None keeps nothing.
        asked: what else has to be as it was, as JSON takes it: who looks at a part of the texts may
            not choose afterwards by what they are compared.

    Raises:
        InvalidConfigError: the file is of another server, model or plan, or no such file.
    """

    endpoint: Endpoint
    path: Path | None = None
    asked: Any = None
    _known: dict[tuple[str, str, int, Tokens], list[Text]] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        if self.path is None:
            return
        head = {"endpoint": self.endpoint.url, "model": self.endpoint.model, "asked": self.asked}
        head = json.loads(json.dumps(head))
        if not self.path.exists():
            self.path.write_text(json.dumps(head) + "\n", encoding="utf-8")
            return
        first, *lines = self.path.read_text(encoding="utf-8").splitlines() or [""]
        try:
            known = [json.loads(line) for line in lines if _whole(line)]
            if json.loads(first) != head:
                raise ValueError
        except ValueError:
            expected = (
                f"another folder: its texts are not of {head['model']} at {head['endpoint']}, or "
                "not by the same plan and reference"
            )
            raise InvalidConfigError("--out", str(self.path.parent), expected) from None
        for each in known:
            texts = [_text(text) for text in each["texts"]]
            key = each["question"], each["params"], each["number"], tuple(each["prompt"])
            self._known[key] = texts

    def ask(self, question: Question, number: int, prompt: Tokens) -> list[Text]:
        """Return the texts of a request; see `Endpoint.complete`."""
        params = repr(question.params)
        known = self._known.get((question.name, params, number, prompt))
        if known is not None:
            return known
        texts = self.endpoint.complete(prompt, question.params)
        if self.path is not None:
            line = {"question": question.name, "params": params, "number": number, "prompt": prompt}
            found = json.dumps({**line, "texts": [asdict(text) for text in texts]})
            with self._lock, self.path.open("a", encoding="utf-8") as file:
                file.write("\n" + found + "\n")
        return texts


def _whole(line: str) -> bool:
    """Say whether a line was written to its end: a run may have been broken off in it."""
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _text(given: dict[str, Any]) -> Text:
    tuples = {name: tuple(given[name]) for name in ("prompt", "tokens")}
    return Text(**{**given, **tuples})
