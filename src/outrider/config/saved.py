"""Settings in a TOML file, as `outrider tune --save` writes them."""

from __future__ import annotations

import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

from ..errors import InvalidConfigError
from .params import SpeculativeConfig
from .validation import unreadable

_MODELS = ("target", "draft", "runtime", "dtype", "weights", "device")


def read_saved(path: str | Path) -> tuple[dict[str, Any], str | None, SpeculativeConfig]:
    """Read a file of settings by the names of flags, without their dashes in front.

    Returns:
        Arguments of `outrider.load`, as far as the file has them; what drafts, None if that is left
        open; and how speculation is done.

    Raises:
        InvalidConfigError: it cannot be read, is no TOML, or has a name or a value that `load` and
            `SpeculativeConfig` do not take.
    """
    expected = "a TOML file, as outrider tune --save writes it"
    try:
        given = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise unreadable("config", path, expected, error) from error
    except ValueError as error:  # of TOML, or of UTF-8
        raise InvalidConfigError("config", str(path), f"{expected} ({error})") from error
    values = {name.replace("-", "_"): value for name, value in given.items()}
    models = {name: values.pop(name) for name in _MODELS if name in values}
    method = values.pop("method", None)
    names = {item.name for item in fields(SpeculativeConfig)} - {"draft_params"}
    if unknown := sorted(set(values) - names):
        expected = f"settings of models and speculation alone in {path}"
        raise InvalidConfigError("config", unknown[0], expected)
    return models, method, SpeculativeConfig(**values)
