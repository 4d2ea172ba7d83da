"""What a benchmark hands back: its regime, a table for people, figures for machines."""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

log = logging.getLogger("benchmarks")


@dataclass(frozen=True, slots=True)
class Report:
    """One benchmark's result.

    Attributes:
        name: of the benchmark.
        regime: what was measured, and how, in words.
        table: the figures for reading.
        figures: the same, as JSON allows them.
    """

    name: str
    regime: str
    table: Table
    figures: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Spread:
    """The middle of many timings and the quarters around it, in milliseconds."""

    median: float
    low: float
    high: float

    @staticmethod
    def of(seconds: Sequence[float]) -> Spread:
        """The quartiles of timings given in seconds."""
        low, median, high = np.percentile(np.asarray(seconds) * 1e3, (25, 50, 75)).tolist()
        return Spread(median, low, high)

    def figures(self) -> dict[str, float]:
        """As JSON."""
        return {
            "median_ms": round(self.median, 4),
            "q1_ms": round(self.low, 4),
            "q3_ms": round(self.high, 4),
        }

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}-{self.high:.2f})"


def columns(title: str, *names: str) -> Table:
    """An empty table: a first column of words, then columns of numbers."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for index, name in enumerate(names):
        table.add_column(name, justify="right" if index else "left", no_wrap=True)
    return table


def add_row(table: Table, *cells: str) -> None:
    """Add a row to a table, and log it: of a long benchmark one sees what is known so far."""
    table.add_row(*cells)
    log.info("%s", "  ".join(Text.from_markup(cell).plain for cell in cells))


def environment() -> dict[str, Any]:
    """Versions, threads and machine, as far as timings depend on them."""
    import torch

    return {
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "transformers", "outrider")},
        "threads": torch.get_num_threads(),
        "cpus": os.cpu_count(),
        "machine": f"{platform.system()} {platform.machine()}",
    }
