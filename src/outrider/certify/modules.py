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
    source, _, name = reference.rpartition(":")
    if not source or not name:
        raise InvalidConfigError("--module", reference, EXPECTED)
    if not source.endswith(".py") and (len(Path(source).parts) > 1 or Path(source).is_file()):
        raise InvalidConfigError("--module", reference, f"a path that ends in .py, or {EXPECTED}")
    expected = "a file that can be imported, with all that it imports itself"
    if not source.endswith(".py"):
        expected = "a module that can be imported, or a path that ends in .py"
    module: ModuleType = _tried(lambda: _imported(source), reference, expected)
    if name not in vars(module):
        raise InvalidConfigError("--module", reference, f"a name in {source}; it has no {name}")
    found = vars(module)[name]
    if isinstance(found, type) and issubclass(found, Drafter):
        maker = _maker(found)
        _tried(lambda: maker(mock_pair(3)[1]), reference, "a drafter that can be made")
        return Part(name, drafter=maker)
    if isinstance(found, type) and issubclass(found, Method | Verifier):
        found = _tried(found, reference, "a method that can be made without arguments")
    if isinstance(found, Drafter):
        return Part(name, drafter=lambda _: found)
    if not isinstance(found, Method | Verifier):
        raise InvalidConfigError("--module", reference, f"{EXPECTED}; {name} is neither")
    return Part(name, verifier=found if isinstance(found, Verifier) else Verifier(found))


def _imported(source: str) -> ModuleType:
    # As for python's own scripts and -m: what is beside them can be imported.
    folder = Path(source).parent if source.endswith(".py") else Path()
    sys.path.insert(0, str(folder.resolve()))
    if not source.endswith(".py"):
        return importlib.import_module(source)
    spec = importlib.util.spec_from_file_location("outrider_certified_part", source)
    assert spec is not None, "the source ends in .py"
    assert spec.loader is not None
    # Dataclasses look their module up by name.
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _tried(make: Callable[[], Any], reference: str, expected: str) -> Any:
    try:
        return make()
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise InvalidConfigError("--module", reference, f"{expected} ({reason})") from error


def _maker(kind: Callable[..., Drafter]) -> Callable[[TabularModel], Drafter]:
    """Give the draft model to a class that requires an argument."""
    try:
        inspect.signature(kind).bind()
    except TypeError:
        return kind
    return lambda _: kind()
