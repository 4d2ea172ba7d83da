"""The rounds of a run as JSON, a line each: written as they happen, read back for a report.

The first line says what wrote the trace and under which settings; each further line holds the
fields of one `RoundRecord`, under their own names.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Self, get_args, get_origin, get_type_hints

from .. import __version__
from ..errors import InvalidConfigError, shown
from ..types.records import RoundRecord
from .metrics import SpeculationMetrics, Tally

FORMAT = "outrider trace"
VERSION = 5

_LARGEST = sys.float_info.max
_KINDS = get_type_hints(RoundRecord)
"""The type of each field of a round."""


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

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, record: RoundRecord) -> None:
        """Add a round."""
        self._line({name: getattr(record, name) for name in _KINDS})

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
    with suppress(RecursionError, ValueError):
        return _parsed(line).get("format") == FORMAT
    return False


def read_trace(path: Path) -> Trace:
    """Read what a `TraceWriter` wrote.

    Raises:
        InvalidConfigError: the file is no trace, or is damaged elsewhere than at its end; the
            message names path and line.
        OSError: the file cannot be read.
    """
    # What follows the last line break is nothing, or a line that was cut short.
    *lines, rest = path.read_bytes().split(b"\n")
    header: dict[str, Any] = {}
    records: list[RoundRecord] = []
    try:
        if not lines:
            raise ValueError("it is not a whole line")
        header = _header(_parsed(lines[0]))
        records.extend(_record(_parsed(line)) for line in lines[1:])
    except (KeyError, RecursionError, ValueError) as error:
        number, what = (len(records) + 2, "round") if header else (1, "header")
        reason = f"it has no {error}" if isinstance(error, KeyError) else error
        given = f"{path}: line {number} is no {what} of format {VERSION} ({reason})"
        expected = "a trace that outrider wrote; record it again with --trace"
        raise InvalidConfigError("trace", str(path), expected, given=given) from error
    return Trace(
        outrider=header["outrider"],
        lossy=header["lossy"],
        settings=header["settings"],
        records=tuple(records),
        truncated=bool(rest),
    )


def _header(values: dict[str, Any]) -> dict[str, Any]:
    """Check the first line."""
    for name, value in (("format", FORMAT), ("version", VERSION)):
        if values[name] != value:
            raise ValueError(f"{name} is {shown(values[name])}")
    for name, kind in (("outrider", str), ("lossy", bool), ("settings", dict)):
        if not isinstance(values[name], kind):
            raise ValueError(f"{name} is {shown(values[name])}")
    return values


def _record(values: dict[str, Any]) -> RoundRecord:
    """Check the line of a round; what else is in it is left out."""
    values = {name: values[name] for name in _KINDS}
    for name, value in values.items():
        if not _fits(value, _KINDS[name]):
            raise ValueError(f"{name} is {shown(value)}")
    if len({len(value) for value in values.values() if isinstance(value, list)}) > 1:
        raise ValueError("its rows are not equally many in every field")
    frozen = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
    return RoundRecord(**frozen | {"confidence": tuple(map(tuple, values["confidence"]))})


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value of JSON is of a field's type; a tuple is written as a list."""
    if get_origin(kind) is tuple:
        return isinstance(value, list) and all(_fits(one, get_args(kind)[0]) for one in value)
    if get_origin(kind) is UnionType:
        return any(_fits(value, one) for one in get_args(kind))
    if kind is float and type(value) is int:
        return 0 <= value <= _LARGEST
    number = kind in (int, float)
    return type(value) is kind and (not number or 0 <= value <= _LARGEST)


def _parsed(line: bytes) -> dict[str, Any]:
    """Parse a line of JSON.

    Raises:
        RecursionError, ValueError: it is no object of JSON, or not UTF-8.
    """
    values = json.loads(line.decode())
    if not isinstance(values, dict):
        raise ValueError(f"it is {shown(values)}")
    return values
