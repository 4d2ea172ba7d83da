"""What is raced, and what came of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

from ..config.params import LOSSY
from ..errors import InvalidConfigError, shown

if TYPE_CHECKING:
    from .. import SpeculationMetrics

FORMAT = "outrider-bench/2"
"""Names the layout of `Results.document`; the number grows when a field changes its meaning."""

Outcome = Literal["faster", "slower", "undecided"]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt of a workload.

    Attributes:
        token_ids: of the prompt, in the target's vocabulary.
        name: where it comes from, for messages: "line 3", "heapq.py".
        max_tokens: what a request file asks for; None leaves it to the benchmark.
        prediction: the token ids that the output is expected to be; None expects nothing.
        kind: of built-in prompts their kind, of others the category of the row, the stem of the
            file of rows, or the suffix of the file that it is.
    """

    token_ids: tuple[int, ...]
    name: str
    max_tokens: int | None = None
    prediction: tuple[int, ...] | None = None
    kind: str = ""


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
        drafter: "draft_model", "ngram", "suffix", "hybrid", "early_exit", "prediction"; "none"
            decodes plainly.
        verification: the method, None where there is no choice.
        depth: tokens drafted in a row, None where it is adaptive.
        tree: children at each depth, None for chains.
        exit_layers: how many of the target's first layers draft, None unless they do.
        system: which software decodes: "outrider", or the name of a peer.
    """

    drafter: str
    verification: str | None = None
    depth: int | None = None
    tree: tuple[int, ...] | None = None
    exit_layers: int | None = None
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
        parts = [] if self.system == "outrider" else [self.system]
        if self.plain:
            return " ".join([*parts, "plain"])
        parts.append(self.drafter)
        if self.exit_layers is not None:
            parts.append(f"of {self.exit_layers} layers")
        if self.verification not in (None, "block"):
            parts.append(str(self.verification))
        if self.tree is not None:
            parts.append("tree " + "x".join(map(str, self.tree)))
        else:
            parts.append("adaptive" if self.depth is None else f"k={self.depth}")
        return " ".join(parts)


PLAIN = Candidate("none")
"""The baseline: the same engine, drafting nothing."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Where an output first differs from the one it has to be.

    Attributes:
        prompt: the name of the prompt.
        position: of the token among those emitted, from 0.
        found, expected: the token ids there; None beyond an output's end.
        gap: the target's logit of its likeliest token less the smaller logit of the two; None if
            unknown.
        allowed: the largest gap that rounding explains: `Runtime.rounding` of the largest logit.
    """

    prompt: str
    position: int
    found: int | None
    expected: int | None
    gap: float | None = None
    allowed: float | None = None

    @property
    def tie(self) -> bool:
        """Whether rounding explains it: either token may be the likeliest."""
        return self.gap is not None and self.allowed is not None and self.gap <= self.allowed

    def __str__(self) -> str:
        """Return it as a clause."""
        found, expected = (
            "the end" if token is None else f"id {token}" for token in (self.found, self.expected)
        )
        said = f"{self.prompt}, token {self.position + 1}: {found} where plain has {expected}"
        if self.gap is None:
            return said
        kind = "a tie" if self.tie else "NOT a tie"
        return f"{said}; logits {self.gap:.2g} apart, {kind} (rounding explains {self.allowed:.2g})"


@dataclass(frozen=True, slots=True)
class Measurement:
    """How one candidate did in one trial: a workload at a temperature and a batch size.

    A stretch is one batch of prompts, decoded once. All candidates of a trial have the same.

    Attributes:
        candidate: the way of decoding.
        workload: the name of the workload.
        temperature: of every request.
        batch: sequences decoded together.
        seconds: for each stretch, from the request to the last token, without `prompt_s`.
        prompt_s: for each stretch, the seconds of the target's first forward pass, which prefills
            the prompts.
        tokens: for each stretch, the tokens emitted, counted from ids.
        prompts: how many different ones the stretches have; 0 if unknown.
        speedup: tokens per second over the baseline's; 1 for the baseline; None where tokens that
            were asked for are missing on either side.
        low, high: its 95% interval over stretches; None with fewer than two different ones.
        identical: stretches whose tokens are those of plain decoding; None where they may differ.
        differences: where each output that differs does so first.
        metrics: of its rounds; None for systems that do not report them.
    """

    candidate: Candidate
    workload: str
    temperature: float
    batch: int
    seconds: tuple[float, ...]
    prompt_s: tuple[float, ...]
    tokens: tuple[int, ...]
    speedup: float | None
    prompts: int = 0
    low: float | None = None
    high: float | None = None
    identical: int | None = None
    differences: tuple[Difference, ...] = ()
    metrics: SpeculationMetrics | None = None

    @property
    def label(self) -> str:
        """The candidate's name, and whether its verification is lossy."""
        return self.candidate.label + " (lossy)" * self.candidate.lossy

    @property
    def trial(self) -> str:
        """What it has in common with the candidates that it is compared with."""
        batch = f", batch {self.batch}" if self.batch > 1 else ""
        return f"{self.workload}, temperature {self.temperature:g}{batch}"

    @property
    def tokens_per_s(self) -> float:
        """Tokens emitted per second over all stretches, prefill aside."""
        return sum(self.tokens) / sum(self.seconds)

    @property
    def bounded(self) -> bool:
        """Whether there is an interval that is narrow enough to say something."""
        return self.low is not None and self.high is not None and self.high < 100 * self.low

    @property
    def wrong(self) -> bool:
        """Whether a greedy output of a lossless method of ours is not the one that it has to be."""
        ours = self.candidate.system == "outrider" and self.temperature == 0
        return ours and not all(each.tie for each in self.differences)

    @property
    def outcome(self) -> Outcome:
        """Faster or slower than plain decoding if the whole 95% interval is on that side of 1."""
        if self.low is None or self.high is None:
            return "undecided"
        if self.low > 1:
            return "faster"
        return "slower" if self.high < 1 else "undecided"


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
        """The results as JSON takes them; `from_document` reads them back."""
        return {"format": FORMAT, **asdict(self)}

    @staticmethod
    def from_document(found: Any) -> Results:
        """Read what `document` wrote.

        Raises:
            InvalidConfigError: it is no such document.
        """
        try:
            if found["format"] != FORMAT:
                raise ValueError(f"its format is {shown(found['format'])}")
            kept = _fields(Results, found)
            kept["measurements"] = tuple(map(_measurement, kept["measurements"]))
            return Results(**kept)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            given = f"no results ({type(error).__name__}: {error})"
            expected = f"what outrider bench writes, of format {FORMAT!r}"
            raise InvalidConfigError("results", found, expected, given=given) from error


def _measurement(found: dict[str, Any]) -> Measurement:
    from .. import SpeculationMetrics

    kept = _fields(Measurement, found)
    kept["candidate"] = Candidate(**_fields(Candidate, kept["candidate"]))
    kept["differences"] = tuple(Difference(**each) for each in kept["differences"])
    if kept["metrics"] is not None:
        kept["metrics"] = SpeculationMetrics(**_fields(SpeculationMetrics, kept["metrics"]))
    made = Measurement(**kept)
    # What is shown of it, so that a damaged file is refused.
    _ = made.tokens_per_s, made.outcome, float(made.speedup or 0)
    return made


def _fields(kind: type[Any], found: dict[str, Any]) -> dict[str, Any]:
    """The fields of a record in a JSON object, lists as tuples."""
    values = {each.name: found[each.name] for each in fields(kind)}
    return {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
