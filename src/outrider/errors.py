"""Every error Outrider raises on purpose.

::

    OutriderError
    ├── InvalidConfigError          a parameter, flag or setting has a value that is not allowed
    ├── EmptyPrefixError            a prompt has no tokens
    ├── VocabMismatchError          draft and target do not share a vocabulary
    ├── ContextLengthError          a request does not fit a model's context
    ├── DraftError                  a drafter raised, or broke its contract
    │   └── DraftShapeError         a drafter returned arrays of the wrong shape
    ├── TargetShapeError            a target returned arrays of the wrong shape
    ├── DistributionWidthError      a distribution is not as wide as the vocabulary
    ├── TokenOutOfRangeError        a token id is outside the vocabulary
    ├── DegenerateDistributionError a distribution has NaN, negative mass, or a sum other than 1
    ├── UserCodeError               a processor, criterion, tokenizer or verification method failed
    ├── KeyReuseError               one random key was used for two draws
    ├── MissingExtraError           a package that this part needs is not installed
    └── ModelError                  a model cannot be loaded or decoded speculatively, or raised
        └── CacheFullError          a model's cache has no blocks left for a sequence

Each message says what was given, what was expected, and what to do.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

_LONGEST = 200

_EXTRAS = {
    "accelerate": "gguf",
    "fastapi": "server",
    "jinja2": "server",
    "gguf": "gguf",
    "httpx": "endpoint",
    "llama_cpp": "llama-cpp",
    "llguidance": "grammar",
    "nncf": "nncf",
    "openvino": "openvino",
    "outrider_demo": "demo",
    "prometheus_client": "server",
    "psutil": "transformers",
    "safetensors": "transformers",
    "tokenizers": "transformers",
    "transformers": "transformers",
    "uvicorn": "server",
}
"""The extra that installs a package, by the name that it is imported under."""


class OutriderError(Exception):
    """Base of every error Outrider raises on purpose.

    Args:
        args: what happened.
        sequence_id: of the sequence that it is about, which ends alone; None if it is about none,
            or about several.
        field: the parameter that it is about; None if it is about none.

    Attributes:
        request: the index of its prompt among those given to `generate` or `stream`; None else.
        others: what befell other sequences in the same round, each named.
    """

    request: int | None = None
    others: tuple[OutriderError, ...] = ()

    def __init__(
        self,
        *args: object,
        sequence_id: int | None = None,
        field: str | None = None,
        **others: str,
    ) -> None:
        self.sequence_id = sequence_id
        self.field = field
        super().__init__(*args, **others)


class InvalidConfigError(OutriderError, ValueError):
    """A parameter, flag or setting has a value that is not allowed.

    Args:
        field: its name.
        value: what it was given.
        expected: what is allowed, and what to do.
        given: what is wrong with the value, where the value itself does not show it.
    """

    field: str

    def __init__(
        self, field: str, value: object, expected: str, *, given: str | None = None
    ) -> None:
        self.value = value
        self.expected = expected
        if given is None:
            message = f"{field}={shown(value)} is not allowed: expected {expected}"
        else:
            message = f"{given}; expected {expected}"
        super().__init__(message, field=field)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle without calling `__init__`, whose arguments are not `args`."""
        return type(self).__new__, (type(self), *self.args), vars(self)


def shown(value: object) -> str:
    """A value as Python writes it; shortened, and with its type, if that is long."""
    with suppress(RecursionError):
        whole = repr(value)
        if len(whole) <= _LONGEST:
            return whole
    return f"{reprlib.repr(value)[:_LONGEST]} ({type(value).__name__})"


def kind_of(value: object) -> str:
    """The type of what was returned, and of its parts if it is a short tuple or list."""
    name = type_name(value)
    if value is None:
        return "None"
    if isinstance(value, tuple | list) and 0 < len(value) <= 3:
        return f"a {name} of {' and '.join(map(kind_of, value))}"
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def type_name(value: object) -> str:
    """The type of a value, with the library it is of."""
    library = type(value).__module__.partition(".")[0]
    return type(value).__name__ if library == "builtins" else f"{library}.{type(value).__name__}"


class EmptyPrefixError(OutriderError, ValueError):
    """A prompt has no tokens."""


class VocabMismatchError(OutriderError, ValueError):
    """Draft and target do not share a vocabulary."""


class ContextLengthError(OutriderError, ValueError):
    """A request does not fit a model's context."""


class DraftError(OutriderError, RuntimeError):
    """A drafter raised, or broke its contract. What it raised is the error's `__cause__`.

    A drafter that cannot draft for one sequence raises one with that `sequence_id`: the others of
    its round are then drafted as if it were not there, with `on_draft_error="disable"`.
    """


class DraftShapeError(DraftError, ValueError):
    """A drafter returned arrays of the wrong shape."""


class TargetShapeError(OutriderError, ValueError):
    """A target returned arrays of the wrong shape."""


class DistributionWidthError(OutriderError, ValueError):
    """A distribution is not as wide as the vocabulary."""


class TokenOutOfRangeError(OutriderError, ValueError):
    """A token id is outside the vocabulary."""


class DegenerateDistributionError(OutriderError, ValueError):
    """A distribution has NaN, negative or no mass, or does not sum to one."""


class UserCodeError(OutriderError, RuntimeError):
    """A logits processor, a stopping criterion, the tokenizer or a verification method failed.

    What it raised is the error's `__cause__`; a processor may also have returned no logits, and a
    method no distributions.
    """


class KeyReuseError(OutriderError, RuntimeError):
    """One random key was used for two draws, which would correlate them."""


class ModelError(OutriderError, RuntimeError):
    """A model cannot be loaded, or cannot be decoded speculatively, or raised.

    What it raised, if it is none of these errors, is the error's `__cause__`.
    """


class CacheFullError(ModelError):
    """A model's cache has no blocks left for a sequence."""


class MissingExtraError(OutriderError, ImportError):
    """A package that this part needs is not installed."""


@contextmanager
def about(sequence_id: int, doing: str) -> Iterator[None]:
    """Name the sequence that what is raised in this block is about.

    Args:
        sequence_id: of the sequence.
        doing: what is done in the block.

    Raises:
        OutriderError: as it was raised, with `sequence_id`; what is none becomes a UserCodeError.
    """
    try:
        yield
    except OutriderError as error:
        error.sequence_id = sequence_id
        raise
    except Exception as error:
        raise UserCodeError(
            f"{doing} failed in sequence {sequence_id}: {type(error).__name__}: {error}",
            sequence_id=sequence_id,
        ) from error


@contextmanager
def computing(model: object) -> Iterator[None]:
    """Name the model that computes in this block.

    Raises:
        ModelError: it raised what is no error of this library.
    """
    try:
        yield
    except OutriderError:
        raise
    except Exception as error:
        raise ModelError(
            f"{type(model).__name__} failed: {type(error).__name__}: {error}; expected it to "
            "compute (what it raised is the __cause__)"
        ) from error


@contextmanager
def missing(extra: str = "") -> Iterator[None]:
    """Name the package that imports in this block lack, with the command that installs it.

    Args:
        extra: the extra that has it; "" for the one known to have it.

    Raises:
        MissingExtraError: a package of others is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "outrider"):
            raise
        extra = extra or _EXTRAS.get(package, "")
        command = f"pip install 'outrider[{extra}]'" if extra else f"pip install {package}"
        raise MissingExtraError(
            f"the package {package!r} is not installed; expected it here: {command}", name=package
        ) from error
