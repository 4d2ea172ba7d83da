"""Settings in a TOML file, named as the long flags are; the command line overrides them."""

from __future__ import annotations

import json
import os
import tempfile
import tomllib
from argparse import ArgumentParser
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ..errors import InvalidConfigError


def add_config_flag(parser: ArgumentParser, leaves_out: Collection[str] = ()) -> None:
    """Where settings come from that the command line does not give.

    Args:
        parser: of the subcommand.
        leaves_out: settings that mean nothing to it, though other subcommands know them.
    """
    parser.set_defaults(config_leaves_out=frozenset(leaves_out))
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="take settings from this TOML file, such as `outrider tune --save` writes; the flags "
        "of the command line override them",
    )


def arguments(path: str, leaves_out: Collection[str] = ()) -> list[str]:
    """The file's settings as arguments of the command line.

    `name = value` is `--name=value`; a list is its items with commas between them; true is the flag
    alone, and false nothing. An underscore in a name is a hyphen.

    Raises:
        InvalidConfigError: the file cannot be read, is no TOML, or has tables or dates.
    """
    try:
        settings = tomllib.loads(Path(path).read_bytes().decode())
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InvalidConfigError("--config", path, f"a readable file ({reason})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidConfigError("--config", path, f"a TOML file ({error})") from error
    found = []
    for key, value in settings.items():
        name = key.replace("_", "-")
        if name in leaves_out or value is False:
            continue
        if value is True:
            found.append(f"--{name}")
            continue
        items = value if isinstance(value, list) else [value]
        if not all(isinstance(item, str | int | float) for item in items) or value == []:
            raise InvalidConfigError(
                f"{path}: {key}", value, "a text, a number, true, false or a list of those"
            )
        found.append(f"--{name}={','.join(map(str, items))}")
    return found


def written(settings: Mapping[str, Any], comments: Collection[str] = ()) -> str:
    """Settings as TOML, under lines of comment."""
    lines = [f"# {' '.join(comment.split())}" for comment in comments]
    return "\n".join(
        [*lines, *(f"{name} = {_value(value)}" for name, value in settings.items()), ""]
    )


def write(path: str | Path, data: bytes) -> None:
    """Make a file, at once and as a whole: a reader sees the old one or the new one.

    An interrupt, or a full disk, leaves nothing beside them.
    """
    place = Path(path)
    with tempfile.NamedTemporaryFile(
        dir=place.parent, prefix=f".{place.name}.", delete=False
    ) as file:
        try:
            file.write(data)
            file.flush()
            os.chmod(file.name, 0o644)
            os.replace(file.name, place)
        except BaseException:
            os.unlink(file.name)
            raise


def check_writable(flag: str, path: str) -> None:
    """Refuse a path that no file can be written to, before anything is measured.

    Raises:
        InvalidConfigError: it names a folder, or is in one that cannot be written to.
    """
    place = Path(path)
    if place.is_dir():
        raise InvalidConfigError(flag, path, "the path of a file, and this is a folder")
    check_folder(flag, path, place.parent)


def check_folder(flag: str, path: str, folder: Path) -> None:
    """Likewise, a folder that no file can be written to."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise InvalidConfigError(flag, path, f"a path that can be written to ({reason})") from error


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    # JSON's texts and numbers are TOML's.
    return json.dumps(value, ensure_ascii=False)
