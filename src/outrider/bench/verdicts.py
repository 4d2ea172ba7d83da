"""What a run comes to: for each workload and regime, what decodes fastest there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from .records import BenchResult, Measurement

Outcome = Literal["faster", "slower", "not told apart"]


@dataclass(frozen=True, slots=True)
class Regime:
    """What all contenders of a comparison have in common, the workload and temperature apart.

    Attributes:
        batch: sequences decoded together.
        dtype: of both models.
    """

    batch: int
    dtype: str

    @property
    def label(self) -> str:
        """For titles."""
        return f"batch {self.batch}, {self.dtype}"

    def of(self, measurements: Iterable[Measurement]) -> list[Measurement]:
        """Those measured under it."""
        return [found for found in measurements if regime(found) == self]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The best contender of one workload at one temperature.

    Attributes:
        workload, temperature, regime: where.
        best: the fastest of the contenders that speculate and are surely faster than plain
            decoding, or of all that speculate where none is.
        ahead: the fastest of all that speculate where it is not `best`: more prompts may show it
            faster than plain decoding.
        plain: a peer's plain decoding that is faster than `best`; None if none is.
    """

    workload: str
    temperature: float
    regime: Regime
    best: Measurement
    ahead: Measurement | None
    plain: Measurement | None

    @property
    def outcome(self) -> Outcome:
        """Whether the best contender beats Outrider's plain decoding."""
        return outcome(self.best)


def regime(measurement: Measurement) -> Regime:
    """The regime of a measurement."""
    return Regime(measurement.batch, measurement.dtype)


def regimes(result: BenchResult) -> list[Regime]:
    """Those of a result, in the order of its measurements."""
    return list(dict.fromkeys(map(regime, result.measurements)))


def is_baseline(measurement: Measurement) -> bool:
    """Whether it is what speedups are over: Outrider's own plain decoding."""
    return measurement.contender.plain and measurement.contender.system == "outrider"


def outcome(measurement: Measurement) -> Outcome:
    """Faster or slower than plain decoding if the whole 95% interval is on that side of 1.

    A measurement must have a speedup; one without an interval stands by the speedup itself.
    """
    assert measurement.speedup is not None
    low = measurement.speedup if measurement.low is None else measurement.low
    high = measurement.speedup if measurement.high is None else measurement.high
    if low > 1:
        return "faster"
    return "slower" if high < 1 else "not told apart"


def verdicts(result: BenchResult) -> list[Verdict]:
    """One wherever a contender that speculates has a speedup."""
    groups: dict[tuple[Regime, str, float], list[Measurement]] = {}
    for found in result.measurements:
        if found.speedup is not None and not is_baseline(found):
            place = regime(found), found.workload, found.temperature
            groups.setdefault(place, []).append(found)
    made = []
    for (where, workload, temperature), members in groups.items():
        speculating = [found for found in members if not found.contender.plain]
        sure = [found for found in speculating if outcome(found) == "faster"]
        best = _fastest(sure or speculating)
        ahead = _fastest(speculating)
        plain = _fastest(found for found in members if found.contender.plain)
        if best is None:
            continue
        if plain is not None and _speed(plain) <= max(1, _speed(best)):
            plain = None
        made.append(
            Verdict(workload, temperature, where, best, None if ahead is best else ahead, plain)
        )
    return made


def caution(result: BenchResult) -> str | None:
    """How often one of several contenders that are no faster is called so; None with fewer.

    Each is called faster if its own interval of 95% is above 1, which is so by chance in 2.5 runs
    of a hundred. What several do by chance is at most the sum (Boole's inequality).
    """
    rivals = Counter(
        (regime(found), found.workload, found.temperature)
        for found in result.measurements
        if found.low is not None and not found.contender.plain
    )
    most = max(rivals.values(), default=0)
    if most < 2:
        return None
    return (
        f"each interval is for its contender alone: were none of {most} faster than plain "
        f"decoding, one would still be called so in up to {2.5 * most:g}% of such comparisons"
    )


def setting(provenance: dict[str, Any]) -> str:
    """Models and machine in a line, as far as the provenance names them."""
    names = ("target", "draft", "device", "dtype", "threads")
    found = {name: provenance[name] for name in names if provenance.get(name) is not None}
    parts = [f"{name} {value}" for name, value in found.items() if name not in ("device", "dtype")]
    return ", ".join([*parts, *(str(found[name]) for name in ("device",) if name in found)])


def _fastest(measurements: Iterable[Measurement]) -> Measurement | None:
    return max(measurements, key=_speed, default=None)


def _speed(measurement: Measurement) -> float:
    assert measurement.speedup is not None
    return measurement.speedup
