"""What the default loses to drafters that cannot pay: it has to find out, and leave them alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

import outrider
from outrider import EarlyExitDrafter, ModelDrafter, SamplingParams, SpeculativeDecoder
from outrider.bench.race import Lane, Timed, compared, in_turn
from outrider.bench.workload import built_in
from outrider.loading import Pair
from outrider.models.transformers import TransformersModel
from outrider.protocols import DraftContext, DraftModel
from outrider.records import DraftPlan, DraftProposal, Laws, Prefix

from .report import Report, add_row, columns
from .speedup import reserve

TOKENS = 256
TEMPERATURES = (0.0, 0.8, 1.0)
WARM_UP = 8
SLOTS = 9
"""Sequences that hold a slot of the target at once: plain decoding, and four drafters twice."""


def run(rounds: int) -> Report:
    """Race each drafter against plain decoding on `rounds` prompts of code, at least two."""
    prompts = max(rounds, 2)
    pair = outrider.load("demo", device="cpu", dtype="float32", max_sequences=SLOTS)
    (kind,) = built_in(("code",), pair.tokenizer, pair.target.vocab_size, prompts)
    room = reserve(pair, (kind,))
    # A model each, so that none finds a prompt that another has read.
    models = [_second(pair, room) for _ in range(2)]
    found = [list(prompt.token_ids) for prompt in kind.prompts]
    table = columns(
        f"tokens/s over plain decoding's, code, batch 1, {TOKENS} tokens a prompt, "
        f"{prompts} prompts",
        "drafter",
        "T",
        "speedup",
        "95%",
        "usual",
        "new",
        "95%",
        "usual",
        "kept",
        "drafted",
    )
    rows = []
    for temperature in TEMPERATURES:
        for row in _measure(pair, models, found, temperature):
            rows.append(row)
            add_row(
                table,
                row["drafter"],
                f"{temperature:g}",
                *(shown for side in ("same", "new") for shown in _shown(row[side])),
                "-" if row["kept"] is None else f"{row['kept']:.2f}",
                f"{row['drafting']:.2f}",
            )
    return Report(
        "losing",
        "default settings; one round of each decoder in turn; the target's first forward, with "
        "which it reads the prompt, is not timed; 95%: bootstrap and Student's t over prompts; "
        "usual: speedup if each round had taken what rounds of its kind took, by the median: "
        "without slow moments of the machine, and without a drafter's reading after the first "
        "round; at first one decoder for all prompts, which learns from each, and under new "
        "another one for every prompt: what rounds cost is measured when it is made, which is not "
        "timed, and whether drafts are kept it has to find out; kept: share of first tokens that "
        "were; drafted: share of rounds that drafted, both by the one for all prompts; wrong: "
        "drafts that are never kept; dear: a draft, each step of which takes two target forwards, "
        "so that it is best left alone; exit: the target's own first layers and its head, of a "
        "target that was not trained for it",
        table,
        {"tokens": TOKENS, "prompts": prompts, "rows": rows},
    )


class Wrong:
    """Proposes the same token again and again: after text, hardly ever right."""

    vocab_size = None

    def propose(
        self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: DraftContext
    ) -> DraftProposal:
        """Token 1, as often as planned."""
        tokens = torch.ones(len(prefixes), plan.deepest, dtype=torch.int64, device=ctx.device)
        return DraftProposal(tokens, plan.depth, Laws(atoms=tokens))


class Dear(ModelDrafter):
    """The target drafts for itself, each step of it taken twice."""

    def propose(
        self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: DraftContext
    ) -> DraftProposal:
        """What the target would say, at twice its price."""
        cursor = self.model.open(prefixes, plan.deepest)
        for _ in range(plan.deepest - 1):
            cursor.step(cursor.logits.argmax(-1))
        return super().propose(prefixes, plan, ctx)


def _second(pair: Pair, room: int) -> TransformersModel:
    """The target once more, in slots of its own, with room for so many tokens."""
    assert isinstance(pair.target, TransformersModel)
    model = TransformersModel(pair.target.hf_model, max_sequences=1)
    model.reserve(room)
    return model


def _drafters(pair: Pair, second: TransformersModel) -> dict[str, DraftModel]:
    assert isinstance(pair.target, TransformersModel)
    layers = pair.target.hf_model.config.num_hidden_layers
    exits = {f"exit {k}": EarlyExitDrafter(pair.target, k) for k in (layers // 4, layers // 2)}
    return {"wrong": Wrong(), "dear": Dear(second), **exits}


def _measure(
    pair: Pair, models: list[TransformersModel], prompts: list[list[int]], temperature: float
) -> list[dict[str, Any]]:
    params = SamplingParams(max_tokens=TOKENS, temperature=temperature, ignore_eos=True)

    def decoders(second: TransformersModel) -> dict[str, SpeculativeDecoder]:
        drafters = _drafters(pair, second)
        return {name: SpeculativeDecoder(pair.target, each) for name, each in drafters.items()}

    same = decoders(models[0])
    raced = []
    first = [SpeculativeDecoder(pair.target), *same.values()]
    for prompt, count in [(prompts[0], WARM_UP), *((prompt, TOKENS) for prompt in prompts)]:
        asked = replace(params, max_tokens=count)
        each = [*first, *decoders(models[1]).values()]
        raced.append([Lane(decoder, [prompt], [asked]) for decoder in each])
        in_turn(raced[-1])
    plain, *others = (Timed.of(lanes) for lanes in zip(*raced[1:], strict=True))
    known, new = others[: len(same)], others[len(same) :]
    return [
        {
            "drafter": name,
            "temperature": temperature,
            "same": _gain(plain, one),
            "new": _gain(plain, other),
            "kept": next(iter(one.metrics.per_position), None),
            "drafting": one.metrics.draft_rounds / one.metrics.rounds,
            "plain_tokens_per_s": plain.metrics.tokens_per_s,
        }
        for name, one, other in zip(same, known, new, strict=True)
    ]


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
