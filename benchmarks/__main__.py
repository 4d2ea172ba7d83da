"""`python -m benchmarks [name ...] [flag ...]`: time what the project claims."""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.logging import RichHandler
from transformers.utils import logging as transformers_logging

from outrider.errors import InvalidConfigError

from .regimes import ALL, Regimes
from .report import Report, environment, log

_PARTS = {
    "overhead": ("overhead", 150),
    "drafting": ("drafting", 150),
    "verification": ("verification", 100),
    "parameters": ("parameters", 25),
    "speedup": ("speedup", 4),
    "losing": ("losing", 4),
    "depth": ("depth", 4),
    "import": ("imports", 5),
    "suffix": ("suffix", 5),
}
"""Each benchmark's module, and how many rounds it makes unless told otherwise."""

_OF_REGIMES = ("speedup", "losing", "depth")
"""Those that measure several workloads, temperatures and sizes of batches."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmarks named, print a table for each, and end with one line of JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(_PARTS)}; all")
    parser.add_argument("--rounds", type=int, help="timed repetitions, in place of each default")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the figures here as well")
    regimes = parser.add_argument_group(
        "regimes", f"Of {', '.join(_OF_REGIMES)}: those that are measured; all by default."
    )
    for name, of in (("workloads", str), ("temps", float), ("batches", int)):
        regimes.add_argument(f"--{name}", type=_listed(of), default=(), metavar="A,B")
    asked = parser.parse_args(argv)
    unknown = [name for name in asked.names if name not in _PARTS]
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(_PARTS)}")
    if asked.rounds is not None and asked.rounds < 1:
        parser.error(f"--rounds {asked.rounds}: expected an integer >= 1")
    chosen = Regimes(asked.workloads, asked.temps, asked.batches)
    others = [name for name in asked.names or _PARTS if name not in _OF_REGIMES]
    if others and chosen != ALL:
        parser.error(f"{others[0]} has no regimes to choose from; {', '.join(_OF_REGIMES)} have")

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    console = Console(width=120, highlight=False)
    progress = Console(stderr=True, highlight=False)
    handler = RichHandler(console=progress, show_level=False, show_path=False)
    logging.basicConfig(format="%(message)s", handlers=[handler])
    log.setLevel(logging.INFO)
    figures: dict[str, object] = {"environment": environment()}
    for name in asked.names or _PARTS:
        module, rounds = _PARTS[name]
        more = (chosen,) if name in _OF_REGIMES else ()
        run: Callable[..., Report] = import_module(f".{module}", __package__).run
        with progress.status(f"timing: {name}"):
            try:
                report = run(asked.rounds or rounds, *more)
            except InvalidConfigError as error:
                parser.error(str(error))
        figures[report.name] = report.figures
        console.print(report.table)
        console.print(f"[dim]{report.regime}[/dim]\n", soft_wrap=True)
    console.print(
        ", ".join(f"{key} {value}" for key, value in environment().items()), soft_wrap=True
    )
    line = json.dumps(figures)
    if asked.json is not None:
        asked.json.write_text(line + "\n")
    print(line)


def _listed(of: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    def convert(text: str) -> tuple[Any, ...]:
        try:
            return tuple(map(of, text.split(",")))
        except ValueError as error:
            wanted = f"{of.__name__}s with commas between"
            message = f"{text!r} is not allowed: expected {wanted}"
            raise argparse.ArgumentTypeError(message) from error

    return convert


if __name__ == "__main__":
    main()
