"""The `outrider` command: one file a subcommand, imported when it is called.

Neither importing this package, nor asking for help, nor a bad flag loads a framework.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

from cyclopts import App, CycloptsError, Parameter, UnusedCliTokensError

from .. import __version__
from ..errors import InvalidConfigError, OutriderError
from .flags import from_file, from_json, whole_numbers
from .signals import Terminated

COMMANDS = {
    "generate": "Continue a prompt, and show how many tokens came from the draft.",
    "demo": "Race plain against speculative decoding on the same prompts.",
    "bench": "Measure speculation beside plain decoding and other systems.",
    "tune": "Say whether speculation pays on a model, and with which settings.",
    "certify": "Prove that the output has the target's distribution.",
    "serve": "Serve an OpenAI-compatible API, and a page that shows speculation.",
    "run-batch": "Answer a file of requests in OpenAI's batch format.",
    "chat": "Talk to a model in the terminal.",
    "inspect": "Say what a draft head is, and what looks wrong with it.",
    "report": "Turn a trace into a summary and a page with pictures.",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: the arguments after the program's name; None takes the process's own.

    Returns:
        The exit status: 0; 1 if a certificate fails or the reader of the output has gone; 2 after
        an error; 130 after an interrupt and 143 after SIGTERM.
    """
    args = list(sys.argv[1:] if argv is None else argv)
    # For bars that transformers does not ask about; tqdm reads it once, when it is imported.
    os.environ.setdefault("TQDM_DISABLE", "1")
    try:
        try:
            command, bound, _ = _app().parse_args(args, exit_on_error=False, print_error=False)
        except (CycloptsError, InvalidConfigError) as error:
            known = args[0] if args and args[0] in COMMANDS else ""
            return _fail(f"{_usage(error)}; see '{f'outrider {known}'.strip()} --help'", 2, args)
        status: int = command(*bound.args, **bound.kwargs) or 0
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of the output has gone; the flush at exit must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (OutriderError, OSError) as error:
        return _fail(str(error), 2, args)
    except Terminated as interrupt:
        return _fail(str(interrupt) or "terminated", 143, args)
    except KeyboardInterrupt as interrupt:
        return _fail(str(interrupt) or "interrupted", 130, args)
    return status


def _app() -> App:
    app = App(
        name="outrider",
        help="Speculative decoding whose output has exactly the target model's distribution.",
        version=f"outrider {__version__}",
        default_parameter=Parameter(negative=(), show_default=_default),
        config=(from_json, from_file, whole_numbers),
        help_format="markdown",
    )
    for name, summary in COMMANDS.items():
        app.command(f"{__name__}.{name.replace('-', '_')}:app", name=name, help=summary)
    return app


def _default(value: object) -> object:
    """Show a default as it is written on the command line; nothing for off and for none."""
    if isinstance(value, tuple):
        return ",".join(str(_default(item)) for item in value) or None
    if isinstance(value, float):
        return f"{value:g}"
    return None if value is False else value


def _usage(error: CycloptsError | InvalidConfigError) -> str:
    """Say what is wrong with a command: a field of a record goes by the name of its flag."""
    if isinstance(error.__cause__, InvalidConfigError):
        error = error.__cause__
    if isinstance(error, UnusedCliTokensError):
        prompted = not {"generate", "demo"}.isdisjoint(error.command_chain or ())
        remedy = "; a prompt goes with -p or --prompt" * prompted
        return f"unexpected {' '.join(error.unused_tokens or ())!r}{remedy}"
    if isinstance(error, CycloptsError):
        return str(error).removesuffix(".")
    name = error.field.removeprefix("structured_output.").removeprefix("--").replace("_", "-")
    return str(error).replace(f"{error.field}=", f"--{name} ", 1)


def _fail(message: str, status: int, args: Sequence[str]) -> int:
    if "--debug" in args:
        traceback.print_exc()
    print(f"outrider: error: {' '.join(message.split())}", file=sys.stderr)
    return status
