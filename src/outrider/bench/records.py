"""What is raced, and what came of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ..config.params import LOSSY
from .speedup import Speedup

if TYPE_CHECKING:
    from .. import SpeculationMetrics


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt of a workload.

    Attributes:
        token_ids: of the prompt, in the target's vocabulary.
        name: where it comes from, for messages: "line 3", "heapq.py".
        kind: of built-in prompts their kind, of others the category of the row, the stem of the
            file of rows, or the suffix of the file that it is.
        max_tokens: how many tokens are emitted; None leaves it to the benchmark.
    """

    token_ids: tuple[int, ...]
    name: str
    kind: str = ""
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """Prompts of one kind or several; `skipped` says for each that cannot be used, why."""

    name: str
    prompts: tuple[Prompt, ...]
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Candidate:
    """A way of decoding.

    Attributes:
        drafter: "draft_model", "ngram", "suffix" or "hybrid"; "none" decodes plainly.
        verification: the method, None where there is no choice.
        depth: tokens drafted in a row, None where it is adaptive.
        tree: children at each depth, None for chains.
        system: which software decodes: "outrider", or the name of a peer.
    """

    drafter: str
    verification: str | None = None
    depth: int | None = None
    tree: tuple[int, ...] | None = None
    system: str = "outrider"

    @property
    def plain(self) -> bool:
        """Whether nothing is drafted."""
        return self.drafter == "none"

    @property
    def lossy(self) -> bool:
        """Whether its output may differ from the target's distribution."""
        return self.verification in LOSSY

    @property
    def label(self) -> str:
        """A short name, unique among the candidates of a run."""
        parts = [self.system.removeprefix("outrider"), "plain" if self.plain else self.drafter]
        if self.verification not in (None, "block"):
            parts.append(str(self.verification))
        if self.tree is not None:
            parts.append("tree " + "x".join(map(str, self.tree)))
        elif not self.plain:
            parts.append("adaptive" if self.depth is None else f"k={self.depth}")
        return " ".join(filter(None, parts)) + " (lossy)" * self.lossy


PLAIN = Candidate("none")
"""The baseline: the same engine, drafting nothing."""


def trial_label(workload: str, temperature: float, batch: int) -> str:
    """Name what candidates that are compared have in common."""
    return f"{workload}, temperature {temperature:g}" + (f", batch {batch}" if batch > 1 else "")


@dataclass(frozen=True, slots=True)
class Measurement:
    """How one candidate did in one trial: a workload at a temperature and a batch size.

    A stretch is one batch of prompts, decoded once. All candidates of a trial have the same.

    Attributes:
        candidate: the way of decoding.
        workload: the name of the workload.
        temperature: of every request.
        batch: sequences decoded together.
        seconds: for each stretch, from the request to the last token, without the target's first
            forward pass, which prefills the prompts.
        tokens: for each stretch, the tokens emitted, counted from ids.
        speedup: tokens per second over the baseline's; 1 for the baseline; None where tokens that
            were asked for are missing on either side.
        identical: stretches whose tokens are those of plain decoding; None where they may differ.
        errors: for each greedy output that differs from plain decoding's by more than rounding
            explains, where it does first.
        metrics: of its rounds; None for systems that do not report them.
    """

    candidate: Candidate
    workload: str
    temperature: float
    batch: int
    seconds: tuple[float, ...]
    tokens: tuple[int, ...]
    speedup: Speedup | None
    identical: int | None = None
    errors: tuple[str, ...] = ()
    metrics: SpeculationMetrics | None = None

    @property
    def trial(self) -> str:
        """What it has in common with the candidates that it is compared with."""
        return trial_label(self.workload, self.temperature, self.batch)

    @property
    def tokens_per_s(self) -> float:
        """Tokens emitted per second over all stretches, prefill aside."""
        return sum(self.tokens) / sum(self.seconds)

    @property
    def wrong(self) -> bool:
        """Whether an output of a lossless method of ours is not the one that it has to be."""
        return self.candidate.system == "outrider" and bool(self.errors)

    def document(self) -> dict[str, Any]:
        """Return its fields, and what follows from them, as JSON takes it."""
        found = asdict(self) | {"label": self.candidate.label, "tokens_per_s": self.tokens_per_s}
        if self.metrics is not None:
            found["metrics"]["acceptance_rate"] = self.metrics.acceptance_rate
            found["metrics"]["acceptance_length"] = self.metrics.acceptance_length
        return found

    @property
    def outcome(self) -> int:
        """1 if it is faster than plain decoding by its whole interval, -1 if slower, else 0."""
        return self.speedup.outcome if self.speedup else 0


@dataclass(frozen=True, slots=True)
class Results:
    """All that a run of `outrider bench` measured.

    Attributes:
        environment: versions, machine, models and settings, as JSON takes them.
        measurements: of every candidate in every trial, the baseline of a trial first.
        missing: candidates that could not take part, and why.
        skipped: prompts that were left out, and why.
        partial: whether the run was interrupted.
    """

    environment: dict[str, Any]
    measurements: tuple[Measurement, ...]
    missing: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    partial: bool = False

    @property
    def trials(self) -> dict[str, list[Measurement]]:
        """The measurements by trial, in order."""
        found: dict[str, list[Measurement]] = {}
        for measurement in self.measurements:
            found.setdefault(measurement.trial, []).append(measurement)
        return found

    def document(self) -> dict[str, Any]:
        """Return it all as JSON takes it; the format counts changes of what fields mean."""
        measurements = [each.document() for each in self.measurements]
        return {"format": "outrider-bench/4", **asdict(self), "measurements": measurements}
