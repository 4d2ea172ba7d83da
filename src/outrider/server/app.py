"""The HTTP application: routes, keys, limits, errors in OpenAI's form, and the page."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.resources import files
from time import time
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from ..errors import InvalidConfigError, OutriderError
from .failures import TooLargeError, described, in_openais_form
from .metrics import Metrics
from .replies import Reply
from .requests import ROUTES, Requests
from .service import Update

_LOG = logging.getLogger(__name__)

_PAGE = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:"
)


@dataclass(frozen=True, slots=True)
class Access:
    """Who may ask, and how much.

    Attributes:
        keys: one of them has to be sent, if there are any.
        longest_body: bytes of a body.
        retry_after_s: when those are to come back for whom there is no room.

    Raises:
        InvalidConfigError: a key is empty: whoever sends none would have it.
    """

    keys: tuple[str, ...] = ()
    longest_body: int = 2**20
    retry_after_s: int = 1

    def __post_init__(self) -> None:
        if not all(key.strip() for key in self.keys):
            raise InvalidConfigError("api_key", "", "a key that is not empty, or none at all")


def make_app(requests: Requests, metrics: Metrics, access: Access = Access()) -> FastAPI:
    """Make the application.

    Args:
        requests: answers bodies; closed with the application.
        metrics: counts what happens.
        access: who may ask, and how much.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        requests.service.close()
        requests.close()

    app = FastAPI(lifespan=lifespan, openapi_url=None)

    def refused(request: Request, status: int, content: dict[str, Any]) -> Response:
        why = {name: content["error"][name] for name in ("code", "param")}
        metrics.refused(str(status))
        figures = {"status": status, "path": request.url.path, **why}
        _LOG.info("refused", extra={"figures": figures})
        headers = {"Retry-After": str(access.retry_after_s)} if status in (429, 503) else None
        return JSONResponse(content, status, headers)

    @app.exception_handler(OutriderError)
    async def _refused(request: Request, error: OutriderError) -> Response:
        return refused(request, *described(error))

    @app.exception_handler(ClientDisconnect)
    async def _gone_early(_: Request, __: ClientDisconnect) -> Response:
        return Response(status_code=_CLIENT_GONE)

    @app.exception_handler(HTTPException)
    async def _http(request: Request, error: HTTPException) -> Response:
        said = f"{error.detail}: {request.method} {request.url.path}; POST to {' or '.join(ROUTES)}"
        content = in_openais_form(said, "invalid_request_error")
        return refused(request, error.status_code, content)

    @app.exception_handler(Exception)
    async def _failed(request: Request, error: Exception) -> Response:
        _LOG.error("a request failed: %s", type(error).__name__, exc_info=error)
        said = "the server failed; its log says why"
        return refused(request, 500, in_openais_form(said, "server_error"))

    @app.middleware("http")
    async def _guarded(request: Request, call_next: Any) -> Response:
        if request.url.path.startswith(("/v1/", "/metrics")) and not _known(request, access):
            said = "expected a valid key, as Authorization: Bearer KEY"
            content = in_openais_form(said, "invalid_request_error", code="invalid_api_key")
            return refused(request, 401, content)
        response: Response = await call_next(request)
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response

    async def generate(request: Request) -> Response:
        body = await _body(request, access)
        prepared = await _or_gone(request, requests.prepare(request.url.path, body))
        if prepared is None:
            return Response(status_code=_CLIENT_GONE)
        reply, groups = prepared
        updates = requests.updates(reply, groups)
        try:
            # The first round is waited for, so that what cannot begin has a status of its own.
            update = await _or_gone(request, anext(updates))
            if update is not None and reply.body.streams:
                stream = _stream(reply, update, updates, metrics)
                return StreamingResponse(stream, media_type=_EVENTS, headers=_UNBUFFERED)
            while update is not None and not update.done:
                update = await _or_gone(request, anext(updates))
        except OutriderError as error:
            _ended(reply, metrics, _code(error))
            raise
        await updates.aclose()
        if update is None:
            _ended(reply, metrics, "cancelled")
            return Response(status_code=_CLIENT_GONE)
        _ended(reply, metrics)
        return JSONResponse(await asyncio.to_thread(reply.whole))

    for path in ROUTES:
        app.post(path)(generate)

    def model() -> dict[str, Any]:
        return {
            "id": requests.terms.model,
            "object": "model",
            "created": int(started),
            "owned_by": "outrider",
            "root": requests.terms.model,
            "max_model_len": requests.service.decoder.max_length,
        }

    @app.get("/v1/models")
    async def _models() -> dict[str, Any]:
        return {"object": "list", "data": [model()]}

    @app.get("/v1/models/{name:path}")
    async def _model(name: str) -> dict[str, Any]:
        requests.check_model(name)
        return model()

    @app.get("/v1/stats")
    async def _stats() -> dict[str, Any]:
        service = requests.service
        found, decoder = service.decoder.metrics, service.decoder
        return {
            "model": requests.terms.model,
            "runtime": decoder.target.name,
            "drafter": "nothing" if decoder.drafter is None else type(decoder.drafter).__name__,
            "running": service.running,
            "waiting": service.waiting,
            "emitted": found.emitted,
            "tokens_per_s": found.tokens_per_s,
            "acceptance_length": found.acceptance_length,
            "acceptance_rate": found.acceptance_rate,
            "per_position": found.per_position,
        }

    @app.get("/health")
    async def _health() -> Response:
        alive = requests.service.alive and not requests.service.closing
        return PlainTextResponse("ok" if alive else "closing", 200 if alive else 503)

    @app.get("/metrics")
    async def _metrics() -> Response:
        return Response(metrics.text(), media_type=metrics.media_type)

    def page(name: str, kind: str) -> Any:
        content = files(__package__).joinpath("page", name).read_bytes()

        async def show() -> Response:
            headers = {"Content-Security-Policy": _POLICY, "Referrer-Policy": "no-referrer"}
            return Response(content, media_type=kind, headers=headers)

        return show

    for path, (name, kind) in _PAGE.items():
        app.get(path, include_in_schema=False)(page(name, kind))
    started = time()
    return app


