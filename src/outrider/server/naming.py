"""What is wrong with a body, under its whole path as OpenAI writes it: `messages[0].role`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from ..errors import InvalidConfigError

_LONGEST = 200
_OBJECTS = ("model_type", "dict_type")


def refused_field(given: dict[str, Any], error: ValidationError) -> InvalidConfigError:
    """Name the first field that is wrong, or what is wrong within it.

    A field of several types has an error for each of them: the deepest one says most.

    Args:
        given: the body.
        error: what pydantic found.
    """
    found = [(_path(given, each), each) for each in error.errors(include_url=False)]
    first, _ = found[0]
    within = [pair for pair in found if pair[0][: len(first)] == first]
    path, wrong = max(within, key=lambda pair: len(pair[0]))
    name = _written(path)
    if wrong["type"] == "missing":
        return InvalidConfigError(name, None, "a value", given=f"{name} is missing")
    if wrong["type"] == "extra_forbidden":
        return InvalidConfigError(name, None, "it to be left out", given=f"{name} is not known")
    said = "a JSON object" if wrong["type"] in _OBJECTS else wrong["msg"]
    return InvalidConfigError(name, wrong["input"], said.removeprefix("Input should be "))


def _path(given: Any, error: Any) -> list[str | int]:
    """Return the keys that lead to an error; pydantic puts names of types between them."""
    path: list[str | int] = []
    for step in error["loc"]:
        inside = step in given if isinstance(given, dict) else isinstance(given, list)
        if inside and isinstance(step, str) == isinstance(given, dict):
            given = given[step]
            path.append(step)
    if error["type"] == "missing":
        path.append(error["loc"][-1])
    return path


def _written(path: Sequence[str | int]) -> str:
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    name = "".join(steps).removeprefix(".")[:_LONGEST] or "body"
    return name.encode(errors="backslashreplace").decode()  # A key may hold half a character.
