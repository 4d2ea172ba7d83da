"""`/v1/completions` and `/v1/chat/completions`: whole answers and streams."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response

from ..access import Body, State, check_key
from ..failures import CLIENT_GONE
from ..streaming import Decoding, EventStream

router = APIRouter(dependencies=[Depends(check_key)])

T = TypeVar("T")


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
