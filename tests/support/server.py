"""A server over a small random model, in the process or behind a port."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Thread
from time import monotonic, sleep
from typing import Any

import uvicorn
from fastapi import FastAPI

from outrider import HybridDrafter, SpeculativeConfig, SpeculativeDecoder, TransformersModel
from outrider.server.access import AuthLimits
from outrider.server.app import make_app
from outrider.server.metrics import Metrics
from outrider.server.requests import Requests
from outrider.server.service import Service
from outrider.types.records import DraftProposal, Prefix, TargetScores

from .alphabet import every_byte
from .families import random_model

TEMPLATE = "{% for m in messages %}{{ m['role'][0] }}{{ m['content'] }}{% endfor %}a"


@dataclass(frozen=True)
class Server:
    """A server's parts."""

    app: FastAPI
    service: Service
    requests: Requests
    decoder: SpeculativeDecoder


def toy_decoder(*, drafter: Any = None, target: Any = None, **config: Any) -> SpeculativeDecoder:
    """A decoder of a random model of bytes, with a draft model and look-ups."""
    tokenizer = every_byte()
    tokenizer.chat_template = TEMPLATE
    own = TransformersModel(random_model("llama", 1, vocab_size=256), max_sequences=4)
    return SpeculativeDecoder(
        target or TransformersModel(random_model("llama", vocab_size=256), max_sequences=4),
        HybridDrafter.usual(own) if drafter is None else drafter,
        tokenizer=tokenizer,
        config=SpeculativeConfig(**({"on_draft_error": "disable", "depth": "fixed"} | config)),
    )


class Held(TransformersModel):
    """A model whose forwards wait until they are let go."""

    def __init__(self, max_sequences: int = 1) -> None:
        self.go = Event()
        self.go.set()
        super().__init__(random_model("llama", vocab_size=256), max_sequences=max_sequences)
        self.go.clear()

    def verify(self, prefixes: Sequence[Prefix], proposal: DraftProposal) -> TargetScores:
        self.go.wait()
        return super().verify(prefixes, proposal)


def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds, for a minute at most."""
    end = monotonic() + 60
    while not holds():
        assert monotonic() < end
        sleep(0.002)


@contextmanager
def toy_server(
    decoder: SpeculativeDecoder | None = None,
    access: AuthLimits | None = None,
    silence_s: float = 15.0,
    **service: Any,
) -> Iterator[Server]:
    """A server in this process; closed at the end."""
    used = toy_decoder() if decoder is None else decoder
    running = Service(used, **service)
    requests = Requests(running, ["toy", "alias"])
    metrics = Metrics(running, "toy", vllm_names=True)
    app = make_app(requests, metrics, access, silence_s=silence_s)
    try:
        yield Server(app, running, requests, used)
    finally:
        running.close()
        running.join(30)


@contextmanager
def listening(app: Any) -> Iterator[str]:
    """An app behind a port of this machine; gives its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    thread = Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    while not server.started:
        sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)
        listener.close()
