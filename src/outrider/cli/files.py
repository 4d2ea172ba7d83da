"""Files that commands write, checked before anything is measured."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from ..errors import InvalidConfigError


def replace_file(path: str | Path, text: str) -> None:
    """Write a file under another name first, so that the old one is kept if that fails.

    What is no ordinary file, such as a pipe, is written to.
    """
    place = Path(path)
    if place.exists() and not place.is_file():
        place.write_text(text, encoding="utf-8")
        return
    place = place.resolve()
    part = place.with_name(f".{place.name}.part")
    try:
        part.write_text(text, encoding="utf-8")
        os.replace(part, place)
    finally:
        part.unlink(missing_ok=True)


def check_file(flag: str, path: str | Path) -> None:
    """Refuse a path that no file can be written to; what is no ordinary file need be writable only.

    Raises:
        InvalidConfigError: it is a folder, read-only, or in a folder that cannot be written to.
    """
    place = Path(path)
    if place.is_dir():
        raise InvalidConfigError(flag, str(path), "the path of a file, and this is a folder")
    if place.exists() and not os.access(place, os.W_OK):
        raise InvalidConfigError(flag, str(path), "a file to write to (it is read-only)")
    if place.is_file() or not place.exists():
        _try_writing(flag, path, place.parent, "a file")


def make_folder(flag: str, path: str | Path, *, empty: bool = False) -> Path:
    """Make a folder to write to.

    Raises:
        InvalidConfigError: it cannot be written to, or has files and must be empty.
    """
    place = Path(path).expanduser()
    _try_writing(flag, path, place, "a folder")
    if empty and (held := sorted(each.name for each in place.iterdir())):
        expected = f"a new folder, or an empty one; this has {held[0]} in it: give another name"
        raise InvalidConfigError(flag, str(path), expected)
    return place


def _try_writing(flag: str, path: str | Path, folder: Path, what: str) -> None:
    try:
        if what == "a folder":
            folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        expected = f"{what} to write to ({error.strerror or type(error).__name__})"
        raise InvalidConfigError(flag, str(path), expected) from error
