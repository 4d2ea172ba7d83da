"""The time of `import outrider` in a fresh interpreter: the package must load no framework."""

from __future__ import annotations

import json
import subprocess
import sys
from statistics import median

from .report import Report, Say, Scope

RUNS = 5
PROGRAMS = ("import outrider", "import outrider.bench")
_TIMED = """
import json, sys, time
start = time.perf_counter()
{program}
print(json.dumps([time.perf_counter() - start, "torch" in sys.modules]))
"""


def run(scope: Scope, say: Say) -> Report:
    """Run each program in fresh interpreters."""
    rows = []
    for program in PROGRAMS:
        say(program)
        found = []
        for _ in range(scope.rounds or RUNS):
            command = [sys.executable, "-c", _TIMED.format(program=program)]
            answer = subprocess.run(command, check=True, capture_output=True, text=True)
            found.append(json.loads(answer.stdout))
        rows.append(
            {
                "program": program,
                "best_ms": 1e3 * min(seconds for seconds, _ in found),
                "median_ms": 1e3 * median(seconds for seconds, _ in found),
                "torch": "yes" if any(torch for _, torch in found) else "no",
            }
        )
    return Report("Fresh interpreters; files are in the page cache after the first.", rows)
