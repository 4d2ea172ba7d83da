"""What speculation is worth on the demo pair: the same engine with it and without.

The two take a round each in turn, so that both meet the same noise of the machine.
"""

from __future__ import annotations

from dataclasses import replace

from rich.table import Table

import outrider
from outrider import HybridDrafter, ModelDrafter, SamplingParams, SpeculativeDecoder, SuffixDrafter
from outrider.bench.race import Timed, compared, race
from outrider.bench.workload import built_in
from outrider.engine.loading import Pair
from outrider.runtimes.transformers.model import TransformersModel
from outrider.types.protocols import Drafter, Target

from .regimes import ALL, Regimes
from .report import Report, add_row, columns

TOKENS = 256
TEMPERATURES = (0.0, 0.8, 1.0)
BATCHES = (1, 4, 16)
WARM_UP = 8
KINDS = ("code", "editing", "json", "random")
MOST = {"code": 64, "editing": 128}
"""How many prompts of a kind are used at most: Python's own library has few more to cut."""


def run(rounds: int, regimes: Regimes = ALL) -> Report:
    """Race drafters against plain decoding on `rounds` prompts of each kind, at least two.

    Of batches as many, or as many as there are prompts for: no prompt is in two of a size.
    """
    rounds = max(rounds, 2)
    names, temperatures, sizes = regimes.of(KINDS, TEMPERATURES, BATCHES)
    # As many whatever is chosen: what else is measured changes no prompt.
    most = max(BATCHES)
    pair = outrider.load("demo", device="cpu", dtype="float32", max_sequences=max(6, 3 * most))
    wanted = rounds * most
    kinds = [
        kind
        for name in names
        for kind in built_in(
            (name,), pair.tokenizer, pair.target.vocab_size, min(wanted, MOST.get(name, wanted))
        )
    ]
    contenders: dict[str, Drafter] = {
        "model": own_drafter(pair, most),
        "hybrid": HybridDrafter.usual(own_drafter(pair, most), SuffixDrafter(max_pool_tokens=0)),
    }
    table = columns(
        f"tokens/s over plain decoding's, {TOKENS} tokens a prompt",
        "workload",
        "T",
        "batch",
        "batches",
        "drafter",
        "speedup",
        "95%",
        "usual",
        "95%",
        "full",
        "length",
        "ceiling",
        "drafted",
    )
    rows = []
    for kind in kinds:
        name, found = kind.name, [list(prompt.token_ids) for prompt in kind.prompts]
        for temperature in temperatures:
            for size in sizes:
                batches = dealt(found, size)[:rounds]
                for row in _measure(pair.target, contenders, batches, temperature):
                    rows.append({"workload": name} | row)
                    _show(table, rows[-1])
    return Report(
        "speedup",
        "default settings, without the pool of earlier outputs, from which a prompt that comes "
        "again would be answered; one round of each decoder in turn; the target's first forward, "
        "with which it reads the prompt, is not timed, what the drafter reads is; 95%: bootstrap "
        "and Student's t over "
        "prompts, or over batches of them, wide where they are few; usual: speedup if each round "
        "had taken what rounds of its kind took, by the median: without slow moments of the "
        "machine, and without a drafter's reading after the first round, its interval that of "
        "other prompts with these medians; full: speedup until the first "
        "text of a batch is over, as where others take its place, since without them a batch waits "
        "for its slowest text; length: tokens emitted in a "
        "round that drafts, beside the most that any lossless verification would emit; drafted: "
        "share of rounds that drafted",
        table,
        {"tokens": TOKENS, "rows": rows},
    )


def own_drafter(pair: Pair, max_sequences: int) -> ModelDrafter:
    """The draft model in slots of its own: it finds no prompt that another contender has read.

    Args:
        pair: of the model.
        max_sequences: how many slots.
    """
    assert isinstance(pair.model_drafter, ModelDrafter)
    model = pair.model_drafter.model
    assert isinstance(model, TransformersModel)
    alone = TransformersModel(model.hf_model, max_sequences=max_sequences)
    return ModelDrafter(alone, pair.model_drafter.vocab_size)


def _measure(
    target: Target,
    drafters: dict[str, Drafter],
    batches: list[list[list[int]]],
    temperature: float,
) -> list[dict[str, object]]:
    params = SamplingParams(max_tokens=TOKENS, temperature=temperature, ignore_eos=True)
    decoders = [
        SpeculativeDecoder(target),
        *(SpeculativeDecoder(target, drafter) for drafter in drafters.values()),
    ]
    race(decoders, batches[:1], replace(params, max_tokens=WARM_UP))
    plain, *others = race(decoders, batches, params)
    rows: list[dict[str, object]] = []
    for name, found in zip(drafters, others, strict=True):
        ratio, low, high = compared(
            plain.seconds, plain.tokens, found.seconds, found.tokens, len(batches)
        )
        usual, usual_low, usual_high = compared(
            plain.usual, plain.tokens, found.usual, found.tokens, len(batches)
        )
        metrics = found.metrics
        rows.append(
            {
                "temperature": temperature,
                "batch": len(batches[0]),
                "batches": len(batches),
                "drafter": name,
                "speedup": ratio,
                "usual": usual,
                "usual_low": usual_low,
                "usual_high": usual_high,
                "full": _rate(found) / _rate(plain),
                "low": low,
                "high": high,
                "acceptance_length": metrics.acceptance_length,
                "ceiling": metrics.ceiling,
                "drafting": metrics.draft_rounds / metrics.rounds,
                "tokens_per_s": metrics.tokens_per_s,
                "plain_tokens_per_s": plain.metrics.tokens_per_s,
                "per_position": metrics.per_position,
            }
        )
    return rows


def dealt(prompts: list[list[int]], size: int) -> list[list[list[int]]]:
    """As many batches as there are prompts for, dealt out: later prompts are of another sort."""
    count = len(prompts) // size
    return [prompts[first::count][:size] for first in range(count)]


def _rate(timed: Timed) -> float:
    """Tokens a second while batches are full."""
    return sum(tokens for _, tokens in timed.full) / sum(seconds for seconds, _ in timed.full)


def _show(table: Table, row: dict[str, object]) -> None:
    def shown(name: str) -> str:
        value = row[name]
        return "-" if value is None else f"{value:.2f}"

    add_row(
        table,
        str(row["workload"]),
        f"{row['temperature']:g}",
        str(row["batch"]),
        str(row["batches"]),
        str(row["drafter"]),
        shown("speedup"),
        "-" if row["low"] is None else f"{shown('low')}-{shown('high')}",
        shown("usual"),
        "-" if row["usual_low"] is None else f"{shown('usual_low')}-{shown('usual_high')}",
        shown("full"),
        shown("acceptance_length"),
        shown("ceiling"),
        shown("drafting"),
    )
