"""The HTTP application: its routes together, and errors in OpenAI's form."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from time import time
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..errors import OutriderError
from .access import AuthLimits, ServerState
from .failures import CLIENT_GONE, described, in_openais_form
from .metrics import Metrics
from .requests import ROUTES, Requests
from .routes import public, router

_LOG = logging.getLogger(__name__)


def make_app(
    requests: Requests,
    metrics: Metrics,
    access: AuthLimits | None = None,
    *,
    silence_s: float = 15.0,
) -> FastAPI:
    """Make the application. One that is mounted does not end by itself: close the service then.

    Args:
        requests: reads and checks bodies; its service is closed with the application.
        metrics: counts what happens.
        access: who may ask, and how much; all, by default.
        silence_s: after so many seconds without a token a stream sends a comment.
    """
    access = access or AuthLimits()
    cors = Middleware(
        CORSMiddleware,
        allow_origins=access.origins,
        allow_methods=("GET", "POST"),
        allow_headers=("*",),
        expose_headers=("Retry-After",),
    )
    app = FastAPI(
        lifespan=_lifespan,
        openapi_url=None,
        middleware=[*([cors] if access.origins else []), Middleware(_Guarded)],
        exception_handlers={
            OutriderError: _refused,
            HTTPException: _no_route,
            ClientDisconnect: _gone_early,
        },
    )
    app.state.server = ServerState(requests, metrics, access, silence_s, int(time()))
    app.include_router(router)
    app.include_router(public)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    yield
    state: ServerState = app.state.server
    state.requests.service.close()


class _Guarded:
    """Answers what nothing foresaw with a 500, and forbids to guess the types of answers.

    It is inside the middleware for CORS, so that pages of other origins see these answers too.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def guarded(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                MutableHeaders(scope=message)["X-Content-Type-Options"] = "nosniff"
            await send(message)

        try:
            await self._app(scope, receive, guarded)
        except Exception as error:
            if begun or scope["type"] != "http":
                raise
            _LOG.error("a request failed: %s", type(error).__name__, exc_info=error)
            content = in_openais_form("the server failed; its log says why", "server_error")
            await _reply(Request(scope), 500, content)(scope, receive, guarded)


async def _refused(request: Request, error: Any) -> Response:
    return _reply(request, *described(error))


async def _no_route(request: Request, error: Any) -> Response:
    root = request.scope.get("root_path", "")
    routes = " or ".join(root + route for route in ROUTES)
    said = f"{error.detail}: {request.method} {request.url.path}; POST to {routes}"
    content = in_openais_form(said, "invalid_request_error")
    return _reply(request, error.status_code, content, error.headers)


async def _gone_early(_: Request, __: Any) -> Response:
    return Response(status_code=CLIENT_GONE)


def _reply(
    request: Request, status: int, content: dict[str, Any], headers: Mapping[str, str] | None = None
) -> Response:
    """Count and log what is not answered, and say why."""
    state: ServerState = request.app.state.server
    why = {name: content["error"][name] for name in ("code", "param")}
    state.metrics.refused(str(status))
    _LOG.info("refused", extra={"figures": {"status": status, "path": request.url.path, **why}})
    if status == 401:
        headers = {"WWW-Authenticate": "Bearer"}
    if status in (429, 503):
        headers = {"Retry-After": "1"}
    return JSONResponse(content, status, headers)
