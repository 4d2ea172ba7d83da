"""Run the server until a signal ends it: SIGTERM lets running requests finish."""

from __future__ import annotations

import json
import logging
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil
from types import FrameType

import uvicorn
from fastapi import FastAPI

from ..errors import ModelError
from .requests import Requests
from .service import Service

_LOG = logging.getLogger("outrider.server")

_FLUSHED_S = 2
"""Seconds that connections have to take what was written, after their requests have ended."""


def run(app: FastAPI, requests: Requests, host: str, port: int, grace_s: float) -> None:
    """Serve until SIGTERM or SIGINT; running requests then have time to end.

    Args:
        app: the application.
        requests: what it reads bodies with.
        host, port: where it listens; port 0 takes a free one.
        grace_s: how long running requests have to end after SIGTERM.

    Raises:
        ModelError: the address cannot be listened on.
    """
    listener, service = _listener(host, port), requests.service
    with _logs():
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            # Connections that are not read from, or never send a whole body, end with the server.
            timeout_graceful_shutdown=ceil(grace_s) + _FLUSHED_S,
            lifespan="on",
        )
        host, port = listener.getsockname()[:2]
        _LOG.info("serving %s at http://%s:%d (page, /v1, /metrics)", requests.model, host, port)
        _Server(config, service, grace_s).run([listener])
        service.close()
        service.join(grace_s)
        _LOG.info("ended")


class _Server(uvicorn.Server):
    """A server whose running requests are let to end."""

    def __init__(self, config: uvicorn.Config, service: Service, grace_s: float) -> None:
        super().__init__(config)
        self._service = service
        self._grace_s = grace_s
        self._signals = 0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Take no more requests; a second signal ends those that run, a third all connections."""
        self._signals += 1
        self.should_exit, self.force_exit = True, self._signals > 2
        self._service.close(self._grace_s if self._signals == 1 else 0.0)
        if self._signals == 1:
            running, waiting = self._service.running, self._service.waiting
            _LOG.info(
                "ending: %d sequences run, %d wait, and have %g s; a second signal ends them",
                running,
                waiting,
                self._grace_s,
            )


def _listener(host: str, port: int) -> socket.socket:
    six = ":" in host
    family = socket.AF_INET6 if six else socket.AF_INET
    both = six and socket.has_dualstack_ipv6()
    try:
        return socket.create_server((host, port), family=family, backlog=2048, dualstack_ipv6=both)
    except OSError as error:
        # Python adds the address to what the system says.
        why = str(error.strerror).partition(" (while")[0]
        raise ModelError(
            f"cannot listen on {host}:{port} ({why}); choose another --host or --port"
        ) from error


class _JsonLines(logging.Formatter):
    """Writes each record as a line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "figures", {}),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line)


@contextmanager
def _logs() -> Iterator[None]:
    """Write the library's log to standard error, a line of JSON each."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines())
    logger = logging.getLogger("outrider")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
