"""The adaptive depth beside fixed ones: how near it comes to the best of them."""

from __future__ import annotations

from typing import Any

import outrider
from outrider.bench.records import Candidate

from .report import KINDS, Report, Say, Scope, gain, measure, workload

PROMPTS = 4
DEPTHS = (1, 2, 4, 8)


def run(scope: Scope, say: Say) -> Report:
    """Race all depths beside plain decoding."""
    pair = outrider.load("demo", device="cpu", dtype="float32")
    rows: list[dict[str, Any]] = []
    for kind in scope.workloads or KINDS:
        prompts = workload(pair, scope.rounds or PROMPTS, kind)
        for temperature in scope.temps or (0.0, 0.8):
            # Coupled, all depths write the same text.
            method = "coupled" if temperature else "block"
            candidates = [Candidate("draft_model", method, depth) for depth in (*DEPTHS, None)]
            for batch in scope.batches or (1, 4):
                say(f"{kind}, temperature {temperature:g}, batch {batch}")
                _, *fixed, adaptive = measure(
                    pair, candidates, prompts, temperature, batch, scope.tokens
                )
                speedups = {
                    f"k={each.candidate.depth}": gain(each.speedup)["speedup"] or 0.0
                    for each in fixed
                }
                own = gain(adaptive.speedup)
                rows.append(
                    {
                        "workload": kind,
                        "temperature": temperature,
                        "batch": batch,
                        **own,
                        "of_best": (own["speedup"] or 0.0) / max(speedups.values()),
                        **speedups,
                    }
                )
    note = (
        f"Demo pair on {pair.target.name}, the draft model alone, float32, {scope.tokens} tokens a "
        "prompt; speedup over plain decoding; a round of each decoder in turn; above "
        "temperature 0 verification is coupled. The best fixed depth is the luckiest of several "
        "noisy figures."
    )
    return Report(note, rows)
