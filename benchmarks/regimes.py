"""Which regimes of a benchmark are measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from outrider.errors import InvalidConfigError

Value = TypeVar("Value", str, int, float)


@dataclass(frozen=True, slots=True)
class Regimes:
    """Some workloads, temperatures and sizes of batches; of what is empty, all that there are."""

    workloads: tuple[str, ...] = ()
    temps: tuple[float, ...] = ()
    batches: tuple[int, ...] = ()

    def of(
        self, workloads: Iterable[str], temps: Iterable[float], batches: Iterable[int]
    ) -> tuple[tuple[str, ...], tuple[float, ...], tuple[int, ...]]:
        """Those of a benchmark's own that were asked for.

        Raises:
            InvalidConfigError: it has none such.
        """
        return (
            _some("--workloads", self.workloads, tuple(workloads)),
            _some("--temps", self.temps, tuple(temps)),
            _some("--batches", self.batches, tuple(batches)),
        )


ALL = Regimes()


def _some(flag: str, asked: tuple[Value, ...], known: tuple[Value, ...]) -> tuple[Value, ...]:
    for value in asked:
        if value not in known:
            raise InvalidConfigError(flag, value, f"some of {', '.join(map(str, known))}")
    return tuple(value for value in known if value in asked) or known
