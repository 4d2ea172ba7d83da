"""A user's own verification method or drafter, found by name."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from ..drafters.base import Drafter
from ..errors import InvalidConfigError
from ..runtimes.tabular import TabularModel, mock_pair
from ..verification import Method, Verifier
from .cases import Part

EXPECTED = (
    "path.py:Name or package.module:Name, where Name is a verification method (a subclass of "
    "outrider.verification.Method, or a Verifier) or a drafter (a subclass of "
    "outrider.drafters.base.Drafter)"
)


def load_part(reference: str) -> Part:
    """Import a method or a drafter.

    Args:
        reference: `path.py:Name` or `package.module:Name`. A class is made without arguments; a
            drafter's class is given the tabular draft model if it requires one argument.

    Raises:
        InvalidConfigError: it cannot be imported or made, or is neither a method nor a drafter.
    """
    source, colon, name = reference.rpartition(":")
    if not (source and colon and name):
        raise InvalidConfigError("--module", reference, EXPECTED)
    module = _imported(source, reference)
    if name not in vars(module):
        raise InvalidConfigError("--module", reference, f"a name in {source}; it has no {name}")
    found = vars(module)[name]
    if isinstance(found, type) and issubclass(found, Method | Verifier):
        made = _tried(found, reference, "a method that can be made without arguments")
    elif isinstance(found, type) and issubclass(found, Drafter):
        maker = _maker(found)
        _tried(lambda: maker(mock_pair(3)[1]), reference, "a drafter that can be made")
        return Part(name, drafter=maker)
    else:
        made = found
    if isinstance(made, Drafter):
        return Part(name, drafter=lambda _: made)
    if isinstance(made, Method):
        made = Verifier(made)
    if not isinstance(made, Verifier):
        raise InvalidConfigError("--module", reference, f"{EXPECTED}; {name} is neither")
    return Part(name, verifier=made)


def _imported(source: str, reference: str) -> ModuleType:
    is_path = source.endswith(".py")
    if not is_path and (len(Path(source).parts) > 1 or Path(source).is_file()):
        raise InvalidConfigError("--module", reference, f"a path that ends in .py, or {EXPECTED}")

    def module() -> ModuleType:
        if not is_path:
            return importlib.import_module(source)
        spec = importlib.util.spec_from_file_location("outrider_certified_part", Path(source))
        if spec is None or spec.loader is None:
            raise ImportError("not a Python file")
        made = importlib.util.module_from_spec(spec)
        # Dataclasses look their module up by name.
        sys.modules[spec.name] = made
        spec.loader.exec_module(made)
        return made

    expected = "a module that can be imported, or a path that ends in .py"
    imported: ModuleType = _tried(module, reference, expected)
    return imported


def _tried(make: Callable[[], Any], reference: str, expected: str) -> Any:
    try:
        return make()
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise InvalidConfigError("--module", reference, f"{expected} ({reason})") from error


def _maker(kind: Callable[..., Drafter]) -> Callable[[TabularModel], Drafter]:
    """Give the draft model to a class that requires an argument."""
    parameters = inspect.signature(kind).parameters.values()
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if any(each.default is each.empty and each.kind in places for each in parameters):
        return lambda model: kind(model)
    return lambda _: kind()
