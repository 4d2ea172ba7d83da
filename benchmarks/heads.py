"""The demo head beside the draft model: what is kept of their drafts, and how fast they are."""

from __future__ import annotations

from typing import Any

import outrider
import outrider_demo as demo
from outrider import SamplingParams, SpeculativeConfig
from outrider.bench.race import OutriderRunner, Runner
from outrider.bench.records import PLAIN, Candidate
from outrider.bench.trial import Trial, TrialRace

from .report import Report, Say, Scope, gain, workload

PROMPTS = 8
SHAPES: dict[str, dict[str, Any]] = {
    "chain of 4": {"num_speculative_tokens": 4},
    "tree of 16": {"num_speculative_tokens": 6, "tree_budget": 16},
}
DRAFTERS = ("draft model", "head")


def run(scope: Scope, say: Say) -> Report:
    """Race both, as chains and as trees, beside plain decoding."""
    pair = outrider.load("demo", device="cpu", dtype="float32")
    prompts = workload(pair, scope.rounds or PROMPTS, *(scope.workloads or ("code",)))
    runners: dict[tuple[str, str], Runner] = {}
    for drafter in DRAFTERS:
        for shape, settings in SHAPES.items():
            target, model = pair.target.fresh(1), pair.model_drafter
            assert model is not None
            own = outrider.load_head(demo.HEAD, target) if drafter == "head" else model.fresh(1)
            runners[drafter, shape] = OutriderRunner(
                target,
                own,
                Candidate(drafter),
                config=SpeculativeConfig(depth="fixed", **settings),
            )
    rows: list[dict[str, Any]] = []
    for temperature in scope.temps or (0.0, 0.8, 1.0):
        say(f"temperature {temperature:g}")
        sampling = SamplingParams(max_tokens=scope.tokens, temperature=temperature)
        field = [OutriderRunner.of(PLAIN, pair, 1), *runners.values()]
        race = TrialRace(Trial(workload=prompts, sampling=sampling), field)
        race.run()
        for (drafter, shape), found in zip(runners, race.measurements()[1:], strict=True):
            metrics = found.metrics
            rows.append(
                {
                    "drafter": drafter,
                    "shape": shape,
                    "temperature": temperature,
                    "acceptance_length": metrics and metrics.acceptance_length,
                    "tokens_per_s": found.tokens_per_s,
                    **gain(found.speedup),
                }
            )
    note = (
        f"Demo target on {pair.target.name}, float32, {len(prompts.prompts)} prompts of held-out "
        f"code, {scope.tokens} tokens each; a round of each decoder in turn; 95% interval over "
        "prompts."
    )
    return Report(note, rows)
