"""What speculation is worth on the demo pair: the same engine with it and without.

The two take a round each in turn, so that both meet the same noise of the machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np
from rich.table import Table

import outrider
from outrider import SamplingParams, SpeculativeConfig, SpeculativeDecoder
from outrider.batch import Step
from outrider.metrics import SpeculationMetrics
from outrider.protocols import DraftModel
from outrider.running import Run

from .report import Report, columns
from .workloads import workloads

TOKENS = 256
TEMPERATURES = (0.0, 0.8, 1.0)
BATCHES = (1, 4, 16)
WARM_UP = 8


@dataclass(frozen=True, slots=True)
class Timed:
    """One way of decoding, on some prompts.

    Attributes:
        seconds: for each prompt, or each batch of them.
        metrics: of its rounds.
    """

    seconds: tuple[float, ...]
    metrics: SpeculationMetrics


def speedup(plain: Timed, other: Timed) -> tuple[float, float, float]:
    """Plain seconds over the other's, with a 95% bootstrap interval over prompts."""
    times = np.array([plain.seconds, other.seconds])
    picks = np.random.default_rng(0).integers(times.shape[1], size=(2000, times.shape[1]))
    ratios = np.divide(*times[:, picks].sum(-1))
    low, high = np.percentile(ratios, (2.5, 97.5)).tolist()
    return float(np.divide(*times.sum(1))), low, high


def race(
    decoders: Sequence[SpeculativeDecoder],
    prompts: Sequence[Sequence[Sequence[int]]],
    params: SamplingParams,
) -> list[Timed]:
    """Decode batches of prompts with several decoders, one round of each in turn.

    Args:
        decoders: of the same models; each decodes in slots of its own.
        prompts: for each batch, its prompts.
        params: of every request.
    """
    seconds: list[list[float]] = [[] for _ in decoders]
    for decoder in decoders:
        decoder.reset_metrics()
    for batch in prompts:
        lanes = [_Lane(decoder, batch, params) for decoder in decoders]
        while any(lane.running for lane in lanes):
            for lane in lanes:
                lane.advance()
        for lane, spent in zip(lanes, seconds, strict=True):
            spent.append(lane.seconds)
    return [
        Timed(tuple(spent), decoder.metrics)
        for spent, decoder in zip(seconds, decoders, strict=True)
    ]


class _Lane:
    """One decoder on its way through a batch. Its clock starts after the prompts were read."""

    def __init__(
        self,
        decoder: SpeculativeDecoder,
        batch: Sequence[Sequence[int]],
        params: SamplingParams,
    ) -> None:
        states = [state for prompt in batch for state in decoder.start(list(prompt), params)]
        self._rounds: Iterator[Step] = iter(Run(decoder, states, discard=True))
        self.seconds = 0.0
        self.running = True
        next(self._rounds)

    def advance(self) -> None:
        """One more round, if there is one."""
        if not self.running:
            return
        start = perf_counter()
        self.running = next(self._rounds, None) is not None
        self.seconds += perf_counter() - start


def run(rounds: int) -> Report:
    """Race the default configuration against plain decoding on `rounds` prompts of each kind."""
    pair = outrider.load("demo", device="cpu", dtype="float32", max_sequences=2 * max(BATCHES))
    drafter = pair.drafter
    prompts = workloads(pair.tokenizer, max(rounds, 2))
    table = columns(
        f"tokens/s over plain decoding's, {TOKENS} tokens a prompt, with 95% intervals",
        "workload",
        "T",
        "batch",
        "speedup",
        "95%",
        "length",
        "ceiling",
        "drafted",
    )
    rows = []
    for name, found in prompts.items():
        for temperature in TEMPERATURES:
            for size in BATCHES:
                row = _measure(pair, drafter, name, found, temperature, size)
                rows.append(row)
                _show(table, row)
    return Report(
        "speedup",
        "one round of each decoder in turn; reading the prompt and the first round are not timed; "
        "length: tokens emitted in a round that drafts, beside the most that any lossless "
        "verification would emit; drafted: share of rounds that drafted",
        table,
        {"rows": rows},
    )


def _measure(
    pair: outrider.Pair,
    drafter: DraftModel | None,
    name: str,
    prompts: list[list[int]],
    temperature: float,
    size: int,
) -> dict[str, object]:
    params = SamplingParams(max_tokens=TOKENS, temperature=temperature, ignore_eos=True)
    plain = SpeculativeDecoder(pair.target)
    fast = SpeculativeDecoder(pair.target, drafter, config=SpeculativeConfig(depth="adaptive"))
    batches = [
        [prompts[(start + i) % len(prompts)] for i in range(size)] for start in range(len(prompts))
    ]
    if size > 1:
        batches = batches[:2]
    warm = SamplingParams(max_tokens=WARM_UP, temperature=temperature, ignore_eos=True)
    race([plain, fast], batches[:1], warm)
    without, with_it = race([plain, fast], batches, params)
    ratio, low, high = speedup(without, with_it)
    metrics = with_it.metrics
    return {
        "workload": name,
        "temperature": temperature,
        "batch": size,
        "speedup": ratio,
        "low": low,
        "high": high,
        "acceptance_length": metrics.acceptance_length,
        "ceiling": metrics.ceiling,
        "drafting": metrics.draft_rounds / metrics.rounds,
        "plain_tokens_per_s": without.metrics.tokens_per_s,
        "per_position": metrics.per_position,
    }


def _show(table: Table, row: dict[str, object]) -> None:
    def shown(name: str) -> str:
        value = row[name]
        return "-" if value is None else f"{value:.2f}"

    table.add_row(
        str(row["workload"]),
        f"{row['temperature']:g}",
        str(row["batch"]),
        shown("speedup"),
        f"{shown('low')}-{shown('high')}",
        shown("acceptance_length"),
        shown("ceiling"),
        shown("drafting"),
    )