_CLIENT_GONE = 499
_EVENTS = "text/event-stream"
_UNBUFFERED = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


async def _stream(
    reply: Reply, first: Update, updates: AsyncGenerator[Update], metrics: Metrics
) -> AsyncIterator[str]:
    """Write server-sent events; an error that comes midway is the last one."""
    try:
        for chunk in reply.chunks(first):
            yield _event(chunk)
        if not first.done:
            async for update in updates:
                for chunk in reply.chunks(update):
                    yield _event(chunk)
        last = reply.closing()
        if last is not None:
            yield _event(last)
        _ended(reply, metrics)
    except OutriderError as error:
        _ended(reply, metrics, _code(error))
        yield _event(described(error)[1])
    except (asyncio.CancelledError, GeneratorExit):
        _ended(reply, metrics, "cancelled")
        raise
    finally:
        await updates.aclose()
    yield "data: [DONE]\n\n"


def _code(error: OutriderError) -> str:
    return described(error)[1]["error"]["code"] or "error"


def _ended(reply: Reply, metrics: Metrics, outcome: str | None = None) -> None:
    """Count a request that has ended, and log its figures."""
    metrics.ended(reply, outcome)
    _LOG.info("a request ended", extra={"figures": reply.figures_logged(outcome)})


def _event(chunk: dict[str, Any]) -> str:
    # In ASCII, since some clients take other characters for ends of lines.
    return f"data: {json.dumps(chunk)}\n\n"


async def _body(request: Request, access: Access) -> bytes:
    """Read a body, no further than it may be long."""
    found = bytearray()
    async for part in request.stream():
        found += part
        if len(found) > access.longest_body:
            raise TooLargeError(
                f"the body has more than {access.longest_body} bytes; send a shorter one"
            )
    return bytes(found)


async def _or_gone(request: Request, work: Any) -> Any:
    """Wait for something, or for the client to go away: then None, and the work is cancelled."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        gone.cancel()
        task.cancel()
        await asyncio.wait({task, gone})


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _known(request: Request, access: Access) -> bool:
    """Whether a request carries a key, compared in a time that does not depend on it."""
    if not access.keys:
        return True
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    sent = given.strip().encode("latin-1", "replace") if scheme.lower() == "bearer" else b""
    equal = [hmac.compare_digest(sent, key.encode()) for key in access.keys]
    return any(equal)
