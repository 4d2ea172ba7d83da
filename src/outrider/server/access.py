"""Who may ask, and how much: keys, lengths of bodies, and pages of other origins."""

from __future__ import annotations

import hmac
import re
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from ..errors import InvalidConfigError
from .failures import InvalidKeyError, TooLargeError
from .metrics import Metrics
from .requests import Requests

_ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[^/?#\s@A-Z]+")


@dataclass(frozen=True, slots=True)
class AuthLimits:
    """Who may ask, and how much.

    Attributes:
        keys: one of them has to be sent, if there are any.
        longest_body: bytes of a body.
        origins: pages that may ask from a browser, such as "https://chat.example"; "*" for all.

    Raises:
        InvalidConfigError: a key is empty, or an origin is not written as browsers send it.
    """

    keys: tuple[str, ...] = ()
    longest_body: int = 2**20
    origins: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not all(key.strip() for key in self.keys):
            raise InvalidConfigError("api_key", "", "a key that is not empty, or none at all")
        for origin in self.origins:
            if not _ORIGIN.fullmatch(origin):
                expected = "* or scheme://host[:port], in lower case and without a path"
                raise InvalidConfigError("allow_origin", origin, expected)


@dataclass(frozen=True, slots=True)
class ServerState:
    """What the routes of an application share.

    Attributes:
        requests: reads and checks bodies.
        metrics: counts what happens.
        access: who may ask, and how much.
        silence_s: how long a stream may send nothing.
        started: in seconds since the epoch.
    """

    requests: Requests
    metrics: Metrics
    access: AuthLimits
    silence_s: float
    started: int


async def state_of(request: Request) -> ServerState:
    """Return what the routes share, wherever the application is mounted."""
    found: ServerState = request.app.state.server
    return found


State = Annotated[ServerState, Depends(state_of)]


async def check_key(request: Request, state: State) -> None:
    """Ask for a key, compared in a time that does not depend on it.

    Raises:
        InvalidKeyError: keys are asked for, and none of them was sent.
    """
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    sent = given.strip().encode("latin-1", "replace") if scheme.lower() == "bearer" else b""
    equal = [hmac.compare_digest(sent, key.encode()) for key in state.access.keys]
    if equal and not any(equal):
        raise InvalidKeyError("expected a valid key, as Authorization: Bearer KEY")


async def body_of(request: Request, state: State) -> bytes:
    """Read a body, no further than it may be long.

    Raises:
        TooLargeError: it is longer.
    """
    found, longest = bytearray(), state.access.longest_body
    async for part in request.stream():
        found += part
        if len(found) > longest:
            raise TooLargeError(f"the body has more than {longest} bytes; send a shorter one")
    return bytes(found)


Body = Annotated[bytes, Depends(body_of)]
