"""Flags made of dataclasses: names, types and defaults of the fields, help of the docstring.

A record such as `SamplingParams` is declared once. `flags_of` adds what only a command line needs,
such as short names, and the record itself refuses a bad value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import field, fields, make_dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from cyclopts import (
    App,
    ArgumentCollection,
    CoercionError,
    CycloptsError,
    Parameter,
    Token,
    convert,
)
from cyclopts.config import Dict, Toml, Yaml

from ..config.validation import unreadable
from ..errors import InvalidConfigError


def flags_of(
    record: type, shown: Mapping[str, Any], defaults: Mapping[str, Any] | None = None
) -> Any:
    """Make a subclass of a record whose fields are flags.

    Args:
        record: a dataclass whose fields all have defaults.
        shown: the fields that get a flag; to each a `Parameter`, another type, or None for the
            field as it is.
        defaults: values in place of the record's own.
    """
    hints, defaults = get_type_hints(record), defaults or {}
    made = []
    for item in fields(record):
        how = shown.get(item.name, Parameter(parse=False))
        hint = Annotated[hints[item.name], how] if isinstance(how, Parameter) else how
        value = defaults.get(item.name, item.default)
        made.append((item.name, hint or hints[item.name], field(default=value)))
    of = make_dataclass(record.__name__, made, bases=(record,), kw_only=True, frozen=True)
    # Fields of a class of the standard library's would be no flags.
    of.__module__ = __name__
    of.__doc__ = re.sub(
        r"`(\w+)`",
        lambda name: f"`--{_dashed(name[1])}`" if name[1] in shown else name[0],
        record.__doc__ or "",
    )
    return of


def listed(record: type, **names: str | tuple[str, ...]) -> dict[str, Any]:
    """Show all fields of a record, its tuples with commas between items.

    `names` has one more for a field, or all of them.
    """
    hints = get_type_hints(record)
    found: dict[str, Any] = {}
    for item in fields(record):
        name, hint = names.get(item.name), hints[item.name]
        many = any(get_origin(each) is tuple for each in (hint, *get_args(hint)))
        commas: dict[str, Any] = {"converter": split, "n_tokens": 1} if many else {}
        named = {"name": name} if isinstance(name, tuple) else {"alias": name or ()}
        found[item.name] = Parameter(**named, **commas)
    return found


def plain(record: type, given: Any, **changes: Any) -> Any:
    """The record itself, of flags that were given, with changes."""
    values = {item.name: getattr(given, item.name) for item in fields(record)}
    return record(**values | changes)


def split(kind: Any, tokens: Sequence[Token]) -> Any:
    """Convert items with commas between them to `kind`, a tuple."""
    items = [token.evolve(value=item) for token in tokens for item in token.value.split(",")]
    return convert(kind, items)


COMMAS = Parameter(converter=split, n_tokens=1)
"""A list with commas between its items."""


def from_json(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Take the settings of `--speculative-config`, a JSON object with the names of vLLM's."""
    text = _given(arguments, "--speculative-config")
    if text is None:
        return
    expected = 'a JSON object such as {"method": "ngram", "num_speculative_tokens": 4}'
    try:
        settings = json.loads(text)
    except (ValueError, RecursionError):
        settings = None
    if not isinstance(settings, dict):
        raise InvalidConfigError("--speculative-config", text, expected)
    if "model" in settings:
        settings["draft"] = settings.pop("model")
    _apply(settings, "--speculative-config", app, commands, arguments)


def from_file(app: App, commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Take the settings of the `--config` file; those of the command line are kept."""
    path = _given(arguments, "--config")
    if path is None:
        return
    kind = Yaml if Path(path).suffix.lower() in (".yaml", ".yml") else Toml
    try:
        settings = kind(path, must_exist=True).config or {}
    except OSError as error:
        raise unreadable("--config", path, "a TOML or YAML file", error) from error
    except CycloptsError as error:
        raise InvalidConfigError("--config", path, f"TOML, or YAML as .yaml ({error})") from error
    if commands == ("tune",):
        # What tune finds is not asked of the file that it wrote last time.
        settings = {name: value for name, value in settings.items() if _dashed(name) not in TUNED}
    _apply(settings, path, app, commands, arguments)


TUNED = ("method", "depth", "verification", "num-speculative-tokens", "tree-shape")
"""Settings that `outrider tune --save` writes and tune itself does not take."""


def whole_numbers(_app: App, _commands: tuple[str, ...], arguments: ArgumentCollection) -> None:
    """Refuse 2.5 where an integer is asked for, which cyclopts would round."""
    for argument in arguments:
        if int in (argument.hint, *get_args(argument.hint)):
            for token in argument.tokens:
                items = token.value.split(",")
                if not all(item.strip().lstrip("+-").isdecimal() for item in items):
                    raise CoercionError(token=token, target_type=int, argument=argument)


def _given(arguments: ArgumentCollection, flag: str) -> str | None:
    for argument in arguments:
        if flag in argument.names and argument.tokens:
            return argument.tokens[-1].value
    return None


def _apply(settings: dict[str, Any], source: str, *where: Any) -> None:
    """Take settings for the flags of `where`: an app, its commands and its arguments."""
    data = {_dashed(name): value for name, value in settings.items()}
    Dict(data, source=source, use_commands_as_keys=False)(*where)


def _dashed(name: str) -> str:
    return name.replace("_", "-")
