"""What a round takes beside the models' forward passes."""

from __future__ import annotations

from typing import Any

import outrider
from outrider import SamplingParams, SpeculativeConfig, SpeculativeDecoder
from outrider.types.records import RoundRecord

from . import rows as many_rows
from . import vocabularies
from .report import Report, Say, Scope, spans, workload

ROUNDS = 100
DEPTH = 4


def run(scope: Scope, say: Say) -> Report:
    """Time the parts of about `rounds` rounds, plain and at a fixed depth."""
    pair = outrider.load("demo", device="cpu", dtype="float32", max_sequences=1)
    (prompt,) = workload(pair, 1, "code").prompts
    config = SpeculativeConfig(num_speculative_tokens=DEPTH, depth="fixed")
    rows: list[dict[str, Any]] = []
    for name, drafter in (("plain", None), (f"draft model, k = {DEPTH}", pair.model_drafter)):
        for temperature in scope.temps or (0.0, 0.8):
            say(f"{name}, temperature {temperature:g}")
            records: list[RoundRecord] = []
            decoder = SpeculativeDecoder(
                pair.target, drafter, config=config, on_round=records.append
            )
            sampling = SamplingParams(
                max_tokens=(scope.rounds or ROUNDS) + 8, temperature=temperature, ignore_eos=True
            )
            while len(records) < sampling.max_tokens:
                decoder.generate(list(prompt.token_ids), sampling)
            seen = records[8:]
            rows.append({"rounds": name, "temperature": temperature} | spans(seen))
    rows += vocabularies.measured(scope, say)
    rows += many_rows.measured(scope, say)
    note = (
        "Demo pair, one sequence, float32, medians of rounds; drafting is the draft model's "
        "forward passes and the drawing of tokens; the rest is planning, logits processing, "
        "verification and bookkeeping. Where a number of tokens stands, models take no time: all "
        "of such a round is distributions, draws, the verdict and bookkeeping."
    )
    return Report(note, rows)
