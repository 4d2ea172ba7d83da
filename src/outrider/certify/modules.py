"""A user's own verification method or drafter, found by name."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, runtime_checkable

from ..drafters.base import Drafter
from ..errors import InvalidConfigError
from ..runtimes.tabular import TabularModel, mock_pair
from ..verification import Method, Verifier
from .cases import Part

EXPECTED = (
    "path.py:Name or package.module:Name, where Name is a verification method (a subclass of outrider.verification.Method) "
    "or a drafter (propose)"
)


@runtime_checkable
class _Drafts(Protocol):
    def propose(self, prefixes: Any, plan: Any, ctx: Any) -> Any: ...


def load_part(reference: str) -> Part:
    """Import a method or a drafter.

    Args:
        reference: `path.py:Name` or `package.module:Name`. A class is made without arguments; a
            drafter's class is given the tabular draft model if it requires one argument. A method
            derives from `Method`; a `Verifier` is taken too.

    Raises:
        InvalidConfigError: it cannot be imported, or is neither a method nor a drafter.
    """
    source, colon, name = reference.rpartition(":")
    if not (source and colon and name):
        raise InvalidConfigError("--module", reference, EXPECTED)
    module = _imported(source, reference)
    if name not in vars(module):
        raise InvalidConfigError("--module", reference, f"a name in {source}; it has no {name}")
    found = vars(module)[name]
    if isinstance(found, Verifier):
        return Part(name, verifier=found)
    if isinstance(found, Method) or (isinstance(found, type) and issubclass(found, Method)):
        return Part(name, verifier=Verifier(_method(found, reference)))
    if isinstance(found, _Drafts):
        make = _maker(found)
        _try(make, reference)
        return Part(name, drafter=make)
    raise InvalidConfigError("--module", reference, f"{EXPECTED}; {name} has neither")


def _imported(source: str, reference: str) -> ModuleType:
    if not source.endswith(".py") and (len(Path(source).parts) > 1 or Path(source).is_file()):
        raise InvalidConfigError("--module", reference, f"a path that ends in .py, or {EXPECTED}")
    try:
        if not source.endswith(".py"):
            return importlib.import_module(source)
        spec = importlib.util.spec_from_file_location("outrider_certified_part", Path(source))
        if spec is None or spec.loader is None:
            raise ImportError("not a Python file")
        module = importlib.util.module_from_spec(spec)
        # Dataclasses look their module up by name.
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise InvalidConfigError(
            "--module",
            reference,
            f"a module that can be imported, or a path that ends in .py ({reason})",
        ) from error
    return module


def _method(found: Any, reference: str) -> Any:
    if not isinstance(found, type):
        return found
    try:
        return found()
    except Exception as error:
        raise InvalidConfigError(
            "--module",
            reference,
            f"a method that can be made without arguments ({type(error).__name__}: {error})",
        ) from error


def _try(make: Callable[[TabularModel], Any], reference: str) -> None:
    try:
        made = make(mock_pair(3)[1])
    except Exception as error:
        raise InvalidConfigError(
            "--module", reference, f"a drafter that can be made ({type(error).__name__}: {error})"
        ) from error
    if not isinstance(made, Drafter):
        raise InvalidConfigError("--module", reference, "a drafter with vocab_size, too")


def _maker(found: Any) -> Callable[[TabularModel], Any]:
    if not isinstance(found, type):
        return lambda _: found
    required = [
        parameter
        for parameter in inspect.signature(found).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    return (lambda model: found(model)) if required else (lambda _: found())
