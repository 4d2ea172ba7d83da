"""A request while it is decoded: awaited to its end, or streamed as server-sent events."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from typing import Any

from fastapi.responses import StreamingResponse
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from ..engine.outputs import StreamEvent
from ..errors import OutriderError
from ..types.records import SequenceState
from .access import ServerState
from .failures import described
from .replies import Reply
from .service import Update

_LOG = logging.getLogger(__name__)

_COMMENT = ": waiting for a token\n\n"
_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class Decoding:
    """A request that was taken, until it has ended; for one event loop.

    Args:
        state: of the application.
        reply: the answer, still empty.
        groups: the starting states of each prompt's choices.

    Raises:
        QueueFullError, ClosingError: it is not taken.
    """

    def __init__(
        self, state: ServerState, reply: Reply, groups: Sequence[Sequence[SequenceState]]
    ) -> None:
        loop, self._updates = asyncio.get_running_loop(), asyncio.Queue[Update]()
        self._state, self._reply, self._counted = state, reply, False

        def receive(update: Update) -> None:
            loop.call_soon_threadsafe(self._updates.put_nowait, update)

        self._job = reply.job = state.requests.service.submit(groups, receive)

    async def whole(self) -> dict[str, Any]:
        """Wait for the end, and return the answer.

        Raises:
            OutriderError: the request was ended before.
        """
        try:
            while not (await self._next())[0].done:
                pass
            answer = await asyncio.to_thread(self._reply.whole)
        except OutriderError as error:
            self.end(_code(error))
            raise
        self.end()
        return answer

    async def events(self) -> AsyncGenerator[str]:
        """Yield server-sent events: chunks, comments in silences, and an error as the last one."""
        reply, done = self._reply, False
        try:
            while not done:
                try:
                    async with asyncio.timeout(self._state.silence_s):
                        update, events = await self._next()
                except TimeoutError:
                    yield _COMMENT
                    continue
                done = update.done
                if chunks := reply.chunks(events, update.rounds):
                    yield "".join(map(_event, chunks))
            if (last := reply.closing()) is not None:
                yield _event(last)
            self.end()
        except OutriderError as error:
            self.end(_code(error))
            yield _event(described(error)[1])
        yield "data: [DONE]\n\n"

    def end(self, outcome: str | None = None) -> None:
        """Decode it no further, count it, and log its figures; once.

        `outcome` is "cancelled" or an error's code, where it did not end by itself.
        """
        self._state.requests.service.cancel(self._job)
        if not self._counted:
            self._counted = True
            self._state.metrics.ended(self._reply, outcome)
            _LOG.info("a request ended", extra={"figures": self._reply.figures_logged(outcome)})

    async def _next(self) -> tuple[Update, list[StreamEvent]]:
        """Wait for the next round, and note what it brought: its tokens, with their texts."""
        update = await self._updates.get()
        return update, self._reply.add(update)


class EventStream(StreamingResponse):
    """The events of a request; its headers are sent at once. Where the client leaves, it ends."""

    media_type = "text/event-stream"

    def __init__(self, decoding: Decoding) -> None:
        super().__init__(decoding.events(), headers=_HEADERS)
        self._decoding = decoding

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        try:
            with suppress(ClientDisconnect, OSError):
                await super().__call__(scope, receive, send)
        finally:
            self._decoding.end("cancelled")


def _code(error: OutriderError) -> str:
    return described(error)[1]["error"]["code"] or "error"


def _event(chunk: dict[str, Any]) -> str:
    # In ASCII, since some clients take other characters for ends of lines.
    return f"data: {json.dumps(chunk)}\n\n"
