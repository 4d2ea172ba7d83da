"""The routes of the server: answers and streams, what is served and how it goes, and the page."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from importlib.resources import files
from typing import Any, TypeVar

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from .. import __version__
from .access import Body, ServerState, State, check_key
from .failures import CLIENT_GONE
from .streaming import Decoding, EventStream

T = TypeVar("T")

router = APIRouter(dependencies=[Depends(check_key)])

public = APIRouter()
"""What needs no key: the page, which asks for one itself, and `/health`."""

_PAGE = files("outrider.server") / "page"
_FILES = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:"
)
_HEADERS = {"Content-Security-Policy": _POLICY, "Referrer-Policy": "no-referrer"}


@router.post("/v1/completions")
@router.post("/v1/chat/completions")
async def answer(request: Request, state: State, body: Body) -> Response:
    """Continue texts, or answer a conversation."""
    route = request.scope["route"].path
    prepared = await _or_gone(request, asyncio.to_thread(state.requests.prepared, route, body))
    if prepared is None:
        return Response(status_code=CLIENT_GONE)
    reply, groups = prepared
    decoding = Decoding(state, reply, groups)
    if reply.body.stream:
        return EventStream(decoding)
    try:
        found = await _or_gone(request, decoding.whole())
    finally:
        decoding.end("cancelled")
    return Response(status_code=CLIENT_GONE) if found is None else JSONResponse(found)


async def _or_gone(request: Request, work: Awaitable[T]) -> T | None:
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


@router.post("/tokenize")
async def tokenize(state: State, body: Body) -> dict[str, Any]:
    """Return the token ids of a prompt, as vLLM does."""
    tokens = await asyncio.to_thread(state.requests.tokenized, body)
    longest = state.requests.service.decoder.max_length
    return {"count": len(tokens), "max_model_len": longest, "tokens": tokens}


@router.get("/v1/models")
async def models(state: State) -> dict[str, Any]:
    """List the model."""
    return {"object": "list", "data": [_described(state)]}


@router.get("/v1/models/{name:path}")
async def model(name: str, state: State) -> dict[str, Any]:
    """Describe the model; 404 for another name."""
    state.requests.check_model(name)
    return _described(state)


@router.get("/v1/stats")
async def stats(state: State) -> dict[str, Any]:
    """Return what runs, waits and was emitted."""
    service = state.requests.service
    decoder, found = service.decoder, service.decoder.metrics
    return {
        "model": state.requests.model,
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


@router.get("/metrics")
async def metrics(state: State) -> Response:
    """Return all figures in Prometheus's format."""
    return Response(state.metrics.text(), media_type=state.metrics.media_type)


def _described(state: ServerState) -> dict[str, Any]:
    name = state.requests.model
    return {
        "id": name,
        "object": "model",
        "created": state.started,
        "owned_by": "outrider",
        "root": name,
        "max_model_len": state.requests.service.decoder.max_length,
    }


@router.get("/version")
async def version() -> dict[str, str]:
    """Name the version of the server."""
    return {"version": __version__}


@public.api_route("/health", methods=["GET", "HEAD"])
async def health(state: State) -> Response:
    """Say whether requests are taken."""
    closing = state.requests.service.closing
    return PlainTextResponse("closing" if closing else "ok", 503 if closing else 200)


@public.get("/")
@public.get("/page.css")
@public.get("/page.js")
async def page(request: Request) -> Response:
    """Return a file of the page."""
    name, kind = _FILES[request.scope["route"].path]
    content = (_PAGE / name).read_bytes()
    return Response(content, media_type=f"{kind}; charset=utf-8", headers=_HEADERS)
