"""A tiny pair of models and a tokenizer of characters, for tests of benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from outrider import ModelDrafter, Pair, TransformersModel
from outrider.bench.records import Candidate, Measurement, Prompt, Workload
from outrider.bench.speedup import Speedup

from .families import VOCAB, random_model, resembling

MODEL = Candidate("draft_model", "block", 3)
PROMPTS = tuple(Prompt(tuple(range(first, first + 9)), f"prompt {first}") for first in (1, 20, 40))
WORKLOAD = Workload("kind", PROMPTS)


class Characters:
    """A tokenizer with a token for each character, without a chat template."""

    chat_template: str | None = None

    def __len__(self) -> int:
        return VOCAB

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [0] * add_special_tokens + [ord(character) % VOCAB for character in text]


class Talking(Characters):
    """One with a chat template."""

    chat_template = "{{ messages }}"

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return list(map(ord, text))

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(map(chr, token_ids))

    def apply_chat_template(self, messages: list[dict[str, str]], **_: bool) -> str:
        return "".join(f"<{each['role']}>{each['content']}" for each in messages) + "<assistant>"


@cache
def _models() -> tuple[Any, Any]:
    target = random_model("llama")
    return target, resembling(target)


def pair(*, draft: bool = True) -> Pair:
    """A target with random weights, and a draft that mostly agrees with it."""
    target, model = _models()
    drafter = ModelDrafter(TransformersModel(model, max_sequences=2)) if draft else None
    return Pair(TransformersModel(target, max_sequences=2), drafter, Characters())


def load_pair(*_: object, **__: object) -> Pair:
    """Stands in for `outrider.load`."""
    return pair()


def prompt_file(folder: Path, count: int = 3) -> Path:
    """A file of short prompts."""
    path = folder / "some.jsonl"
    rows = [f'{{"prompt": [{", ".join(map(str, p.token_ids))}]}}' for p in PROMPTS]
    path.write_text("\n".join(rows[:count]))
    return path


def measured(
    candidate: Candidate = MODEL, speedup: float | None = 2.0, margin: float = 1.1, **fields: Any
) -> Measurement:
    """A measurement of two stretches with an interval of `margin` around its speedup."""
    given: dict[str, Any] = {
        "candidate": candidate,
        "workload": "kind",
        "temperature": 0.0,
        "batch": 1,
        "seconds": (1.0, 2.0),
        "tokens": (10, 10),
        "speedup": speedup and Speedup(speedup, speedup / margin, speedup * margin),
    }
    return Measurement(**given | fields)
