"""The adaptive depth beside every fixed one: how far it is from the best, workload by workload.

Above temperature 0 verification is coupled and each prompt has a seed, so that all write the same
texts, and only their depths differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from rich.table import Table

import outrider
from outrider import SamplingParams, SpeculativeConfig, SpeculativeDecoder
from outrider.bench.race import Timed, race, speedup
from outrider.bench.workload import built_in

from .report import Report, add_row, columns
from .speedup import own_drafter, reserve

TOKENS = 256
TEMPERATURES = (0.0, 0.8)
DEPTHS = (1, 2, 3, 4, 5, 6, 7, 8)
KINDS = ("code", "editing", "json", "random")
WARM_UP = 8

Seconds = Callable[[Timed], Sequence[float]]


def run(rounds: int) -> Report:
    """Race all depths on `rounds` prompts of each kind, at least two."""
    pair = outrider.load("demo", device="cpu", dtype="float32", max_sequences=len(DEPTHS) + 2)
    prompts = max(rounds, 2)
    kinds = built_in(KINDS, pair.tokenizer, pair.target.vocab_size, prompts)
    room = reserve(pair, kinds)
    fixed = {
        f"k={depth}": SpeculativeConfig(depth="fixed", num_speculative_tokens=depth)
        for depth in DEPTHS
    }
    table = columns(
        f"tokens/s over plain decoding's, draft model, {TOKENS} tokens a prompt, {prompts} prompts",
        "workload",
        "T",
        "by",
        *fixed,
        "adaptive",
        "over best",
        "95%",
    )
    rows = []
    for kind in kinds:
        for temperature in TEMPERATURES:
            configs = fixed | {"adaptive": SpeculativeConfig()}
            if temperature:
                configs = {
                    name: replace(config, verification="coupled")
                    for name, config in configs.items()
                }
            decoders = [
                SpeculativeDecoder(pair.target),
                *(
                    SpeculativeDecoder(pair.target, own_drafter(pair, 1, room), config=config)
                    for config in configs.values()
                ),
            ]
            params = SamplingParams(
                max_tokens=TOKENS,
                temperature=temperature,
                seed=0 if temperature else None,
                ignore_eos=True,
            )
            batches = [[list(prompt.token_ids)] for prompt in kind.prompts]
            race(decoders, batches[:1], replace(params, max_tokens=WARM_UP))
            plain, *others = race(decoders, batches, params)
            found = dict(zip(configs, others, strict=True))
            row = {"workload": kind.name, "temperature": temperature} | _row(plain, found)
            rows.append(row)
            _show(table, row)
    return Report(
        "depth",
        "one round of each decoder in turn; temperature 0 with block verification, the other with "
        "coupled, where all texts are the same; over best: the adaptive depth over the fixed one "
        "that turned out fastest on this workload (the luckiest of several noisy figures), with a "
        "95% interval over prompts (bootstrap and Student's t), wide where they are few; by usual: "
        "had each round taken what rounds of its kind took, by the median, without slow moments of "
        "the machine, and an interval of other prompts with these medians",
        table,
        {"tokens": TOKENS, "prompts": prompts, "rows": rows},
    )


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
    best = max((name for name in gains if name != "adaptive"), key=lambda name: gains[name][0])
    ratio, low, high = over(found[best], found["adaptive"])
    return {
        "speedup": {name: gain[0] for name, gain in gains.items()},
        "interval": {name: gain[1:] for name, gain in gains.items()},
        "best": best,
        "over_best": ratio,
        "low": low,
        "high": high,
    }


def _show(table: Table, row: dict[str, Any]) -> None:
    for name, gains in (("seconds", row), ("usual", row["usual"])):
        shown = [
            f"[bold]{gain:.2f}[/bold]" if depth == gains["best"] else f"{gain:.2f}"
            for depth, gain in gains["speedup"].items()
        ]
        add_row(
            table,
            str(row["workload"]),
            f"{row['temperature']:g}",
            name,
            *shown,
            f"{gains['over_best']:.2f}",
            f"{gains['low']:.2f}-{gains['high']:.2f}",
        )
