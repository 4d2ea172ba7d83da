"""The argument parser: every usage error is one line."""

from __future__ import annotations

import argparse
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import Any, NoReturn


class HelpFormatter(argparse.HelpFormatter):
    """Leaves the lines of a text of several as they are, and wraps one that is a single line."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" not in text:
            return super()._fill_text(text, width, indent)
        return "".join(indent + line for line in text.splitlines(keepends=True))


class Parser(ArgumentParser):
    """Parses exact flag names only, and reports a usage error in one line with status 2."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)

    def parse(self, args: Sequence[str]) -> Namespace:
        """The parsed arguments; unknown ones are reported with the subcommand's own help."""
        options, unknown = self.parse_known_args(args)
        if unknown:
            where = f"{self.prog} {options.command}"
            self._refuse(f"unknown argument {unknown[0]!r}", where)
        return options

    def error(self, message: str) -> NoReturn:
        """Print one line on stderr and exit with status 2."""
        self._refuse(message, self.prog)

    def _refuse(self, message: str, command: str) -> NoReturn:
        self.exit(2, f"outrider: error: {one_line(message)}; see '{command} --help'\n")


def one_line(message: str) -> str:
    """The message with every run of white space as one space."""
    return " ".join(message.split())
