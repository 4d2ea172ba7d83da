"""What a round takes beside the models' forward passes."""

from __future__ import annotations

from statistics import median

import outrider
from outrider import SamplingParams, SpeculativeConfig, SpeculativeDecoder
from outrider.types.records import RoundRecord

from . import vocabularies
from .report import Report, Say, Scope, workload

ROUNDS = 100
DEPTH = 4


def run(scope: Scope, say: Say) -> Report:
    """Time the parts of about `rounds` rounds, plain and at a fixed depth."""
    pair = outrider.load("demo", device="cpu", dtype="float32", max_sequences=1)
    (prompt,) = workload(pair, "code", 1).prompts
    config = SpeculativeConfig(num_speculative_tokens=DEPTH, depth="fixed")
    rows = []
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
            rows.append(
                {
                    "rounds": name,
                    "temperature": temperature,
                    "total_ms": 1e3 * median(one.total_s for one in seen),
                    "target_ms": 1e3 * median(one.target_s for one in seen),
                    "draft_ms": 1e3 * median(one.draft_s for one in seen),
                    "rest_ms": 1e3
                    * median(one.total_s - one.target_s - one.draft_s for one in seen),
                }
            )
    rows += vocabularies.measured(scope, say)
    note = (
        "Demo pair, one sequence, float32, medians of rounds; drafting is the draft model's "
        "forward passes and the drawing of tokens; the rest is planning, shaping, verification "
        "and bookkeeping. Where a number of tokens stands, models take no time: all of such a "
        "round is distributions, draws, the verdict and bookkeeping."
    )
    return Report(note, rows)
