"""What a model may be loaded from, and in which type: checked before a framework is loaded."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from ..errors import InvalidConfigError, ModelError, shown
from .validation import text

Dtype = Literal["auto", "float32", "float64", "bfloat16", "float16"]
RuntimeName = Literal["auto", "transformers", "openvino", "llama_cpp"]
Weights = Literal["int8", "int4"]

_LONGEST_PATH = 1000
_MAGIC = b"GGUF"


def is_gguf(source: str) -> bool:
    """Whether a path names a GGUF file."""
    return source.lower().endswith(".gguf")


def model_source(name: str, given: object) -> str:
    """Return the path or hub id of a model as transformers takes it; "demo" stays as it is.

    Raises:
        InvalidConfigError: it is neither.
        ModelError: it is a path, and there is no GGUF file and no folder with a config.json.
    """
    expected = "'demo', a path or a hub id"
    if isinstance(given, Path):
        # A `Path` is no hub id, and is to look like none.
        source = text(name, str(given.expanduser().absolute()))
    elif text(name, given, expected):
        source = os.path.expanduser(str(given))
    else:
        raise InvalidConfigError(name, given, expected)
    if source != "demo":
        _refuse_missing(source)
    return source


def _refuse_missing(source: str) -> None:
    """Refuse a path that is not there: it is no hub id, with one slash at most."""
    path = Path(source)
    if "\0" in source or len(source) > _LONGEST_PATH:
        raise ModelError(
            f"{shown(source)} of {len(source)} characters cannot be a path; expected a folder with "
            "config.json, a hub id such as 'owner/name', or 'demo'"
        )
    if path.is_file():
        if not is_gguf(source):
            raise ModelError(
                f"{source!r} is a file; expected a folder with config.json, a .gguf file, or a hub "
                "id"
            )
        with path.open("rb") as file:
            found = file.read(len(_MAGIC))
        if found != _MAGIC:
            said = f"begins with {found!r} and not with {_MAGIC!r}" if found else "is empty"
            raise ModelError(f"{source!r} {said}; expected a whole GGUF file")
        return
    if is_gguf(source):
        raise ModelError(f"there is no file {source!r}; expected an existing GGUF file")
    like_a_path = source.startswith(".") or source.endswith("/") or "\\" in source
    if not path.exists() and (path.is_absolute() or like_a_path or source.count("/") > 1):
        raise ModelError(
            f"there is no model at {source!r}; expected an existing folder with config.json, a "
            "hub id such as 'owner/name', or 'demo'"
        )
    if path.is_dir() and not (path / "config.json").is_file():
        raise ModelError(
            f"the folder {source!r} has no config.json; expected a model saved by transformers"
        )
