"""One verification call, from logits to verdict: ours, transformers' and the floor, in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import torch
from torch import Tensor
from transformers.generation.utils import _speculative_sampling

from outrider import SamplingParams
from outrider.random import Philox4x32, RoundDraws
from outrider.sampling import distributions as sampling
from outrider.types.records import Distributions, DraftProposal
from outrider.verification import METHODS, verify
from outrider.verification.fused import verify_logits

from .report import Report, Spread, add_row, columns

DEPTH = 5
BATCHES, VOCABULARIES = (1, 8, 32), (32_000, 128_256)
_CASES = 4
_SPREAD, _NOISE = 3.0, 0.55
"""Of the draft's logits, and of what the target's differ by: about 0.7 of the drafts are kept."""

_GOALS = {(1, 128_256): 4.0, (8, 128_256): 4.0}
"""How many times faster than transformers' token verification is to be, by batch and vocabulary."""

FLOOR, THEIRS = "logsumexp (floor)", "transformers"


@dataclass(frozen=True, slots=True)
class Case:
    """A round to verify: what each side of the engine would have at hand.

    Attributes:
        proposal: drafts of B rows and the distributions they were drawn from, known from drafting.
        draft_logits: float32 [B, K, V], which transformers keeps in their stead.
        logits: float32 [B, K + 1, V], the target's.
        uniforms: float64 [B, 2].
    """

    proposal: DraftProposal
    draft_logits: Tensor
    logits: Tensor
    uniforms: Tensor

    @staticmethod
    def random(batch: int, vocabulary: int, random: torch.Generator) -> Case:
        """A case whose draft and target differ by noise on their logits."""
        logits = torch.randn(batch, DEPTH + 1, vocabulary, generator=random) * _SPREAD
        noise = torch.randn(batch, DEPTH, vocabulary, generator=random) * _NOISE
        draft_logits = logits[:, :DEPTH] + noise
        distributions = draft_logits.softmax(-1)
        tokens = torch.multinomial(distributions.flatten(0, 1), 1, generator=random).view(
            batch, DEPTH
        )
        proposal = DraftProposal(tokens, np.full(batch, DEPTH), Distributions(probs=distributions))
        uniforms = torch.rand(batch, 2, dtype=torch.float64, generator=random)
        return Case(proposal, draft_logits, logits, uniforms)

    @property
    def draws(self) -> RoundDraws:
        """The round's draws, whose uniforms were made ahead."""
        return RoundDraws(Philox4x32(), None, self.uniforms)


def run(rounds: int) -> Report:
    """Time each way `rounds` times on each size, in turn."""
    random = torch.Generator().manual_seed(0)
    table = columns(
        f"one verification call, K = {DEPTH}, milliseconds: median (and quartiles)",
        "batch, vocabulary",
        "",
        "time",
        "x transformers'",
        "x floor",
        "kept",
        "",
    )
    rows = []
    for vocabulary in VOCABULARIES:
        for batch in BATCHES:
            cases = [Case.random(batch, vocabulary, random) for _ in range(_CASES)]
            timed = _timed(cases, max(5, rounds // batch) if rounds > 5 else rounds)
            floor = timed[FLOOR].spread.median
            theirs = timed[THEIRS].spread.median
            for name, found in timed.items():
                faster = theirs / found.spread.median
                goal = _GOALS.get((batch, vocabulary)) if name == "fast, token" else None
                add_row(
                    table,
                    f"{batch}, {vocabulary:,}" if name == FLOOR else "",
                    name,
                    str(found.spread),
                    f"{faster:.2f}",
                    f"{found.spread.median / floor:.2f}",
                    "" if found.kept is None else f"{found.kept:.2f}",
                    "" if goal is None else f"goal >= {goal:g}",
                )
                rows.append(
                    {
                        "batch": batch,
                        "vocabulary": vocabulary,
                        "system": name,
                        **found.spread.figures(),
                        "times_faster_than_transformers": round(faster, 3),
                        "times_floor": round(found.spread.median / floor, 3),
                        "kept": found.kept,
                        "goal": goal,
                        "calls": found.calls,
                    }
                )
    regime = (
        "CPU, float32 logits to verdict at temperature 1, the ways in turn, in random order; "
        f"normal logits of spread {_SPREAD:g}, the draft's off by noise of {_NOISE:g}; "
        "ours with the drafts' distributions as drafting leaves them; "
        "transformers' _speculative_sampling takes one row a call, so a batch is as many calls; "
        "reference: softmax of all rows, then verify; kept: drafts of "
        f"{DEPTH}, mean"
    )
    return Report("verification", regime, table, {"regime": regime, "k": DEPTH, "rows": rows})


@dataclass(frozen=True, slots=True)
class Timed:
    """What a way took, how many drafts it kept on average (None: it keeps none), and its calls."""

    spread: Spread
    kept: float | None
    calls: int


def _timed(cases: Sequence[Case], rounds: int) -> dict[str, Timed]:
    batch, _, vocabulary = cases[0].logits.shape
    params = [SamplingParams(temperature=1.0)] * batch
    packed = sampling.PackedParams.pack(params, vocabulary, torch.device("cpu"))

    def floor(case: Case) -> None:
        torch.logsumexp(case.logits, -1)

    def transformers(case: Case) -> float:
        kept = 0
        for row in range(batch):
            one = slice(row, row + 1)
            _, matches = _speculative_sampling(
                case.proposal.tokens[one], case.draft_logits[one], DEPTH, case.logits[one]
            )
            kept += int(matches)
        return kept / batch

    def reference(method: str) -> Callable[[Case], float]:
        def call(case: Case) -> float:
            distributions, _ = sampling.distributions(case.logits, packed)
            verdict = verify(case.proposal, distributions.probs, METHODS[method], case.draws)
            return float(verdict.node.double().mean())

        return call

    def fast(method: str) -> Callable[[Case], float]:
        def call(case: Case) -> float:
            verdict, _ = verify_logits(
                case.proposal, case.logits, None, METHODS[method], case.draws
            )
            return float(verdict.node.double().mean())

        return call

    ways: dict[str, Callable[[Case], float | None]] = {
        FLOOR: floor,
        THEIRS: transformers,
        "reference, token": reference("token"),
        "reference, block": reference("block"),
        "fast, token": fast("token"),
        "fast, block": fast("block"),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    kept: dict[str, list[float]] = {name: [] for name in ways}
    skipped = min(3, rounds)
    # In a new order each time: whoever comes next to the same logits finds them in a cache.
    order = np.random.default_rng(0)
    for call in range(skipped + rounds):
        case = cases[call % len(cases)]
        case.uniforms.uniform_()
        for name in order.permutation(list(ways)).tolist():
            start = perf_counter()
            found = ways[name](case)
            end = perf_counter()
            if call >= skipped:
                times[name].append(end - start)
                kept[name] += [] if found is None else [found]
    return {
        name: Timed(
            Spread.of(spent), float(np.mean(kept[name])) if kept[name] else None, len(spent)
        )
        for name, spent in times.items()
    }
