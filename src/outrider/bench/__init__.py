"""Benchmarks of speculative decoding: race candidates, tune a configuration, render a report.

::

    results = run_bench(BenchOptions(quick=True))
    print(as_markdown(results))

    recommendation = run_tune(TuneOptions(temp=(0.7,)))
    print(recommendation.verdict)

    Path("report.html").write_text(render_report(results))

Importing this package loads no framework; each function is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .options import BenchOptions, Progress, TuneOptions, silent
from .records import Candidate, Measurement, Results

if TYPE_CHECKING:
    from .page import render_report
    from .run import run_bench
    from .tables import as_markdown
    from .tune import Recommendation, run_tune

_HOMES = {
    "Recommendation": "tune",
    "as_markdown": "tables",
    "render_report": "page",
    "run_bench": "run",
    "run_tune": "tune",
}

__all__ = [
    "BenchOptions",
    "Candidate",
    "Measurement",
    "Progress",
    "Recommendation",
    "Results",
    "TuneOptions",
    "as_markdown",
    "render_report",
    "run_bench",
    "run_tune",
    "silent",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
