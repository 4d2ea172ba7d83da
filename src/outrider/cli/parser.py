"""The argument parser: every usage error is one line."""

from __future__ import annotations

import argparse
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import Any, NoReturn

from ..errors import InvalidConfigError
from . import config_file


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
        """The parsed arguments; unknown ones are reported with the subcommand's own help.

        Those of a `--config` file come before the others, so that the others override them.
        """
        options, unknown = self.parse_known_args(args)
        where = f"{self.prog} {options.command}"
        if unknown:
            self._refuse(f"unknown argument {unknown[0]!r}", where)
        path = vars(options).get("config")
        if path is None:
            return options
        try:
            given = config_file.arguments(path, options.config_leaves_out)
        except InvalidConfigError as error:
            self._refuse(str(error), where)
        place = list(args).index(options.command) + 1
        options, unknown = self.parse_known_args([*args[:place], *given, *args[place:]])
        if unknown:
            name = unknown[0].removeprefix("--").split("=")[0]
            self._refuse(f"{path}: unknown setting {name!r}", where)
        return options

    def error(self, message: str) -> NoReturn:
        """Print one line on stderr and exit with status 2."""
        self._refuse(message, self.prog)

    def _refuse(self, message: str, command: str) -> NoReturn:
        self.exit(2, f"outrider: error: {one_line(message)}; see '{command} --help'\n")


def one_line(message: str) -> str:
    """The message with every run of white space as one space."""
    return " ".join(message.split())
