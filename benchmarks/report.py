"""What a benchmark is asked for and hands back, and how its rows are laid out as tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from outrider import Pair, SamplingParams
from outrider.bench.race import OutriderRunner
from outrider.bench.records import PLAIN, Candidate, Measurement, Workload
from outrider.bench.speedup import Speedup
from outrider.bench.trial import Trial, TrialRace
from outrider.bench.workloads import mixed
from outrider.errors import InvalidConfigError
from outrider.types.records import RoundRecord

Say = Callable[[str], object]
KINDS = ("code", "editing", "json", "random")


@dataclass(frozen=True, slots=True)
class Scope:
    """What to measure: None leaves it to the benchmark."""

    rounds: int | None = None
    tokens: int = 256
    workloads: tuple[str, ...] | None = None
    temps: tuple[float, ...] | None = None
    batches: tuple[int, ...] | None = None
    models: tuple[str, ...] | None = None
    kinds: tuple[str, ...] | None = None
    beside: str | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """What was measured, in words, and a row of figures for each thing measured."""

    note: str
    rows: list[dict[str, Any]]


def gain(found: Speedup | None) -> dict[str, float | None]:
    """Return a speed over plain decoding's and the ends of its interval, as fields of a row."""
    if found is None:
        return {"speedup": None, "low": None, "high": None}
    return {"speedup": found.ratio, "low": found.low, "high": found.high}


def spans(
    records: Sequence[RoundRecord], rows: int = 1, outside_s: float = 0.0
) -> dict[str, float]:
    """Return the medians of rounds in milliseconds, by span.

    Args:
        records: of the rounds.
        rows: of each.
        outside_s: what a round took besides.
    """

    def of(seconds: Callable[[RoundRecord], float]) -> float:
        return 1e3 * median(map(seconds, records))

    total = of(lambda one: one.total_s) + 1e3 * outside_s
    parts = {
        "plan_ms": of(lambda one: one.plan_s),
        "target_ms": of(lambda one: one.target_s),
        "draft_ms": of(lambda one: one.draft_s),
    }
    rest = {"rest_ms": total - sum(parts.values()), "row_us": 1e3 * total / rows}
    return {"total_ms": total, **parts, **rest}


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: a heading, the field of a row, and how it is written.

    `low` and `high` name the fields of an interval that is written behind the figure.
    """

    heading: str
    field: str
    form: str = ""
    interval: tuple[str, str] | None = None

    def text(self, row: dict[str, Any]) -> str:
        """The figure of a row; "–" where there is none."""
        value = row.get(self.field)
        if value is None:
            return "–"
        shown = format(value, self.form)
        if self.interval is not None and row.get(self.interval[0]) is not None:
            low, high = (format(row[name], self.form) for name in self.interval)
            shown += f" ({low}–{high})"
        return shown


_WHERE = (
    Column("workload", "workload"),
    Column("temperature", "temperature", "g"),
    Column("batch", "batch"),
)
_SPEEDUP = Column("speedup (95%)", "speedup", ".2f", ("low", "high"))

COLUMNS: dict[str, tuple[Column, ...]] = {
    "speedup": (
        *_WHERE,
        Column("batches", "stretches"),
        _SPEEDUP,
        Column("tokens/s", "tokens_per_s", ".1f"),
        Column("plain", "plain_tokens_per_s", ".1f"),
        Column("acceptance length", "acceptance_length", ".2f"),
        Column("same text", "identical"),
    ),
    "losing": (
        Column("drafter", "drafter"),
        Column("temperature", "temperature", "g"),
        Column("batch", "batch"),
        _SPEEDUP,
        Column("rounds that drafted", "drafting", ".0%"),
    ),
    "depth": (
        *_WHERE,
        *(Column(f"k={k}", f"k={k}", ".2f") for k in (1, 2, 4, 8)),
        Column("adaptive (95%)", "speedup", ".2f", ("low", "high")),
        Column("of the best k", "of_best", ".2f"),
    ),
    "overhead": (
        Column("rounds", "rounds"),
        Column("temperature", "temperature", "g"),
        Column("whole ms", "total_ms", ".2f"),
        Column("planning ms", "plan_ms", ".2f"),
        Column("target ms", "target_ms", ".2f"),
        Column("drafting ms", "draft_ms", ".2f"),
        Column("the rest ms", "rest_ms", ".2f"),
        Column("us a row", "row_us", ".0f"),
    ),
    "runtimes": (
        Column("model", "model"),
        Column("weights", "kind"),
        Column("prefix", "length"),
        Column("rows", "rows"),
        Column("tokens", "tokens"),
        Column("ms", "ms", ".2f"),
        Column("before", "before_ms", ".2f"),
        Column("times as fast", "ratio", ".2f"),
    ),
    "heads": (
        Column("drafter", "drafter"),
        Column("drafts", "shape"),
        Column("temperature", "temperature", "g"),
        Column("acceptance length", "acceptance_length", ".2f"),
        _SPEEDUP,
        Column("tokens/s", "tokens_per_s", ".1f"),
    ),
    "hybrids": (
        Column("model", "model"),
        Column("batch", "batch"),
        Column("transformers ms", "own_ms", ".1f"),
        Column("plain ms", "plain_ms", ".1f"),
        Column("k=4 ms", "drafted_ms", ".1f"),
        Column("times as fast", "speedup", ".2f"),
        Column("states MiB", "state_mib", ".1f"),
    ),
    "imports": (
        Column("program", "program"),
        Column("best ms", "best_ms", ".1f"),
        Column("median ms", "median_ms", ".1f"),
        Column("torch loaded", "torch"),
    ),
}


def workload(pair: Pair, count: int, *kinds: str) -> Workload:
    """Built-in prompts of one kind, or of several in turn."""
    for kind in kinds:
        if kind not in KINDS:
            raise InvalidConfigError("--workloads", kind, f"some of {', '.join(KINDS)}")
    return mixed(kinds, pair.tokenizer, pair.target.vocab_size, count)


def measure(
    pair: Pair,
    candidates: Sequence[Candidate],
    prompts: Workload,
    temperature: float,
    batch: int,
    tokens: int,
) -> list[Measurement]:
    """Race candidates beside plain decoding, which comes first; see `outrider.bench.trial`."""
    sampling = SamplingParams(max_tokens=tokens, temperature=temperature)
    trial = Trial(workload=prompts, sampling=sampling, batch=batch)
    runners = [OutriderRunner.of(candidate, pair, batch) for candidate in (PLAIN, *candidates)]
    race = TrialRace(trial, runners)
    race.run()
    return race.measurements()
