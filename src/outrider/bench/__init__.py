"""Benchmarks of speculative decoding: race candidates, tune a configuration, render a report.

::

    from outrider.bench import BenchOptions, TuneOptions
    from outrider.bench.page import render_report
    from outrider.bench.run import run_bench
    from outrider.bench.tune import run_tune

    results = run_bench(BenchOptions(quick=True))
    Path("report.html").write_text(render_report(results))

    recommendation = run_tune(TuneOptions(temp=(0.7,)))
    print(recommendation.verdict)

Importing this package loads no framework; the modules that measure do.
"""

from .options import BenchOptions, Progress, TuneOptions
from .records import Candidate, Measurement, Results

__all__ = ["BenchOptions", "Candidate", "Measurement", "Progress", "Results", "TuneOptions"]
