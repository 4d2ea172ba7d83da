"""Conversions kept on disk and found again, by keys that need not read what is converted.

What a file holds is known by its hash. It is remembered of a file by its name, inode, size and
times: only a file that is new, or was touched, is read.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_LOG = logging.getLogger(__name__)

_KEY = "written"
"""Holds the fingerprint of a conversion's other files, as they were written."""

_LARGE = 2**28
"""Bytes that take a while to hash."""


def default_folder() -> Path:
    """Return `$XDG_CACHE_HOME/outrider`, or `~/.cache/outrider`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "outrider"


def key_of(*parts: object) -> str:
    """Make a name of all that a conversion depends on: of the parts as JSON, or as text."""
    text = json.dumps(parts, default=str).encode()
    return hashlib.blake2b(text, digest_size=20).hexdigest()


def find(place: Path) -> bool:
    """Say whether a conversion is there, as it was written; one that is damaged is deleted."""
    if not place.is_dir():
        return False
    try:
        if (place / _KEY).read_text() != fingerprint(*_written(place)):
            raise ValueError("its files are not what was written")
    except (OSError, ValueError) as error:
        _LOG.warning("the conversion in %s is made anew: %s", place, error)
        shutil.rmtree(place, ignore_errors=True)
        return False
    return True


def keep(place: Path, write: Callable[[Path], object]) -> bool:
    """Keep a conversion, written under another name first, so that half of one is never found.

    Args:
        place: its folder.
        write: writes its files to the folder that it is given.

    Returns:
        Whether it is there; if not, whatever the reason is, a warning gives it.
    """
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent, ignore_cleanup_errors=True) as made:
            write(Path(made))
            (Path(made) / _KEY).write_text(fingerprint(*_written(Path(made))))
            os.replace(made, place)
    except Exception as error:
        if place.is_dir():
            return True  # another process was quicker
        # OpenVINO names no reason.
        disk = next(each for each in place.absolute().parents if each.exists())
        free = shutil.disk_usage(disk).free // 1_000_000
        _LOG.warning("the conversion is not kept in %s: %s (%d MB free)", place, error, free)
        return False
    return True


def fingerprint(*files: Path) -> str:
    """Make a key of what files hold; one that looks as it did before is not read again."""
    return key_of([(file.name, _remembered(file)) for file in files])


def _remembered(file: Path) -> str:
    """Return the hash of a file. What a crash or a full disk left of a note is no hash."""
    seen = _seen(file)
    note = default_folder() / "digests" / seen
    with suppress(OSError, ValueError):
        if re.fullmatch("[0-9a-f]{128}", said := note.read_text(encoding="ascii")):
            return said
    if file.stat().st_size >= _LARGE:
        _LOG.info("hashing %s, once", file.name)
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "blake2b").hexdigest()
    if _seen(file) == seen:  # it was left alone meanwhile
        try:
            note.parent.mkdir(parents=True, exist_ok=True)
            note.write_text(digest)
        except OSError as error:
            _LOG.info("%s is not kept: %s", note, error)
    return digest


def _written(place: Path) -> list[Path]:
    """List the files of a conversion, without its key."""
    return sorted(each for each in place.rglob("*") if each.is_file() and each.name != _KEY)


def _seen(file: Path) -> str:
    """Name a file as it looks now. Its folder may be renamed; an inode is its own."""
    now = file.stat()
    return key_of(file.name, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns)
