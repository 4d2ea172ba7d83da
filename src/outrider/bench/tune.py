"""(follows)"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .options import Progress, TuneOptions
from .records import Candidate, Measurement


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Which configuration to decode with, and what it rests on.

    Attributes:
        candidate: the configuration; plain decoding where speculation does not surely pay.
        best: the fastest candidate of the last race, recommended or not; None if none was run.
        speedup: of `best` over plain decoding, over all temperatures; None if none was run.
        low, high: its 95% interval; None with fewer than two stretches.
        measurements: of the last race.
        eliminated: what earlier, shorter races found of those that are not in the last.
        exports: the configuration in other engines' words.
        environment: versions, machine, models and settings, as JSON takes them.
        skipped: prompts that were left out, and why.
        partial: whether the search was interrupted.
    """

    candidate: Candidate
    best: Candidate | None
    speedup: float | None
    low: float | None
    high: float | None
    measurements: tuple[Measurement, ...]
    eliminated: tuple[Measurement, ...]
    exports: tuple[Any, ...]
    environment: dict[str, Any]
    skipped: tuple[str, ...] = ()
    partial: bool = False

    @property
    def verdict(self) -> str:
        """The recommendation in one sentence."""
        raise NotImplementedError

    def settings(self) -> dict[str, Any]:
        """What `--config` takes to decode like this, by flag name."""
        raise NotImplementedError

    def document(self) -> dict[str, Any]:
        """All of it as JSON takes it."""
        raise NotImplementedError


def tune(options: TuneOptions, report: Progress) -> Recommendation:
    """See `run_tune`."""
    raise NotImplementedError
