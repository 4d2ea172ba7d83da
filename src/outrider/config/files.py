"""Texts that a user names by their files."""

from __future__ import annotations

from pathlib import Path

from ..errors import InvalidConfigError


def unreadable(
    field: str, path: str | Path, expected: str, error: OSError | None = None
) -> InvalidConfigError:
    """Make the error of a file that cannot be read; without `error` there is none of that name."""
    why = "there is no such file"
    if error is not None and not isinstance(error, FileNotFoundError):
        why = (error.strerror or type(error).__name__).lower()
    return InvalidConfigError(field, str(path), expected, given=f"cannot read {path}: {why}")


def read_text(field: str, path: str | Path) -> str:
    """Read a UTF-8 file.

    Raises:
        InvalidConfigError: it cannot be read, or is not UTF-8.
    """
    expected = "a UTF-8 text file"
    try:
        return Path(path).read_bytes().decode()
    except OSError as error:
        raise unreadable(field, path, expected, error) from error
    except ValueError as error:
        given = f"cannot read {path}: it is not UTF-8 text"
        raise InvalidConfigError(field, str(path), expected, given=given) from error
