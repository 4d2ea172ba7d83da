"""The `outrider` command: one file a subcommand, imported when it is called.

Neither importing this package nor asking for help loads a framework.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module

from .. import __version__
from ..errors import OutriderError
from .ending import Ending
from .parser import Parser, one_line

COMMANDS = {
    "generate": "continue a prompt, and show how many tokens came from the draft",
    "demo": "decode the same prompts plainly and speculatively, and compare the speed",
    "bench": "measure what speculation is worth, beside plain decoding and other systems",
    "tune": "find the fastest settings for a pair and its prompts, or that plain decoding is",
    "report": "turn a trace or a benchmark's result into a table, plots and a page",
    "certify": "prove that the output has the target's distribution, and that the proof can fail",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: the arguments after the program's name; None takes the process's own.

    Returns:
        The exit status: 0, 1 if a certificate fails, 2 after an error, 130 after an interrupt,
        143 after SIGTERM where that is an interrupt.

    Raises:
        SystemExit: a flag is wrong (status 2), or help or the version was asked for (status 0).
    """
    args = list(sys.argv[1:] if argv is None else argv)
    options = _parser(args).parse(args)
    try:
        status: int = options.run(options) or 0
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read the output has gone; nothing is left to say, at exit neither.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (OutriderError, OSError) as error:
        return _fail(one_line(str(error)), 2, options.debug)
    except KeyboardInterrupt as interrupt:
        ending = Ending(type(interrupt))
        return _fail(str(interrupt) or ending.told, ending.status, options.debug)
    return status


def _parser(args: list[str]) -> Parser:
    parser = Parser(
        prog="outrider",
        description="Speculative decoding whose output has exactly the target model's distribution.",
    )
    parser.add_argument("--version", action="version", version=f"outrider {__version__}")
    commands = parser.add_subparsers(
        title="commands", dest="command", metavar="COMMAND", required=True
    )
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=f"{summary.capitalize()}.")
        if args[:1] == [name]:
            import_module(f".{name}", __name__).configure(command)
    return parser


def _fail(message: str, status: int, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    print(f"outrider: error: {message}", file=sys.stderr)
    return status
