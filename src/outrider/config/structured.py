"""What the text of a request must look like: JSON of a schema, a regex, a grammar, a choice."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import InvalidConfigError, shown
from .validation import (
    DEEPEST_FORM,
    DEEPEST_JSON,
    LONGEST_TEXT,
    bounded_schema,
    check_fields,
    children,
    optional,
    text,
    texts,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutput:
    """The form of a request's output. Exactly one field is given.

    The whole output has this form if it ends by itself (`finish_reason` "stop"). One that is cut,
    by `max_tokens` or by a stop string or stop token of the request's own, is the beginning of such
    a text. Where the form leaves no choice of what comes next, it is spelled in the tokens that the
    tokenizer would take.

    Args:
        json_schema: a JSON schema, as a mapping or as JSON text; `{"type": "object"}` is any
            object, `{}` any value. Properties come in the schema's order. Between tokens of JSON
            there may be a space, or a new line with at most 40 spaces or tabs; the options of
            llguidance in a schema's "x-guidance" take the place of that, such as
            `{"whitespace_flexible": false}` for none. A keyword that could not be kept to is
            refused. `format` is kept in its syntax: a date may be February 29 of any year. Keys
            that the schema does not name may come twice, and with needless escapes such as
            "\\u0061", even for a key that it names.
        regex: a regular expression, in the syntax of Rust's regex crate, that matches all of the
            text; without look-around and back-references.
        grammar: a context-free grammar in llguidance's dialect of Lark, with a rule `start`.
        choice: strings of which the text is one.

    Raises:
        InvalidConfigError: none or several of them are given, or one is of the wrong type, too
            long, too deeply nested, or no text that UTF-8 can write. What the schema, regex or
            grammar itself has wrong is found when the request is made.
    """

    json_schema: Mapping[str, Any] | str | None = None
    regex: str | None = None
    grammar: str | None = None
    choice: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        given = {name: getattr(self, name) for name in _CHECKS}
        named = [name for name, value in given.items() if value is not None]
        if len(named) != 1:
            said = f"structured_output has {' and '.join(named) or 'nothing'}"
            expected = f"exactly one of {', '.join(_CHECKS)}"
            raise InvalidConfigError("structured_output", named, expected, given=said)
        check_fields(self, _CHECKS, "structured_output.")

    @property
    def kind(self) -> str:
        """The name of the field that is given."""
        return next(name for name in _CHECKS if getattr(self, name) is not None)

    @property
    def value(self) -> str | tuple[str, ...]:
        """What it is given; a schema as JSON text."""
        found: str | tuple[str, ...] = getattr(self, self.kind)
        return found


def _schema(field: str, given: object) -> str:
    """Check a JSON schema, and write it as JSON text."""
    expected = "a JSON schema: a mapping, or JSON text of one"
    schema: object = given
    if isinstance(given, str):
        text(field, given, longest=LONGEST_TEXT)
        try:
            schema = json.loads(given)
        except ValueError as error:
            raise InvalidConfigError(field, given, f"{expected} ({error})") from None
        except RecursionError:
            levels = f"{expected}, of at most {DEEPEST_JSON} levels of nesting"
            raise InvalidConfigError(field, given, levels) from None
    if not isinstance(schema, Mapping):
        raise InvalidConfigError(field, given, expected)
    bounded_schema(field, schema, expected)
    for keyword, value, kept in _unkept(schema):
        said = f"{field} has {keyword}={shown(value)}, which cannot be kept to"
        raise InvalidConfigError(field, given, kept, given=said)
    if isinstance(given, str):
        return given
    try:
        written = json.dumps(dict(schema), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidConfigError(field, given, f"{expected} ({error})") from None
    return text(field, written, longest=LONGEST_TEXT)


def _unkept(schema: object) -> Iterator[tuple[str, object, str]]:
    """Yield each keyword that llguidance 1.9.1 takes without keeping to it, and what it would keep.

    It tells keys apart that the schema names, and no others: an object of free keys may have one of
    them twice, which is one property. It knows numbers as float64, and of old drafts not all words.
    """
    level = [schema]
    while level:
        for item in level:
            if not isinstance(item, Mapping):
                continue
            for keyword in _OLD_KEYWORDS.intersection(item):
                yield keyword, item[keyword], "a schema in the words of draft 4 or later"
            least, named = item.get("minProperties", 0), item.get("required", ())
            if not isinstance(named, list | tuple):
                yield "required", named, "a list of names"
                continue
            most = 1 + len(set(map(str, named)))
            if isinstance(least, int) and least > most:
                expected = f"at most {most}, one more than `required` names; others may come twice"
                yield "minProperties", least, expected
            for keyword in _NUMBERS.intersection(item):
                if any(abs(number) > 2**53 for number in _numbers(item[keyword])):
                    yield keyword, item[keyword], "numbers of at most 2**53 = 9007199254740992"
        level = [child for item in level for child in _subschemas(item)]


def _subschemas(item: object) -> Iterator[object]:
    """Yield what may be a schema in one, or in a list; references may name any place."""
    if isinstance(item, list | tuple):
        yield from item
    for keyword, value in item.items() if isinstance(item, Mapping) else ():
        if keyword in _BY_NAME and isinstance(value, Mapping):
            yield from value.values()
        elif keyword not in _DATA:
            yield value


def _numbers(value: object) -> Iterator[float]:
    """Yield the numbers in a value of JSON."""
    if isinstance(value, int | float):
        yield value
    for child in children(value):
        yield from _numbers(child)


_OLD_KEYWORDS = frozenset({"disallow", "divisibleBy", "extends"})
_BY_NAME = frozenset({"properties", "patternProperties", "$defs", "definitions"})
_DATA = frozenset({"const", "default", "enum", "examples", "x-guidance"})
_NUMBERS = frozenset(
    ("const", "enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
)


def _grammar(field: str, given: object) -> str:
    """Check a grammar: a compiler goes down its rules and their brackets."""
    written = text(field, given, longest=LONGEST_TEXT)
    rules, brackets = written.count(":"), written.count("(") + written.count("[")
    if rules + brackets > DEEPEST_FORM:
        expected = f"a grammar with at most {DEEPEST_FORM} rules and brackets"
        found = f"{field} has {rules} rules and {brackets} brackets"
        raise InvalidConfigError(field, given, expected, given=found)
    return written


def _choices(field: str, given: object) -> tuple[str, ...]:
    """Check the strings to choose from."""
    expected = "one or more strings, none of them empty"
    found = () if isinstance(given, str) else texts(field, given, expected)
    if not found:
        raise InvalidConfigError(field, given, expected)
    return found


_CHECKS = {
    "json_schema": optional(_schema),
    "regex": optional(text, longest=LONGEST_TEXT),
    "grammar": optional(_grammar),
    "choice": optional(_choices),
}
