"""A round's own cost: its wall time less the bare forwards, ours and transformers' side by side."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM

import outrider
import outrider_demo as demo
from outrider import ModelDrafter, SamplingParams, TransformersModel

from .assisted import assisted_samples
from .replay import SKIPPED, Replay, Sample
from .report import Report, Spread, add_row, columns

DEPTH, PROMPT_TOKENS = 4, 150
_PASS_ROUNDS = 50
_TOKENS_PER_ROUND = 3

_SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "T 0.8": {"temperature": 0.8},
    "T 0.8, top-p 0.9, top-k 50": {"temperature": 0.8, "top_p": 0.9, "top_k": 50},
}
_GOALS = {"greedy": 0.5, "T 0.8": 0.7}
"""Milliseconds of its own that a round of ours may take."""

_REFERENCES = {"greedy": 1.8, "T 0.8": 4.1}
"""Milliseconds that a round of transformers' was found to take of its own on a two-layer target."""


def run(rounds: int) -> Report:
    """Time about `rounds` rounds of each system and each way of sampling."""
    pair = outrider.load("demo", device="cpu", dtype="float32", max_sequences=1)
    assert isinstance(pair.model_drafter, ModelDrafter)
    draft = pair.model_drafter.model
    assert isinstance(draft, TransformersModel)
    models = (pair.target, draft)
    their_target, their_draft = (
        AutoModelForCausalLM.from_pretrained(str(path), dtype=torch.float32)
        for path in (demo.TARGET, demo.DRAFT)
    )
    prompt = pair.tokenizer.encode("\n\n".join(demo.PROMPTS))[:PROMPT_TOKENS]

    samples: dict[tuple[str, str], list[Sample]] = {}
    passes = -(-rounds // _PASS_ROUNDS)
    per_pass = -(-rounds // passes)
    for seed in range(passes):
        for name, sampling in _SAMPLINGS.items():
            params = SamplingParams(
                **sampling,
                max_tokens=(DEPTH + 1) * (SKIPPED + per_pass + 1),
                ignore_eos=True,
                seed=seed,
            )
            ours = Replay.noted(models, prompt, params, DEPTH, per_pass).samples()
            theirs = assisted_samples(
                their_target,
                their_draft,
                prompt,
                _as_generate_takes_it(sampling),
                DEPTH,
                max_tokens=_TOKENS_PER_ROUND * per_pass + (DEPTH + 1) * (SKIPPED + 3),
                seed=seed,
            )
            samples.setdefault(("outrider", name), []).extend(ours)
            samples.setdefault(("transformers", name), []).extend(theirs)
    return _report(samples)


def _as_generate_takes_it(sampling: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments of `generate` with every filter that is not named switched off."""
    if sampling["temperature"] == 0:
        return {"do_sample": False}
    return {"do_sample": True, "top_k": 0, "top_p": 1.0} | sampling


def _report(samples: dict[tuple[str, str], list[Sample]]) -> Report:
    table = columns(
        "a round, milliseconds: median (and quartiles)",
        "",
        "round",
        "forwards",
        "its own",
        "",
        "forwards answered",
        "rounds",
    )
    rows = []
    for (system, sampling), found in samples.items():
        whole = Spread.of([sample.round_s for sample in found])
        forwards = Spread.of([sample.forwards_s for sample in found])
        own = Spread.of([sample.own_s for sample in found])
        times = [sample.answered_s for sample in found if sample.answered_s is not None]
        answered = Spread.of(times) if times else None
        ours = system == "outrider"
        goal = _GOALS.get(sampling) if ours else None
        reference = None if ours else _REFERENCES.get(sampling)
        beside = "" if goal is None else f"goal <= {goal}"
        add_row(
            table,
            f"{system}, {sampling}",
            f"{whole.median:.2f}",
            f"{forwards.median:.2f}",
            str(own),
            beside if reference is None else f"2 layers: {reference}",
            str(answered or ""),
            str(len(found)),
        )
        rows.append(
            {
                "system": system,
                "sampling": sampling,
                "round": whole.figures(),
                "forwards": forwards.figures(),
                "own": own.figures(),
                "goal_ms": goal,
                "reference_ms": reference,
                "forwards_answered": None if answered is None else answered.figures(),
                "rounds": len(found),
            }
        )
    regime = (
        f"demo pair (16 and 1 layers, vocabulary 4096), batch 1, float32, CPU, eager, k = {DEPTH}, "
        f"prompt of {PROMPT_TOKENS} tokens; each round's forwards repeated bare right after it, on "
        "the inputs it had; 'forwards answered': the round again with each forward's output given; "
        "transformers: assisted generation, sdpa, constant schedule, threshold 0"
    )
    return Report("overhead", regime, table, {"regime": regime, "k": DEPTH, "rows": rows})
