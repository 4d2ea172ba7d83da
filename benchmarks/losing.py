"""What the default loses to drafters that cannot pay: it has to find out, and leave them alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, median
from typing import Any

import torch

import outrider
from outrider import EarlyExitDrafter, ModelDrafter, SamplingParams, SpeculativeDecoder
from outrider.bench.race import Lane, Timed, compared, in_turn
from outrider.bench.workload import built_in
from outrider.drafters.some_rows import opened
from outrider.engine.loading import Pair
from outrider.runtimes.transformers.model import TransformersModel
from outrider.types.protocols import DraftContext, Drafter
from outrider.types.records import Distributions, DraftPlan, DraftProposal, Prefix, RoundRecord

from .regimes import ALL, Regimes
from .report import Report, add_row, columns
from .speedup import KINDS, MOST

TOKENS = 256
TEMPERATURES = (0.0, 0.8, 1.0)
SIZES = (1, 4, 16)
WARM_UP = 8


def run(rounds: int, regimes: Regimes = ALL) -> Report:
    """Race each drafter against plain decoding on `rounds` prompts of all kinds in turn.

    Of batches half as many of each size; at least two of either.
    """
    names, temperatures, sizes = regimes.of(KINDS, TEMPERATURES, SIZES)
    count = {size: max(rounds if size == 1 else rounds // 2, 2) for size in sizes}
    # Decoders that hold slots at once: plain, and each drafter's twice.
    most = max(size * (9 if size == 1 else 5) for size in sizes)
    pair = outrider.load("demo", device="cpu", dtype="float32", max_sequences=most)
    prompts = max(size * batches for size, batches in count.items())
    each = min(-(-prompts // len(names)), *MOST.values())
    kinds = built_in(names, pair.tokenizer, pair.target.vocab_size, each)
    mixed = zip(*(kind.prompts for kind in kinds), strict=True)
    found = [list(prompt.token_ids) for prompts in mixed for prompt in prompts]
    table = columns(
        f"tokens/s over plain decoding's, {', '.join(names)}, {TOKENS} tokens a prompt",
        "drafter",
        "T",
        "batches",
        "speedup",
        "95%",
        "usual",
        "unpaid",
        "planning",
        "new",
        "95%",
        "usual",
        "unpaid",
        "kept",
        "drafted",
    )
    rows = []
    for size in sizes:
        # A model each, so that none finds a prompt that another has read.
        models = [_second(pair, size) for _ in range(2)]
        batches = [found[first : first + size] for first in range(0, size * count[size], size)]
        batches = [batch for batch in batches if len(batch) == size]
        for temperature in temperatures:
            for row in _measure(pair, models, batches, temperature):
                rows.append(row)
                same, new = _shown(row["same"]), _shown(row["new"])
                add_row(
                    table,
                    row["drafter"],
                    f"{temperature:g}",
                    f"{len(batches)} of {size}",
                    *same,
                    f"{row['unpaid']:.1%}",
                    f"{row['planning']:.1%}",
                    *new,
                    f"{row['new_unpaid']:.1%}",
                    "-" if row["kept"] is None else f"{row['kept']:.2f}",
                    f"{row['drafting']:.2f}",
                )
    return Report(
        "losing",
        "default settings; one round of each decoder in turn; the target's first forward, with "
        "which it reads the prompt, is not timed; 95%: bootstrap and Student's t over prompts, or "
        "batches of them; "
        "usual: speedup if each round had taken what rounds of its kind took, by the median: "
        "without slow moments of the machine, and without a drafter's reading after the first "
        "round; unpaid: what rounds that drafted took beyond plain decoding's usual ones of as "
        "many tokens, a drafter's reading included, and planning: what deciding took, both of "
        "all rounds' time; at first one decoder for all prompts, which learns from each, and "
        "under new "
        "another one for every prompt: what rounds cost is measured when it is made, which is not "
        "timed, and whether drafts are kept it has to find out; kept: share of first tokens that "
        "were; drafted: share of rounds that drafted, both by the one for all prompts; wrong: "
        "drafts that are never kept; dear: a draft, each step of which takes two target forwards, "
        "so that it is best left alone; exit: the target's own first layers and its head, of a "
        "target that was not trained for it, one by one alone",
        table,
        {"tokens": TOKENS, "kinds": names, "rows": rows},
    )


class Wrong:
    """Proposes the same token again and again: after text, hardly ever right."""

    vocab_size = None

    def propose(
        self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: DraftContext
    ) -> DraftProposal:
        """Token 1, as often as planned."""
        tokens = torch.ones(len(prefixes), plan.deepest, dtype=torch.int64, device=ctx.device)
        return DraftProposal(tokens, plan.depth, Distributions(point_masses=tokens))


class Dear(ModelDrafter):
    """The target drafts for itself, each step of it taken twice."""

    def propose(
        self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: DraftContext
    ) -> DraftProposal:
        """What the target would say, at twice its price."""
        cursor = opened(self.model, prefixes, plan.depth)
        for _ in range(plan.deepest - 1):
            cursor.step(cursor.logits.argmax(-1))
        return super().propose(prefixes, plan, ctx)


def _second(pair: Pair, size: int) -> TransformersModel:
    """The target once more, in so many slots of its own."""
    return TransformersModel(pair.target.hf_model, max_sequences=size)


def _drafters(pair: Pair, second: TransformersModel, size: int) -> dict[str, Drafter]:
    made: dict[str, Drafter] = {"wrong": Wrong(), "dear": Dear(second)}
    if size > 1:
        return made
    layers = pair.target.hf_model.config.num_hidden_layers
    exits = {f"exit {k}": EarlyExitDrafter(pair.target, k) for k in (layers // 4, layers // 2)}
    return made | exits


def _measure(
    pair: Pair, models: list[TransformersModel], batches: list[list[list[int]]], temperature: float
) -> list[dict[str, Any]]:
    params = SamplingParams(max_tokens=TOKENS, temperature=temperature, ignore_eos=True)
    size = len(batches[0])

    def decoders(second: TransformersModel) -> dict[str, SpeculativeDecoder]:
        drafters = _drafters(pair, second, size)
        return {name: SpeculativeDecoder(pair.target, each) for name, each in drafters.items()}

    same = decoders(models[0])
    raced = []
    first = [SpeculativeDecoder(pair.target), *same.values()]
    for batch, count in [(batches[0], WARM_UP), *((batch, TOKENS) for batch in batches)]:
        asked = replace(params, max_tokens=count)
        each = [*first, *decoders(models[1]).values()]
        raced.append([Lane(decoder, batch, [asked] * size) for decoder in each])
        in_turn(raced[-1])
    by_decoder = list(zip(*raced[1:], strict=True))
    plain, *others = map(Timed.of, by_decoder)
    known, new = others[: len(same)], others[len(same) :]
    return [
        {
            "drafter": name,
            "temperature": temperature,
            "batch": size,
            "batches": len(batches),
            "same": _gain(plain, one),
            "new": _gain(plain, other),
            "kept": next(iter(one.metrics.per_position), None),
            "drafting": one.metrics.draft_rounds / one.metrics.rounds,
            "plain_tokens_per_s": plain.metrics.tokens_per_s,
        }
        | _overhead(_rounds(lanes), _rounds(by_decoder[0]))
        | {"new_unpaid": _overhead(_rounds(own), _rounds(by_decoder[0]))["unpaid"]}
        for name, one, other, lanes, own in zip(
            same, known, new, by_decoder[1:], by_decoder[1 + len(same) :], strict=False
        )
    ]


def _rounds(lanes: Sequence[Lane]) -> list[RoundRecord]:
    """Those in which no prompt was read by the target."""
    return [record for lane in lanes for record in lane.records[1:]]


def _overhead(records: Sequence[RoundRecord], plain: Sequence[RoundRecord]) -> dict[str, float]:
    """Shares of the time of rounds: that of drafts which did not pay, and that of planning.

    Args:
        records: of the rounds.
        plain: of plain decoding's beside it, of as many sequences.
    """
    times = defaultdict(list)
    for one in plain:
        times[len(one.emitted)].append(one.total_s - one.plan_s)
    usual = {rows: median(found) for rows, found in times.items()}
    rows = max(usual)
    unpaid = sum(
        one.total_s - one.plan_s - usual.get(len(one.emitted), usual[rows]) * fmean(one.emitted)
        for one in records
        if max(one.drafted)
    )
    took = sum(one.total_s for one in records)
    return {"unpaid": unpaid / took, "planning": sum(one.plan_s for one in records) / took}


def _gain(plain: Timed, other: Timed) -> dict[str, float | None]:
    count = len(plain.seconds)
    ratio, low, high = compared(plain.seconds, plain.tokens, other.seconds, other.tokens, count)
    usual, _, _ = compared(plain.usual, plain.tokens, other.usual, other.tokens, count)
    return {"speedup": ratio, "low": low, "high": high, "usual": usual}


def _shown(gain: dict[str, float | None]) -> tuple[str, str, str]:
    return (
        f"{gain['speedup']:.3f}",
        f"{gain['low']:.3f}-{gain['high']:.3f}",
        f"{gain['usual']:.3f}",
    )
