"""What a run comes to: for each workload and regime, what decodes fastest there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from .records import BenchResult, Measurement

OUTRIDER = "outrider"
"""The system that speedups are over the plain decoding of."""

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
    """The best speculation of one workload at one temperature.

    A peer whose forward is the faster one is ahead of plain decoding without speculating: what
    speculation is worth is told by contenders that decode plainly alike, Outrider's own.

    Attributes:
        workload, temperature, regime: where.
        best: the fastest of Outrider's contenders that speculate and are surely faster than plain
            decoding; where none is, of those not surely slower, and else of all that speculate.
            Where there are none of Outrider's, of all.
        ahead: a faster one of these that is not told apart from plain decoding, which more prompts
            may; None if there is none.
        peer: the fastest of other systems' contenders that is faster than `best` and than
            Outrider's plain decoding, speculating or not; None if none is.
    """

    workload: str
    temperature: float
    regime: Regime
    best: Measurement
    ahead: Measurement | None
    peer: Measurement | None

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
    return measurement.contender.plain and measurement.contender.system == OUTRIDER


def outcome(measurement: Measurement) -> Outcome:
    """Faster or slower than plain decoding if the whole 95% interval is on that side of 1.

    One without an interval, of a single stretch, tells nothing of others.
    """
    if measurement.low is None or measurement.high is None:
        return "not told apart"
    if measurement.low > 1:
        return "faster"
    return "slower" if measurement.high < 1 else "not told apart"


def verdicts(result: BenchResult) -> list[Verdict]:
    """One wherever a contender that speculates has a speedup."""
    groups: dict[tuple[Regime, str, float], list[Measurement]] = {}
    for found in result.measurements:
        if found.speedup is not None and not is_baseline(found):
            place = regime(found), found.workload, found.temperature
            groups.setdefault(place, []).append(found)
    made = []
    for (where, workload, temperature), members in groups.items():
        all_that_do = [found for found in members if not found.contender.plain]
        own = [found for found in all_that_do if found.contender.system == OUTRIDER]
        speculating = own or all_that_do
        sure = [found for found in speculating if outcome(found) == "faster"]
        hopeful = [found for found in speculating if outcome(found) != "slower"]
        ahead = _fastest(hopeful)
        best = _fastest(sure or hopeful or speculating)
        peer = _fastest(found for found in members if found.contender.system != OUTRIDER)
        if best is None:
            continue
        if peer is not None and _speed(peer) <= max(1, _speed(best)):
            peer = None
        made.append(
            Verdict(workload, temperature, where, best, None if ahead is best else ahead, peer)
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
        f"with {most} contenders one may look faster by luck: in up to {min(2.5 * most, 100):g}% "
        "of such runs one would be called so if none was"
    )


def none_faster(outcomes: Collection[Outcome]) -> str:
    """A title for comparisons in which nothing is surely faster than plain decoding."""
    slower = sum(outcome == "slower" for outcome in outcomes)
    if slower == len(outcomes):
        return "Do not speculate here: plain decoding is faster on every workload"
    if slower:
        return (
            f"Speculation is slower than plain decoding in {slower} of {len(outcomes)} "
            "comparisons, and not told apart in the others"
        )
    return "Speculation was not told apart from plain decoding: more prompts or repeats may"


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
