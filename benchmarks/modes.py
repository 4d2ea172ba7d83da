"""Eager and compiled forwards: what speculation is worth with each side in its faster mode."""

from __future__ import annotations

from dataclasses import replace

from rich.table import Table

import outrider
from outrider import HybridDrafter, ModelDrafter, SamplingParams, SpeculativeDecoder, SuffixDrafter
from outrider.bench.race import Timed, race, speedup
from outrider.bench.workload import built_in
from outrider.engine.loading import Pair
from outrider.runtimes.transformers.model import TransformersModel

from .report import Report, add_row, columns
from .speedup import reserve

TOKENS = 256
TEMPERATURES = (0.0, 0.8)
KINDS = ("code", "editing", "json", "random")
WARM_UP = 8
MODES = ("eager", "compiled")


def run(rounds: int) -> Report:
    """Race both modes on `rounds` prompts of each kind, at least two. Compiles first."""
    prompts = max(rounds, 2)
    pairs = {
        mode: outrider.load(
            "demo", device="cpu", dtype="float32", max_sequences=2, compile=mode == "compiled"
        )
        for mode in MODES
    }
    decoders = {}
    for mode, pair in pairs.items():
        assert pair.model_drafter is not None
        # Without its pool, from which a prompt that comes again would be answered.
        hybrid = HybridDrafter.usual(pair.model_drafter, SuffixDrafter(max_pool_tokens=0))
        decoders[f"plain {mode}"] = SpeculativeDecoder(pair.target)
        decoders[f"default {mode}"] = SpeculativeDecoder(pair.target, hybrid)
    table = columns(
        f"tokens/s over plain eager decoding's, batch 1, {TOKENS} tokens a prompt, "
        f"{prompts} prompts",
        "workload",
        "T",
        *(name for name in decoders if name != "plain eager"),
        "best over best",
        "95%",
    )
    rows = []
    pair = pairs["eager"]
    kinds = built_in(KINDS, pair.tokenizer, pair.target.vocab_size, prompts)
    reserve(pair, kinds)
    for kind in kinds:
        batches = [[list(prompt.token_ids)] for prompt in kind.prompts]
        for temperature in TEMPERATURES:
            params = SamplingParams(max_tokens=TOKENS, temperature=temperature, ignore_eos=True)
            race(list(decoders.values()), batches[:1], replace(params, max_tokens=WARM_UP))
            raced = race(list(decoders.values()), batches, params)
            found = dict(zip(decoders, raced, strict=True))
            row = {"workload": kind.name, "temperature": temperature} | _row(found)
            rows.append(row)
            _show(table, row)
    seconds = _compile_s(pairs["compiled"])
    told = ", ".join(f"{name} {took:.0f} s" for name, took in seconds.items())
    return Report(
        "modes",
        "default: draft model and suffix lookup, adaptive depth; one round of each decoder in "
        "turn; best over best: the faster mode with speculation over the faster one without, with "
        "a 95% interval over prompts (bootstrap and Student's t), wide where they are few; "
        f"compiling took: {told}",
        table,
        {"tokens": TOKENS, "prompts": prompts, "compile_s": seconds, "rows": rows},
    )


def _row(found: dict[str, Timed]) -> dict[str, object]:
    baseline = found["plain eager"]
    gains = {name: _over(baseline, timed)[0] for name, timed in found.items()}
    plain, other = (
        max((f"{side} {mode}" for mode in MODES), key=gains.__getitem__)
        for side in ("plain", "default")
    )
    ratio, low, high = _over(found[plain], found[other])
    metrics = found[other].metrics
    return {
        "speedup": gains,
        "plain": plain,
        "default": other,
        "best_over_best": ratio,
        "low": low,
        "high": high,
        "acceptance_length": metrics.acceptance_length,
        "ceiling": metrics.ceiling,
        "plain_tokens_per_s": baseline.metrics.tokens_per_s,
    }


def _over(one: Timed, other: Timed) -> tuple[float, float, float]:
    return speedup(one.seconds, one.tokens, other.seconds, other.tokens)


def _show(table: Table, row: dict[str, object]) -> None:
    gains = row["speedup"]
    assert isinstance(gains, dict)
    add_row(
        table,
        str(row["workload"]),
        f"{row['temperature']:g}",
        *(f"{gain:.2f}" for name, gain in gains.items() if name != "plain eager"),
        f"{row['best_over_best']:.2f}",
        f"{row['low']:.2f}-{row['high']:.2f}",
    )


def _compile_s(pair: Pair) -> dict[str, float]:
    """Of target and draft; a model that cannot be compiled here makes the comparison void."""
    assert isinstance(pair.model_drafter, ModelDrafter)
    draft = pair.model_drafter.model
    assert isinstance(draft, TransformersModel)
    seconds = {"target": pair.target.compile_s, "draft": draft.compile_s}
    assert None not in seconds.values(), "a model could not be compiled"
    return {name: took for name, took in seconds.items() if took is not None}
