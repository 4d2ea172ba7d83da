"""What may fail in a server, with the status and the form that OpenAI's clients know."""

from __future__ import annotations

from typing import Any

from ..errors import (
    ContextLengthError,
    DraftError,
    InvalidConfigError,
    ModelError,
    OutriderError,
    UserCodeError,
)

CLIENT_GONE = 499
"""The status of a request whose client has gone away, as nginx has it."""


class InvalidKeyError(OutriderError):
    """A request carries no key of those that are asked for."""


class UnknownModelError(InvalidConfigError):
    """A request names a model that is not served."""


class TooLargeError(OutriderError):
    """A body has more bytes than it may."""


class QueueFullError(OutriderError):
    """As many sequences wait as may."""


class ClosingError(OutriderError):
    """No more requests are taken, or this one was ended: the server closes."""


class DeadlineError(OutriderError):
    """A request took longer than it may."""


_STATUSES: tuple[tuple[type[OutriderError], int, str, str], ...] = (
    (InvalidKeyError, 401, "invalid_request_error", "invalid_api_key"),
    (UnknownModelError, 404, "invalid_request_error", "model_not_found"),
    (TooLargeError, 413, "invalid_request_error", "body_too_large"),
    (QueueFullError, 429, "rate_limit_error", "queue_full"),
    (ClosingError, 503, "server_error", "closing"),
    (DeadlineError, 504, "server_error", "timeout"),
    (UserCodeError, 500, "server_error", "engine_failed"),
    (ModelError, 500, "server_error", "engine_failed"),
    (DraftError, 500, "server_error", "draft_failed"),
    (ContextLengthError, 400, "invalid_request_error", "context_length_exceeded"),
)


def described(error: OutriderError) -> tuple[int, dict[str, Any]]:
    """Return the status of an error, and the body of its response in OpenAI's form."""
    found = ((row[1], row[2], row[3]) for row in _STATUSES if isinstance(error, row[0]))
    status, kind, code = next(found, (400, "invalid_request_error", None))
    return status, in_openais_form(str(error), kind, param=error.field, code=code)


def in_openais_form(
    message: str, kind: str, *, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """Return the body of a response that says what is wrong."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}
