"""What a round takes at many rows where models take no time at all."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from time import perf_counter
from typing import Any

from outrider import SamplingParams, SpeculativeConfig, SpeculativeDecoder
from outrider.engine.scheduler import Scheduler
from outrider.types.records import RoundRecord

from .constant import DEPTH, pair
from .report import Say, Scope, spans

ROWS = (1, 16, 64, 256)
VOCABULARY = 512
"""Small, so that what is timed is the bookkeeping of rows."""

KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "greedy": ("fixed", {"temperature": 0.0}),
    "sampled": ("fixed", {"temperature": 0.8}),
    "seeded, adaptive": ("adaptive", {"temperature": 0.8, "seed": 1}),
}


def stepped(rows: int, depth: Any, asked: dict[str, Any], count: int) -> dict[str, Any]:
    """Time `count` rounds of so many rows, learning included; return medians in milliseconds."""
    target, draft = pair(VOCABULARY)
    records: list[RoundRecord] = []
    config = SpeculativeConfig(num_speculative_tokens=DEPTH, depth=depth, validate="never")
    decoder = SpeculativeDecoder(target, draft, config=config, on_round=records.append)
    params = SamplingParams(max_tokens=10**6, **asked)
    times = []
    with Scheduler(decoder) as scheduler:
        for row in range(rows):
            scheduler.submit(decoder.start([1 + row % (VOCABULARY - 1)] * 64, params))
        for _ in range(count + 4):
            start = perf_counter()
            scheduler.step()
            times.append(perf_counter() - start)
    seen = records[4:]
    outside = median(whole - one.total_s for whole, one in zip(times[4:], seen, strict=True))
    return spans(seen, rows, outside)


def measured(scope: Scope, say: Say) -> Iterator[dict[str, Any]]:
    """Rows for the table of `overhead`."""
    for rows in ROWS:
        for kind, (depth, asked) in KINDS.items():
            name = f"{kind}, k = {DEPTH}, {VOCABULARY} tokens, {rows} rows"
            say(name)
            found = stepped(rows, depth, asked, scope.rounds or 40)
            yield {"rounds": name, "temperature": asked["temperature"]} | found
