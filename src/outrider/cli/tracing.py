"""`--trace`: the rounds of a command, written as they happen."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InvalidConfigError
from .config_file import check_folder

if TYPE_CHECKING:
    from ..config.params import SpeculativeConfig
    from ..types.protocols import Drafter
    from ..types.records import RoundRecord

OnRound = Callable[["RoundRecord"], object]


def add_trace_flag(parser: ArgumentParser, rounds: str) -> None:
    """The flag; `rounds` says which rounds are written."""
    parser.add_argument_group("trace").add_argument(
        "--trace",
        metavar="PATH",
        help=f"write {rounds} to this file, a line of JSON each; `outrider report PATH` reads it",
    )


def check_trace_flag(args: Namespace) -> None:
    """Refuse a file that cannot be written, before anything is loaded.

    Raises:
        InvalidConfigError: it is a folder, its folder does not exist, or writing is not allowed.
    """
    if args.trace is None:
        return

    from ..engine.trace import is_trace

    path = Path(args.trace)
    if path.parent.is_dir() and not path.exists():
        check_folder("--trace", args.trace, path.parent)
    problem = None
    if path.is_dir():
        problem = "it is a folder"
    elif not path.parent.is_dir():
        problem = f"there is no folder {str(path.parent)!r}"
    elif path.is_file() and path.stat().st_size and not is_trace(path):
        problem = "it holds something else than a trace; name another file"
    elif not os.access(path if path.exists() else path.parent, os.W_OK):
        problem = "writing is not allowed there"
    if problem is not None:
        raise InvalidConfigError("--trace", args.trace, f"a file that can be written ({problem})")


@contextmanager
def tracing(
    args: Namespace,
    settings: dict[str, Any],
    drafter: Drafter | None,
    config: SpeculativeConfig,
) -> Iterator[OnRound | None]:
    """What a decoder is to tell its rounds while the context is open; None without the flag.

    Args:
        args: with `trace`.
        settings: of the run, as JSON takes them.
        drafter: of the decoder.
        config: of the decoder.
    """
    if args.trace is None:
        yield None
        return
    from ..engine.trace import TraceWriter
    from ..verification import Verifier

    lossy = drafter is not None and Verifier.of(config).lossy
    with TraceWriter(Path(args.trace), settings, lossy=lossy) as writer:
        yield writer.write
