"""`python -m benchmarks [NAME ...]`: measure, print a table for each, end with one line of JSON.

`tables` measures nothing: it writes docs/benchmarks and the README's table from the saved results.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from time import perf_counter
from typing import Any

from rich.console import Console
from rich.table import Table

from outrider.bench.environment import environment
from outrider.errors import OutriderError

from . import results, tables
from .report import COLUMNS, Report, Scope

NAMES = ("speedup", "losing", "depth", "overhead", "runtimes", "imports", "heads", "hybrids")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmarks named, all of them by default."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; or tables"
    )
    parser.add_argument(
        "--rounds", type=int, help="prompts of each kind, or repetitions (default: each its own)"
    )
    parser.add_argument("--tokens", type=int, default=256, help="of each text (default: 256)")
    parser.add_argument(
        "--beside", metavar="FOLDER", help="runtimes: another checkout, to compare with"
    )
    lists = {"workloads": str, "temps": float, "batches": int, "models": str, "kinds": str}
    for name, convert in lists.items():
        parser.add_argument(
            f"--{name}", type=_listed(convert), metavar="A,B", help="measure these alone"
        )
    parser.add_argument(
        "--save",
        action="store_true",
        help="keep the figures in benchmarks/results/<machine>/<version>.json",
    )
    asked = parser.parse_args(argv)
    if asked.names == ["tables"]:
        tables.write()
        return
    unknown = [name for name in asked.names if name not in NAMES]
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(NAMES)}, tables")
    for name in ("rounds", "tokens"):
        if getattr(asked, name) is not None and getattr(asked, name) < 2:
            parser.error(f"--{name} {getattr(asked, name)}: expected an integer >= 2")
    scope = Scope(
        asked.rounds,
        asked.tokens,
        asked.workloads,
        asked.temps,
        asked.batches,
        asked.models,
        asked.kinds,
        asked.beside,
    )
    progress, console = Console(stderr=True), Console(width=120, highlight=False)
    figures: dict[str, Any] = {}
    for name in asked.names or NAMES:
        run: Callable[[Scope, Callable[[str], object]], Report]
        run = import_module(f".{name}", __package__).run
        start = perf_counter()
        with progress.status(name) as status:
            say = _sayer(name, status.update)
            try:
                report = run(scope, say)
            except OutriderError as error:
                sys.exit(f"{name}: {error}")
        console.print(_table(name, report))
        console.print(f"[dim]{report.note}[/dim]\n", soft_wrap=True)
        facts = environment({"device": "cpu"}, vars(asked) | {"names": [name]})
        made = {
            "environment": facts | {"commit": results.commit()},
            "seconds": round(perf_counter() - start, 1),
            "note": report.note,
            "rows": report.rows,
        }
        figures[name] = made
        if asked.save:
            console.print(f"saved in {results.save(name, made)}")
    print(json.dumps(figures))


def _sayer(name: str, update: Callable[[str], object]) -> Callable[[str], object]:
    return lambda what: update(f"{name}: {what}")


def _table(name: str, report: Report) -> Table:
    table = Table(title=name, title_justify="left", box=None, pad_edge=False)
    for place, column in enumerate(COLUMNS[name]):
        table.add_column(column.heading, justify="right" if place else "left")
    for row in report.rows:
        table.add_row(*(column.text(row) for column in COLUMNS[name]))
    return table


def _listed(convert: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    def listed(text: str) -> tuple[Any, ...]:
        return tuple(map(convert, text.split(",")))

    return listed


if __name__ == "__main__":
    main()
