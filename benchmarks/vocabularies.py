"""What a sampled round over a large vocabulary takes where models take no time at all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from outrider import SamplingParams, SpeculativeConfig, SpeculativeDecoder
from outrider.drafters.model import ModelDrafter
from outrider.types.records import RoundRecord

from .constant import DEPTH, pair
from .report import Say, Scope, spans

SIZES = (151_936, 262_144)
FILTERED = {"top_k": 20, "top_p": 0.95}


def rounds(size: int, method: Any, batch: int, count: int, **asked: Any) -> dict[str, Any]:
    """Time rounds of `count` tokens or more, and return the medians in milliseconds."""
    target, draft = pair(size)
    records: list[RoundRecord] = []
    config = SpeculativeConfig(
        num_speculative_tokens=DEPTH, depth="fixed", verification=method, validate="never"
    )
    drafter = ModelDrafter(draft)
    decoder = SpeculativeDecoder(target, drafter, config=config, on_round=records.append)
    params = SamplingParams(max_tokens=count + 2 * DEPTH, seed=1, **asked)
    while len(records) < count + 4:
        decoder.generate([[row + 1] for row in range(batch)], params)
    seen = [record for record in records[4:] if record.depth == (DEPTH,) * batch]
    return spans(seen, batch)


def measured(scope: Scope, say: Say) -> Iterator[dict[str, Any]]:
    """Rows for the table of `overhead`."""
    for size in SIZES:
        for batch in scope.batches or (1, 4):
            for method in ("token", "block"):
                for temperature in scope.temps or (0.8,):
                    kinds = ({}, FILTERED) if method == "block" and batch == 1 else ({},)
                    for filters in kinds:
                        named = "".join(f", {name} {value:g}" for name, value in filters.items())
                        name = f"{method}, k = {DEPTH}, {size:,} tokens, {batch} rows{named}"
                        say(name)
                        asked = {"temperature": temperature, **filters}
                        found = rounds(size, method, batch, scope.rounds or 40, **asked)
                        yield {"rounds": name, "temperature": temperature} | found
