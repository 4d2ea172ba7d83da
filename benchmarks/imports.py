"""The time of `import outrider` in a fresh interpreter: the package must load no framework."""

from __future__ import annotations

import json
import subprocess
import sys

from .report import Report, Spread, add_row, columns

GOAL_S = 0.2

_PROGRAM = """
import json, sys, time
start = time.perf_counter()
import outrider
seconds = time.perf_counter() - start
frameworks = [name for name in ("numpy", "torch", "transformers") if name in sys.modules]
print(json.dumps([seconds, frameworks]))
"""


def run(rounds: int) -> Report:
    """Import the package in `rounds` fresh interpreters."""
    seconds: list[float] = []
    loaded: set[str] = set()
    for _ in range(rounds):
        command = [sys.executable, "-c", _PROGRAM]
        answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        elapsed, frameworks = json.loads(answer)
        seconds.append(elapsed)
        loaded.update(frameworks)
    spread = Spread.of(seconds)
    table = columns("import outrider", "", "best ms", "median ms", "goal ms", "torch loaded")
    add_row(
        table,
        "import outrider",
        f"{min(seconds) * 1e3:.1f}",
        f"{spread.median:.1f}",
        f"< {GOAL_S * 1e3:.0f}",
        "yes" if "torch" in loaded else "no",
    )
    figures = {
        "best_ms": round(min(seconds) * 1e3, 3),
        **spread.figures(),
        "goal_ms": GOAL_S * 1e3,
        "frameworks_loaded": sorted(loaded),
        "runs": rounds,
    }
    regime = f"{rounds} fresh interpreters, files already in the page cache after the first"
    return Report("import", regime, table, figures)
