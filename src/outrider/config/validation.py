"""Checks of what a user gives: one function for each kind of value, used for every field.

Each takes the field's name and its value, returns the value in plain Python types, and raises
`InvalidConfigError` otherwise. Nothing here imports a framework.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from ..errors import InvalidConfigError

DEEPEST_JSON = 128
"""The deepest nesting of JSON that is taken: parsers that recurse must not run out of stack."""

DEEPEST_FORM = 2**13
"""The deepest nesting of a schema or grammar whose references and rules are followed."""

LONGEST_TEXT = 1_000_000
"""The most characters of a schema, regex or grammar."""


@runtime_checkable
class _Array(Protocol):
    """An array or a tensor of any library."""

    def tolist(self) -> Any: ...


Check = Callable[[str, Any], Any]


def check_fields(record: object, checks: Mapping[str, Check], prefix: str = "") -> None:
    """Check fields of a frozen record, and keep what the checks return; `prefix` is for errors."""
    for field, check in checks.items():
        object.__setattr__(record, field, check(prefix + field, getattr(record, field)))


def optional(check: Callable[..., Any], **limits: Any) -> Check:
    """Make a check that takes None as well."""
    return lambda field, value: None if value is None else check(field, value, **limits)


def boolean(field: str, value: object) -> bool:
    """Check that a value is True or False."""
    if not isinstance(value, bool):
        raise InvalidConfigError(field, value, "True or False")
    return value


def integer(
    field: str, value: object, low: int, high: float = math.inf, expected: str | None = None
) -> int:
    """Check that a value is an integer in low..high."""
    found = _whole(value)
    if found is None or not low <= found <= high:
        otherwise = f"an integer >= {low}" if high == math.inf else f"an integer in {low}..{high}"
        raise InvalidConfigError(field, value, expected or otherwise)
    return found


def real(field: str, value: object, expected: str, allowed: Callable[[float], bool]) -> float:
    """Check that a value is a finite number, and an allowed one."""
    number = math.nan if isinstance(value, bool) or not isinstance(value, Real) else value
    try:
        found = float(number)
    except OverflowError:
        found = math.inf
    if not math.isfinite(found) or not allowed(found):
        raise InvalidConfigError(field, value, expected)
    return found


def choice(field: str, value: object, choices: tuple[str, ...]) -> str:
    """Check that a value is one of several names."""
    if not isinstance(value, str) or value not in choices:
        raise InvalidConfigError(field, value, f"one of {', '.join(map(repr, choices))}")
    return value


def text(field: str, value: object, expected: str = "a string", longest: float = math.inf) -> str:
    """Check that a value is a string that UTF-8 can write."""
    if not isinstance(value, str):
        raise InvalidConfigError(field, value, expected)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        broken = f"text that UTF-8 can write; character {error.start} is half a surrogate pair"
        raise InvalidConfigError(field, value, broken) from None
    if len(value) > longest:
        raise InvalidConfigError(field, value, f"at most {longest} characters, not {len(value)}")
    return value


def shape_of(field: str, tree: str) -> tuple[int, ...]:
    """Read the children at each depth that a text such as 2x2x1, or 2,2,1, names."""
    parts = tree.replace(",", "x").split("x")
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise InvalidConfigError(field, tree, "children at each depth, such as 2x2x1")
    return tuple(map(int, parts))


def unreadable(
    field: str, path: str | Path, expected: str, error: OSError | None = None
) -> InvalidConfigError:
    """Make the error of a file that cannot be read; without `error` there is none of that name."""
    why = "there is no such file"
    if error is not None and not isinstance(error, FileNotFoundError):
        why = (error.strerror or type(error).__name__).lower()
    return InvalidConfigError(field, str(path), expected, given=f"cannot read {path}: {why}")


def read_text(field: str, path: str | Path) -> str:
    """Read a UTF-8 file."""
    expected = "a UTF-8 text file"
    try:
        return Path(path).read_bytes().decode()
    except OSError as error:
        raise unreadable(field, path, expected, error) from error
    except ValueError as error:
        given = f"cannot read {path}: it is not UTF-8 text"
        raise InvalidConfigError(field, str(path), expected, given=given) from error


def texts(
    field: str, value: object, expected: str = "a string, or several, none of them empty"
) -> tuple[str, ...]:
    """Check that a value is a string or several, none of them empty."""
    items = (value,) if isinstance(value, str) else value
    if not isinstance(items, Iterable) or isinstance(items, bytes):
        raise InvalidConfigError(field, value, expected)
    found = tuple(items)
    if not all(isinstance(item, str) and item for item in found):
        raise InvalidConfigError(field, value, expected)
    return tuple(text(field, item) for item in found)


def integers(
    field: str,
    values: object,
    low: float = 0,
    expected: str = "a sequence of integers >= 0",
) -> tuple[int, ...]:
    """Check that a value is a list, NumPy array, tensor or other sequence of integers >= low."""
    items = _items(values)
    found = [None] if items is None else [_whole(item) for item in items]
    if any(item is None or item < low for item in found):
        raise InvalidConfigError(field, values, expected)
    return tuple(item for item in found if item is not None)


def token_sequences(field: str, values: object) -> tuple[tuple[int, ...], ...]:
    """Check that a value holds sequences of token ids, none of them empty."""
    expected, items = "sequences of token ids, none of them empty", _items(values)
    found = tuple(integers(field, item, expected=expected) for item in items or ())
    if items is None or not all(found):
        raise InvalidConfigError(field, values, expected)
    return found


def token_biases(field: str, values: object) -> tuple[tuple[int, float], ...]:
    """Check that a value is a mapping, or pairs, of token ids and numbers in [-100, 100]."""
    expected = "token ids >= 0 with numbers in [-100, 100]"
    pairs = _items(values.items() if isinstance(values, Mapping) else values)
    found: dict[int, float] = {}
    for pair in pairs if pairs is not None else (None,):
        both = _items(pair)
        if both is None or len(both) != 2:
            raise InvalidConfigError(field, values, expected)
        token = integer(field, both[0], 0, expected=expected)
        if token in found:
            raise InvalidConfigError(field, values, f"one bias for token {token}")
        found[token] = real(field, both[1], expected, lambda x: -100 <= x <= 100)
    return tuple(found.items())


def bounded_schema(field: str, value: object, expected: str) -> None:
    """Check that a JSON schema is not nested too deeply, nor too large.

    A compiler goes down its levels, and from each place with a reference on to what that names.
    """
    level, named = [value], set()
    for depth in range(1, DEEPEST_JSON + 1):
        named |= {
            str(item["$ref"]) for item in level if isinstance(item, Mapping) and "$ref" in item
        }
        level = [child for item in level for child in children(item)]
        if len(level) > LONGEST_TEXT or depth * (1 + len(named)) > DEEPEST_FORM:
            break
        if not level:
            return
    most = (
        f"at most {DEEPEST_JSON} levels of nesting, {LONGEST_TEXT} values, and {DEEPEST_FORM} "
        "levels of all that references name"
    )
    raise InvalidConfigError(
        field, type(value).__name__, f"{expected}, of {most}", given=f"{field} is too large"
    )


def children(item: object) -> Iterable[Any]:
    """Return what an object or a list of JSON holds; nothing of another value."""
    if isinstance(item, Mapping):
        return item.values()
    return item if isinstance(item, list | tuple) else ()


def plain(values: Any) -> Any:
    """Return an array or a tensor as lists, and anything else as it is."""
    return values.tolist() if isinstance(values, _Array) else values


def _items(values: object) -> tuple[Any, ...] | None:
    """Return the items of a sequence of any library; None if it is none."""
    values = plain(values)
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        return None
    return tuple(values)


def _whole(value: object) -> int | None:
    """Return an integer of any library as an int; None if it is none."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        return None
    return int(value)
