"""What the default loses to drafters that cannot pay: it has to find out, and leave them alone."""

from __future__ import annotations

import outrider
from outrider import EarlyExitDrafter, ModelDrafter, SamplingParams, TransformersModel
from outrider.bench.race import OutriderRunner, Runner
from outrider.bench.records import PLAIN, Candidate
from outrider.bench.trial import Trial, TrialRace

from .report import KINDS, Report, Say, Scope, gain, workload

PROMPTS = 8


def run(scope: Scope, say: Say) -> Report:
    """Race each drafter against plain decoding, on prompts of all kinds in turn."""
    pair = outrider.load("demo", device="cpu", dtype="float32")
    prompts = workload(pair, scope.rounds or PROMPTS, *(scope.workloads or KINDS))
    assert isinstance(pair.target, TransformersModel)
    layers = pair.target.hf_model.config.num_hidden_layers
    rows = []
    for batch in scope.batches or (1, 4):
        for temperature in scope.temps or (0.0, 0.8):
            say(f"temperature {temperature:g}, batch {batch}")
            target = pair.target.fresh(batch)
            itself = ModelDrafter(pair.target.fresh(batch), target.vocab_size)
            runners: dict[str, Runner] = {
                "none": OutriderRunner.of(PLAIN, pair, batch),
                "the target itself": OutriderRunner(
                    target, itself, Candidate("draft_model", "block")
                ),
            }
            for exit_layers in sorted({max(1, layers // 4), max(1, layers // 2)}):
                own = pair.target.fresh(batch)
                assert isinstance(own, TransformersModel)
                runners[f"its first {exit_layers} of {layers} layers"] = OutriderRunner(
                    own, EarlyExitDrafter(own, exit_layers), Candidate("early_exit", "block")
                )
            trial = Trial(
                workload=prompts,
                sampling=SamplingParams(max_tokens=scope.tokens, temperature=temperature),
                batch=batch,
            )
            race = TrialRace(trial, list(runners.values()))
            race.run()
            for name, found in list(zip(runners, race.measurements(), strict=True))[1:]:
                metrics = found.metrics
                rows.append(
                    {
                        "drafter": name,
                        "temperature": temperature,
                        "batch": batch,
                        **gain(found.speedup),
                        "drafting": metrics and metrics.draft_rounds / metrics.rounds,
                    }
                )
    note = (
        f"Demo target, float32, {scope.tokens} tokens a prompt, default settings; the target as "
        "its own draft is always right and never cheaper; its first layers were not trained to "
        "draft. A round of each decoder in turn; 95% interval over prompts, or batches of them."
    )
    return Report(note, rows)
