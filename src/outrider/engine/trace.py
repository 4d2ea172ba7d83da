"""The rounds of a run as JSON, a line each: written as they happen, read back for a report.

The first line says what wrote the trace and under which settings; each further line holds the
fields of one `RoundRecord`, under their own names.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

from .. import __version__
from ..errors import InvalidConfigError, shown
from ..types.records import RoundRecord
from .metrics import SpeculationMetrics, Tally

FORMAT = "outrider trace"
VERSION = 4

_LARGEST = sys.float_info.max
_FIELDS = tuple(field.name for field in fields(RoundRecord))


@dataclass(frozen=True, slots=True)
class Trace:
    """What a trace holds.

    Attributes:
        outrider: the version that wrote it.
        lossy: whether the output's distribution was allowed to differ from the target's.
        settings: of the run, as they were given to the writer.
        records: of the rounds, in order.
        truncated: whether the last line was cut short, as when a run is killed, and left out.
    """

    outrider: str
    lossy: bool
    settings: dict[str, Any]
    records: tuple[RoundRecord, ...]
    truncated: bool

    @property
    def metrics(self) -> SpeculationMetrics:
        """The figures of all rounds, by the one definition that there is."""
        tally = Tally(lossy=self.lossy)
        for record in self.records:
            tally.add(record)
        return tally.metrics()


class TraceWriter:
    """Writes rounds to a file while the context is open; `write` is a decoder's `on_round`.

    A line is written and flushed as a whole, so that a run that is killed leaves all rounds but
    perhaps its last.

    Args:
        path: of the file; what it held before is lost.
        settings: of the run, as JSON takes them.
        lossy: whether the rounds' output may differ from the target's distribution.

    Raises:
        OSError: (on entry, and `write`) the file cannot be written.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any], *, lossy: bool = False) -> None:
        self._path = path
        self._header = {
            "format": FORMAT,
            "version": VERSION,
            "outrider": __version__,
            "lossy": lossy,
            "settings": dict(settings),
        }

    def __enter__(self) -> Self:
        self._file = self._path.open("wb")
        self._line(self._header)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.close()

    def write(self, record: RoundRecord) -> None:
        """Add a round."""
        self._line({name: getattr(record, name) for name in _FIELDS})

    def _line(self, values: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(values, allow_nan=False).encode() + b"\n")
        self._file.flush()


def is_trace(path: Path) -> bool:
    """Whether a file begins as a trace does, so that what is wrong with it is for `read_trace`.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        line = file.readline()
    try:
        header = _parsed(line)
    except ValueError:
        return False
    return isinstance(header, dict) and header.get("format") == FORMAT


def read_trace(path: Path) -> Trace:
    """Read what a `TraceWriter` wrote.

    Raises:
        InvalidConfigError: the file is no trace, or is damaged elsewhere than at its end; the
            message names path and line.
        OSError: the file cannot be read.
    """
    lines = path.read_bytes().split(b"\n")
    # What follows the last line break is nothing, or a line that was cut short.
    rest = lines.pop()
    places = [_Line(path, number, line) for number, line in enumerate(lines, start=1)]
    if not places:
        _Line(path, 1, rest).refuse("it is not a whole line", "the header of a trace")
    header = places[0].header()
    records = [place.record() for place in places[1:]]
    return Trace(
        outrider=header["outrider"],
        lossy=header["lossy"],
        settings=header["settings"],
        records=tuple(records),
        truncated=bool(rest),
    )


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of a file, which errors name."""

    path: Path
    number: int
    text: bytes

    def refuse(self, problem: str, expected: str) -> NoReturn:
        """Say what is wrong with the line."""
        where = f"{self.path}, line {self.number}: {problem}"
        raise InvalidConfigError("trace", str(self.path), expected, given=where)

    def header(self) -> dict[str, Any]:
        """The first line."""
        expected = f"the header of a trace, format {VERSION}; record it again with --trace"
        values = self._object(expected)
        if values.get("format") != FORMAT:
            self.refuse(f"its format is {shown(values.get('format'))}", expected)
        if values.get("version") != VERSION:
            self.refuse(f"its version is {shown(values.get('version'))}", expected)
        for name, kind in (("outrider", str), ("lossy", bool), ("settings", dict)):
            if not isinstance(values.get(name), kind):
                self.refuse(f"{name} is {shown(values.get(name))}", f"{kind.__name__} there")
        return values

    def record(self) -> RoundRecord:
        """A line of a round."""
        values = self._object("the fields of a round")
        for name in _FIELDS:
            if name not in values:
                self.refuse(f"{name} is missing", "the fields of a round")
        unknown = next((name for name in values if name not in _FIELDS), None)
        if unknown is not None:
            self.refuse(f"{shown(unknown)} is no field of a round", f"those of format {VERSION}")
        rows = values["sequence_ids"]
        for name, (fits, expected) in _PER_ROW.items():
            found = values[name]
            if not isinstance(found, list) or not all(map(fits, found)):
                self.refuse(f"{name} is {shown(found)}", f"a list of {expected}")
            if len(found) != len(rows):
                self.refuse(f"{name} has {len(found)} entries", f"{len(rows)}, one for each row")
            values[name] = tuple(map(tuple, found) if name == "confidence" else found)
        for name in ("draft_s", "target_s", "total_s", "plan_s"):
            if not _is_number(values[name]):
                self.refuse(f"{name} is {shown(values[name])}", "a number of seconds")
        if not isinstance(values["draft_failed"], bool):
            self.refuse(f"draft_failed is {shown(values['draft_failed'])}", "true or false")
        record = RoundRecord(**values)
        for drafted, depth, accepted in zip(
            record.drafted, record.depth, record.accepted, strict=True
        ):
            if not accepted <= depth <= drafted:
                self.refuse(
                    f"{accepted} tokens accepted of a depth of {depth} and {drafted} drafted",
                    "accepted <= depth <= drafted in every row",
                )
        return record

    def _object(self, expected: str) -> dict[str, Any]:
        try:
            values = _parsed(self.text)
        except ValueError as error:
            self.refuse(f"it is not JSON ({error})", expected)
        if not isinstance(values, dict):
            self.refuse(f"it is {shown(values)}", expected)
        return values


def _parsed(line: bytes) -> Any:
    """A line of JSON.

    Raises:
        ValueError: it is not JSON, or not UTF-8.
    """
    try:
        return json.loads(line.decode(), parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise ValueError("it is not UTF-8 text") from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def _is_bool(value: object) -> bool:
    return isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not _is_bool(value) and 0 <= value <= _LARGEST


def _is_ceiling(value: object) -> bool:
    return value is None or _is_number(value)


def _is_numbers(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_number, value))


def _is_text(value: object) -> bool:
    return isinstance(value, str)


_COUNTS = (_is_count, "integers >= 0")
_BOOLS = (_is_bool, "true or false")
_CEILINGS = (_is_ceiling, "numbers >= 0 or null")
_PER_ROW: dict[str, tuple[Callable[[object], bool], str]] = {
    "sequence_ids": _COUNTS,
    "drafted": _COUNTS,
    "depth": _COUNTS,
    "accepted": _COUNTS,
    "emitted": _COUNTS,
    "bonus": _BOOLS,
    "ceiling": _CEILINGS,
    "first_ceiling": _CEILINGS,
    "sources": (_is_text, "names"),
    "confidence": (_is_numbers, "lists of numbers >= 0"),
    "cached": _COUNTS,
}
