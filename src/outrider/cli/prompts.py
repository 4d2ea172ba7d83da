"""Where a prompt comes from: a flag, a file or standard input. It is taken as it is."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

from ..errors import EmptyPrefixError, InvalidConfigError


def given_prompt(args: Namespace) -> str | None:
    """The prompt of `-p` or `-f`, or None if neither was given.

    Raises:
        InvalidConfigError: the prompt cannot be read, or is not UTF-8 text.
        EmptyPrefixError: the prompt is empty.
    """
    if args.file is not None:
        return _checked(_file(args.file), f"the file {args.file!r}")
    if args.prompt == "-":
        return _standard_input()
    if args.prompt is not None:
        return _checked(args.prompt, f"the prompt {args.prompt[:40]!r}")
    return None


def given_or_piped_prompt(args: Namespace) -> str:
    """The prompt of `-p` or `-f`, or else what is piped into standard input.

    Raises:
        InvalidConfigError: there is no prompt, it cannot be read, or it is not UTF-8 text.
        EmptyPrefixError: the prompt is empty.
    """
    prompt = given_prompt(args)
    if prompt is not None:
        return prompt
    if sys.stdin.isatty():
        raise EmptyPrefixError("no prompt was given; use -p TEXT or -f PATH, or pipe text in")
    return _standard_input()


def _file(path: str) -> str:
    try:
        return Path(path).read_bytes().decode()
    except OSError as error:
        reason = error.strerror or type(error).__name__
    except UnicodeDecodeError:
        reason = "it is not UTF-8 text"
    raise InvalidConfigError("--file", path, f"a readable UTF-8 text file ({reason})")


def _standard_input() -> str:
    try:
        text = sys.stdin.read()
    except UnicodeDecodeError as error:
        raise InvalidConfigError("--prompt", "-", "UTF-8 text on standard input") from error
    return _checked(text, "standard input")


def _checked(text: str, source: str) -> str:
    if not text:
        raise EmptyPrefixError(f"{source} is empty; give some text to continue")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidConfigError("--prompt", f"{text[:40]}...", f"{source} in UTF-8") from error
    return text
