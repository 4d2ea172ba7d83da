"""What is measured, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..engine.metrics import SpeculationMetrics


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt of a workload.

    Attributes:
        token_ids: of the prompt, by the pair's tokenizer.
        name: where it comes from, for messages and reports: "line 3", "heapq.py".
        max_tokens: what a request file asks for; None leaves it to the benchmark.
        prediction: what the output is expected to be; None expects nothing.
    """

    token_ids: tuple[int, ...]
    name: str
    max_tokens: int | None = None
    prediction: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """Prompts of one kind.

    Attributes:
        name: of the kind.
        prompts: at least one.
        skipped: for each prompt that could not be used, its place and why.
    """

    name: str
    prompts: tuple[Prompt, ...]
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Contender:
    """A way of decoding.

    Attributes:
        system: who decodes: "outrider", "transformers" or "llama.cpp", the latter with the type of
            its numbers if that is not the dtype of the models.
        drafter: what drafts, by its name on the command line; "none" decodes plainly.
        verification: the method, None where there is no choice.
        num_speculative_tokens: the depth of a draft, None where it is adaptive.
        tree_shape: children at each level of a tree, None for chains.
        exit_layers: how many of the target's first layers draft, None unless it is they that do.
    """

    system: str
    drafter: str
    verification: str | None = None
    num_speculative_tokens: int | None = None
    tree_shape: tuple[int, ...] | None = None
    exit_layers: int | None = None

    @property
    def plain(self) -> bool:
        """Whether nothing is drafted."""
        return self.drafter == "none"

    @property
    def label(self) -> str:
        """A short name, unique among the contenders of a run."""
        if self.plain:
            return f"{self.system} plain"
        depth = self.num_speculative_tokens
        parts = [self.system, self.drafter]
        if self.exit_layers is not None:
            parts.append(f"of {self.exit_layers}")
        if self.verification not in (None, "block"):
            parts.append(str(self.verification))
        if self.tree_shape is not None:
            parts.append("tree " + "x".join(map(str, self.tree_shape)))
        else:
            parts.append("adaptive" if depth is None else f"k={depth}")
        return " ".join(parts)


@dataclass(frozen=True, slots=True)
class Measurement:
    """How one contender did on one workload under one regime.

    Attributes:
        contender: who.
        workload: the name of the workload.
        temperature: of every request.
        batch: sequences decoded together.
        dtype: of both models.
        seconds: for each timed stretch (a prompt, or a batch of them, once for each repeat), in the
            same order for every contender of a regime; from the request to the last token, but for
            `prompt_s`.
        tokens: emitted in each stretch, counted from ids.
        metrics: of the rounds; None for systems that do not report them.
        identical: stretches whose tokens are those of plain decoding; None where they need not be.
        speedup: tokens a second over those of Outrider's plain decoding; 1 for that one itself,
            None where one of the two is missing tokens that were asked for.
        low, high: its 95% interval over stretches, see `race.speedup`; None with fewer than two.
        prompt_s: for each stretch, the target's first forward, which reads the prompts.
        usual_s: for each stretch, `seconds` had each round taken the median of its kind, see
            `race.Timed.usual`; empty where that is not known.
        partial: whether the run was interrupted before all stretches were measured.
    """

    contender: Contender
    workload: str
    temperature: float
    batch: int
    dtype: str
    seconds: tuple[float, ...]
    tokens: tuple[int, ...]
    metrics: SpeculationMetrics | None
    identical: int | None
    speedup: float | None
    low: float | None
    high: float | None
    prompt_s: tuple[float, ...] = ()
    usual_s: tuple[float, ...] = ()
    partial: bool = False

    @property
    def label(self) -> str:
        """The contender's, and whether its verification is lossy."""
        lossy = self.metrics is not None and self.metrics.lossy
        return self.contender.label + " (lossy)" * lossy

    @property
    def idle(self) -> bool:
        """Whether it might have drafted, and never did."""
        if self.metrics is None or self.contender.plain:
            return False
        return self.metrics.rounds > 0 == self.metrics.draft_rounds

    @property
    def decoding(self) -> SpeculationMetrics | None:
        """`metrics`, their seconds without the target's first forwards, which read the prompts."""
        if self.metrics is None:
            return None
        read = min(sum(self.prompt_s), self.metrics.target_s)
        return replace(
            self.metrics,
            target_s=self.metrics.target_s - read,
            total_s=self.metrics.total_s - read,
        )

    @property
    def usual_tokens_per_s(self) -> float:
        """Tokens emitted a second, over all stretches, but for slow moments of the machine.

        Where `usual_s` is not known it is `tokens_per_s`.
        """
        return sum(self.tokens) / sum(self.usual_s or self.seconds)

    @property
    def tokens_per_s(self) -> float:
        """Tokens emitted a second, over all stretches, the reading of prompts aside."""
        return sum(self.tokens) / sum(self.seconds)

    @property
    def request_tokens_per_s(self) -> float:
        """Tokens emitted a second, over all stretches, from the request to the last token."""
        return sum(self.tokens) / (sum(self.seconds) + sum(self.prompt_s))


@dataclass(frozen=True, slots=True)
class ForwardTime:
    """A point of the curve t(n), of rounds as they were or, in `tune`, at one pace.

    Attributes:
        rows: sequences in the forward.
        width: tokens given to each.
        seconds: the median of a forward of the target.
        low, high: its quartiles.
    """

    rows: int
    width: int
    seconds: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class BenchResult:
    """All that a run of `outrider bench` found.

    Attributes:
        provenance: versions, commit, machine, threads, models and settings, as JSON takes them.
        measurements: of every contender under every regime, baselines first.
        curve: what forwards of the target cost; empty if that was not measured.
        missing: peers that could not take part, and why.
        skipped: rows of prompt files that were left out, and why.
        partial: whether the run was interrupted.
    """

    provenance: dict[str, Any]
    measurements: tuple[Measurement, ...]
    curve: tuple[ForwardTime, ...] = ()
    missing: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    partial: bool = False
