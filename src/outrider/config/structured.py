"""What the text of a request must look like: JSON of a schema, a regex, a grammar, a choice."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import InvalidConfigError

_KINDS = ("json_schema", "regex", "grammar", "choice")


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
            `{"whitespace_flexible": False}` for none. A keyword that could not be kept to is
            refused.
        regex: a regular expression, in the syntax of Rust's regex crate, that matches all of the
            text; without look-around and back-references.
        grammar: a context-free grammar in llguidance's dialect of Lark, with a rule `start`.
        choice: strings of which the text is one.

    Raises:
        InvalidConfigError: none or several of them are given, or one is of the wrong type. What the
            schema, regex or grammar itself has wrong is found when the request is made.
    """

    json_schema: Mapping[str, Any] | str | None = None
    regex: str | None = None
    grammar: str | None = None
    choice: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        given = {name: getattr(self, name) for name in _KINDS}
        named = [name for name, value in given.items() if value is not None]
        if len(named) != 1:
            raise InvalidConfigError(
                "structured_output",
                named,
                f"exactly one of {', '.join(_KINDS)}",
                given=f"structured_output has {' and '.join(named) or 'nothing'}",
            )
        if self.json_schema is not None:
            object.__setattr__(self, "json_schema", _schema_text(self.json_schema))
        if self.choice is not None:
            object.__setattr__(self, "choice", _choices(self.choice))
        for name in ("regex", "grammar"):
            if given[name] is not None and not isinstance(given[name], str):
                raise InvalidConfigError(f"structured_output.{name}", given[name], "a string")

    @property
    def kind(self) -> str:
        """The name of the field that is given."""
        return next(name for name in _KINDS if getattr(self, name) is not None)

    @property
    def value(self) -> str | tuple[str, ...]:
        """What it is given; a schema as JSON text."""
        found: str | tuple[str, ...] = getattr(self, self.kind)
        return found


def _schema_text(given: object) -> str:
    field, expected = (
        "structured_output.json_schema",
        "a JSON schema: a mapping, or JSON text of one",
    )
    if isinstance(given, str):
        try:
            schema = json.loads(given)
        except ValueError as error:
            raise InvalidConfigError(field, given, f"{expected} ({error})") from None
        if isinstance(schema, Mapping):
            return given
    elif isinstance(given, Mapping):
        try:
            return json.dumps(dict(given), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise InvalidConfigError(field, given, f"{expected} ({error})") from None
    raise InvalidConfigError(field, given, expected)


def _choices(given: object) -> tuple[str, ...]:
    items = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else ()
    if not items or not all(isinstance(item, str) and item for item in items):
        raise InvalidConfigError(
            "structured_output.choice", given, "one or more strings, none of them empty"
        )
    return items
