"""The adaptive depth beside every fixed one: how far it is from the best, workload by workload.

Above temperature 0 verification is coupled and each prompt has a seed, so that all write the same
texts, and only their depths differ. Of a batch all rows have the depth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from rich.table import Table

import outrider
from outrider import SamplingParams, SpeculativeConfig, SpeculativeDecoder
from outrider.bench.race import Timed, race, speedup
from outrider.bench.workload import built_in
from outrider.config.params import Verification
from outrider.engine.loading import Pair

from .regimes import ALL, Regimes
from .report import Report, add_row, columns
from .speedup import dealt, own_drafter

TOKENS = 256
TEMPERATURES = (0.0, 0.8)
DEPTHS = {1: (1, 2, 3, 4, 5, 6, 7, 8), 4: (1, 2, 3, 4, 5, 6), 16: (1, 2, 3, 4, 5)}
"""By the size of a batch: the more rows, the dearer is a token of each."""
KINDS = ("code", "editing", "json", "random")
WARM_UP = 8

Seconds = Callable[[Timed], Sequence[float]]


def run(rounds: int, regimes: Regimes = ALL) -> Report:
    """Race all depths on `rounds` prompts of each kind, and half as many batches of each size.

    At least two of either.
    """
    names, temperatures, sizes = regimes.of(KINDS, TEMPERATURES, DEPTHS)
    count = {size: max(rounds if size == 1 else rounds // 2, 2) for size in sizes}
    most = max(size * (len(DEPTHS[size]) + 2) for size in sizes)
    pair = outrider.load("demo", device="cpu", dtype="float32", max_sequences=most)
    prompts = max(size * batches for size, batches in count.items())
    kinds = built_in(names, pair.tokenizer, pair.target.vocab_size, prompts)
    table = columns(
        f"tokens/s over plain decoding's, draft model, {TOKENS} tokens a prompt",
        "workload",
        "T",
        "batch",
        "batches",
        "by",
        "k = 1, 2, ...",
        "best",
        "adaptive",
        "over best",
        "95%",
        "held out",
        "95%",
    )
    rows = []
    for kind in kinds:
        found = [list(prompt.token_ids) for prompt in kind.prompts]
        for temperature in temperatures:
            for size in sizes:
                batches = dealt(found, size)[: count[size]]
                row = {
                    "workload": kind.name,
                    "temperature": temperature,
                    "batch": size,
                    "batches": len(batches),
                } | _measure(pair, batches, DEPTHS[size], temperature)
                rows.append(row)
                _show(table, row)
    return Report(
        "depth",
        "one round of each decoder in turn; temperature 0 with block verification, the other with "
        "coupled, where all texts are the same; over best: the adaptive depth over the fixed one "
        "that turned out fastest on this workload (the luckiest of several noisy figures); held "
        "out: over the one that was fastest on all other prompts, as a search beforehand finds it; "
        "both with a 95% interval over prompts, or batches of them (bootstrap and Student's t), "
        "wide where they are few; by usual: had each round taken what rounds of its kind took, by "
        "the median, without slow moments of the machine, and an interval of other prompts with "
        "these medians",
        table,
        {"tokens": TOKENS, "rows": rows},
    )


def _measure(
    pair: Pair,
    batches: list[list[list[int]]],
    depths: Sequence[int],
    temperature: float,
) -> dict[str, object]:
    """Race plain decoding, each depth, and the adaptive one."""
    verification: Verification = "coupled" if temperature else "block"
    fixed = {
        f"k={depth}": SpeculativeConfig(
            depth="fixed", num_speculative_tokens=depth, verification=verification
        )
        for depth in depths
    }
    configs = fixed | {"adaptive": SpeculativeConfig(verification=verification)}
    size = len(batches[0])
    decoders = [
        SpeculativeDecoder(pair.target),
        *(
            SpeculativeDecoder(pair.target, own_drafter(pair, size), config=config)
            for config in configs.values()
        ),
    ]
    params = SamplingParams(
        max_tokens=TOKENS,
        temperature=temperature,
        seed=0 if temperature else None,
        ignore_eos=True,
    )
    race(decoders, batches[:1], replace(params, max_tokens=WARM_UP))
    plain, *others = race(decoders, batches, params)
    return _row(plain, dict(zip(configs, others, strict=True)))


def _row(plain: Timed, found: dict[str, Timed]) -> dict[str, object]:
    metrics = found["adaptive"].metrics
    return {
        **_gains(plain, found, lambda timed: timed.seconds),
        "usual": _gains(plain, found, lambda timed: timed.usual),
        "acceptance_length": metrics.acceptance_length,
        "ceiling": metrics.ceiling,
        "depth": metrics.drafted / metrics.draft_rounds if metrics.draft_rounds else 0.0,
    }


def _gains(plain: Timed, found: dict[str, Timed], seconds: Seconds) -> dict[str, Any]:
    def over(one: Timed, other: Timed) -> tuple[float, float, float]:
        return speedup(seconds(one), one.tokens, seconds(other), other.tokens)

    gains = {name: over(plain, timed) for name, timed in found.items()}
    fixed = {name: timed for name, timed in found.items() if name != "adaptive"}
    best = max(fixed, key=lambda name: gains[name][0])
    ratio, low, high = over(found[best], found["adaptive"])
    return {
        "speedup": {name: gain[0] for name, gain in gains.items()},
        "interval": {name: gain[1:] for name, gain in gains.items()},
        "best": best,
        "over_best": ratio,
        "low": low,
        "high": high,
        "held_out": _held_out(fixed, found["adaptive"], seconds),
    }


def _held_out(
    fixed: dict[str, Timed], adaptive: Timed, seconds: Seconds
) -> tuple[float, float, float]:
    """Over the fixed depth with the most tokens a second on all stretches but the one it is for."""
    times = np.array([seconds(timed) for timed in fixed.values()])
    tokens = np.array([timed.tokens for timed in fixed.values()], dtype=float)
    rates = (tokens.sum(1, keepdims=True) - tokens) / (times.sum(1, keepdims=True) - times)
    chosen, places = rates.argmax(0), np.arange(times.shape[1])
    return speedup(
        times[chosen, places].tolist(),
        tokens[chosen, places].tolist(),
        seconds(adaptive),
        adaptive.tokens,
    )


def _show(table: Table, row: dict[str, Any]) -> None:
    for name, gains in (("seconds", row), ("usual", row["usual"])):
        shown = {depth: f"{gain:.2f}" for depth, gain in gains["speedup"].items()}
        adaptive = shown.pop("adaptive")
        held, low, high = gains["held_out"]
        add_row(
            table,
            str(row["workload"]),
            f"{row['temperature']:g}",
            str(row["batch"]),
            str(row["batches"]),
            name,
            " ".join(shown.values()),
            gains["best"],
            adaptive,
            f"{gains['over_best']:.2f}",
            f"{gains['low']:.2f}-{gains['high']:.2f}",
            f"{held:.2f}",
            f"{low:.2f}-{high:.2f}",
        )
