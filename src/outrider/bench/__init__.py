"""Benchmarks of speculative decoding: race candidates, tune a configuration, render a report.

::

    results = run_bench(BenchOptions(quick=True))
    print(as_markdown(results))

    recommendation = run_tune(TuneOptions(temp=(0.7,)))
    print(recommendation.verdict)

    Path("report.html").write_text(render_report(results))

Importing this package loads no framework.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .options import BenchOptions, Progress, ReportOptions, TuneOptions, silent
from .records import Candidate, Measurement, Results

if TYPE_CHECKING:
    from pathlib import Path

    from ..engine.trace import Trace
    from .tune import Recommendation

__all__ = [
    "BenchOptions",
    "Candidate",
    "Measurement",
    "Progress",
    "ReportOptions",
    "Results",
    "TuneOptions",
    "read_report",
    "render_report",
    "run_bench",
    "run_tune",
    "silent",
]


def run_bench(options: BenchOptions, report: Progress = silent) -> Results:
    """Race the candidates that the options name, with plain decoding always beside them.

    Ctrl-C (KeyboardInterrupt) ends the race: what was measured is returned, with `partial` set.

    Args:
        options: what to measure.
        report: called with the steps done, the steps in all and what comes next.

    Raises:
        InvalidConfigError: the options do not fit the models or the prompts.
        ModelError: a model cannot be loaded.
    """
    from .run import run

    return run(options, report)


def run_tune(options: TuneOptions, report: Progress = silent) -> Recommendation:
    """Search a grid of configurations for the fastest one by short races that halve the field.

    Ctrl-C (KeyboardInterrupt) ends the search: the answer so far is returned, with `partial` set.

    Args:
        options: the grid, the prompts and the models.
        report: called with the steps done, the steps in all and what comes next.

    Raises:
        InvalidConfigError: the options do not fit the models or the prompts.
        ModelError: a model cannot be loaded.
    """
    from .tune import tune

    return tune(options, report)


def read_report(path: Path) -> Trace | Results:
    """Read a trace (`--trace`) or a result file (`outrider bench --out`).

    Raises:
        InvalidConfigError: the file cannot be read, or is neither.
    """
    from .page import read

    return read(path)


def render_report(found: Trace | Results) -> str:
    """Render a trace or a result as one self-contained HTML page with SVG pictures."""
    from .page import render

    return render(found)
