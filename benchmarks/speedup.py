"""The default beside plain decoding: the demo pair, prompts one by one and in batches of four."""

from __future__ import annotations

import outrider
from outrider.bench.records import Candidate

from .report import KINDS, Report, Say, Scope, gain, measure, workload

PROMPTS = 12
DEFAULT = Candidate("hybrid", "block")


def run(scope: Scope, say: Say) -> Report:
    """Race the default settings against plain decoding on every workload."""
    pair = outrider.load("demo", device="cpu", dtype="float32")
    rows = []
    for kind in scope.workloads or KINDS:
        prompts = workload(pair, scope.rounds or PROMPTS, kind)
        for temperature in scope.temps or (0.0, 0.8):
            for batch in scope.batches or (1, 4):
                say(f"{kind}, temperature {temperature:g}, batch {batch}")
                plain, found = measure(pair, [DEFAULT], prompts, temperature, batch, scope.tokens)
                metrics = found.metrics
                rows.append(
                    {
                        "workload": kind,
                        "temperature": temperature,
                        "batch": batch,
                        "stretches": len(found.seconds),
                        **gain(found.speedup),
                        "tokens_per_s": found.tokens_per_s,
                        "plain_tokens_per_s": plain.tokens_per_s,
                        "acceptance_length": metrics and metrics.acceptance_length,
                        "identical": None
                        if found.identical is None
                        else f"{found.identical}/{len(found.tokens)}",
                    }
                )
    note = (
        f"Demo pair on {pair.target.name}, float32, {scope.tokens} tokens a prompt, default "
        "settings without the memory of earlier outputs; a round of each decoder in turn; the "
        "target's prefill is not timed, that of the drafter is; "
        "95% interval over prompts, or batches of them."
    )
    return Report(note, rows)
