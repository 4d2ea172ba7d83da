"""Soak a server: random requests, bad bodies, clients that leave; every seeded text is checked.

    python -m benchmarks.server_soak --requests 10000

A small random model is served in this process, behind a port. Memory is that of the process, once
a fifth of the requests has been answered and at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from time import sleep
from typing import Any

import httpx
import numpy as np
from tests.support.server import listening, toy_decoder, toy_server

from outrider import SamplingParams, StructuredOutput

BAD: tuple[Any, ...] = (
    [],
    {"prompt": "a", "temperature": -1},
    {"prompt": "a", "max_tokens": 10**6},
    {"prompt": "", "max_tokens": 1},
    {"prompt": "a", "guided_regex": "("},
    {"prompt": "a", "logit_bias": {"99999": 1}},
    {"prompt": "a", "model": "other"},
)


@dataclass
class Soak:
    """What came of a soak.

    Attributes:
        statuses: how many answers had each status.
        left: streams that their client left.
        texts: of whole answers, with the body that asked for each.
        warm, end: bytes of memory after a fifth of the requests, and at the end.
        errors: what the server logged as one.
        free_slots: of the decoder, when all had ended.
    """

    statuses: Counter[int] = field(default_factory=Counter)
    left: int = 0
    texts: list[tuple[dict[str, Any], str]] = field(default_factory=list)
    warm: int = 0
    end: int = 0
    errors: list[str] = field(default_factory=list)
    free_slots: int | None = None

    def wrong(self) -> list[dict[str, Any]]:
        """Return the bodies whose text is not the library's."""
        decoder = toy_decoder()
        found = []
        for first in range(0, len(self.texts), 256):
            part = self.texts[first : first + 256]
            prompts = [body["prompt"] for body, _ in part]
            outputs = decoder.generate(prompts, [params_of(body) for body, _ in part])
            pairs = zip(part, outputs, strict=True)
            found += [body for (body, text), output in pairs if output.text != text]
        return found


def random_body(rng: np.random.Generator) -> dict[str, Any]:
    """Return a request with random parameters, and a seed."""
    letters = rng.integers(97, 123, size=int(rng.integers(1, 60)))
    body: dict[str, Any] = {
        "prompt": bytes(letters.astype(np.uint8)).decode(),
        "max_tokens": int(rng.integers(1, 40)),
        "seed": int(rng.integers(2**31)),
        "temperature": float(rng.choice([0.0, 0.7, 1.0])),
    }
    choices: tuple[dict[str, Any], ...] = (
        {"top_k": 20},
        {"top_p": 0.9},
        {"min_p": 0.05},
        {"presence_penalty": 0.5},
        {"frequency_penalty": 0.5},
        {"repetition_penalty": 1.2},
        {"stop": ["e", "th"]},
        {"logit_bias": {"101": -3.0}},
        {"guided_regex": "[a-z ]{5,30}"},
    )
    for place in rng.permutation(len(choices))[: int(rng.integers(4))]:
        body |= choices[place]
    return body


def params_of(body: dict[str, Any]) -> SamplingParams:
    """Return the parameters of a random body, as the library takes them."""
    given = {name: value for name, value in body.items() if name not in ("prompt", "guided_regex")}
    if "logit_bias" in given:
        given["logit_bias"] = {int(k): v for k, v in given["logit_bias"].items()}
    if "guided_regex" in body:
        given["structured_output"] = StructuredOutput(regex=body["guided_regex"])
    return SamplingParams(**given)


async def once(client: httpx.AsyncClient, rng: np.random.Generator, found: Soak) -> None:
    """Send one random request."""
    kind = rng.random()
    if kind < 0.1:
        bad = BAD[int(rng.integers(len(BAD)))]
        found.statuses[(await client.post("/v1/completions", json=bad)).status_code] += 1
        return
    body = random_body(rng)
    if kind < 0.4:
        leaves = int(rng.integers(1, 6)) if kind < 0.2 else None
        text = await streamed(client, body, leaves, found)
        if text is None:
            found.left += 1
            return
    elif kind < 0.45:
        task = asyncio.create_task(client.post("/v1/completions", json=body))
        await asyncio.sleep(float(rng.random()) * 0.02)
        task.cancel()
        found.left += 1
        return
    else:
        response = await client.post("/v1/completions", json=body)
        found.statuses[response.status_code] += 1
        if response.status_code != 200:
            return
        text = response.json()["choices"][0]["text"]
    found.texts.append((body, text))


async def streamed(
    client: httpx.AsyncClient, body: dict[str, Any], leaves: int | None, found: Soak
) -> str | None:
    """Stream a request; None if it is left after so many events."""
    text, events = "", 0
    asked = client.stream("POST", "/v1/completions", json=body | {"stream": True})
    async with asked as response:
        found.statuses[response.status_code] += 1
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                text += json.loads(line.removeprefix("data: "))["choices"][0]["text"]
                events += 1
                if events == leaves:
                    return None
    return text


def memory() -> int:
    """Return the bytes of memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def run(url: str, requests: int, clients: int) -> Soak:
    """Send so many random requests by so many clients."""
    found, numbers = Soak(), count()

    async def client_of(client: httpx.AsyncClient) -> None:
        while (number := next(numbers)) < requests:
            await once(client, np.random.default_rng(number), found)
            if number == requests // 5:
                found.warm = memory()

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as client:
        await asyncio.gather(*(client_of(client) for _ in range(clients)))
    found.end = memory()
    return found


class Errors(logging.Handler):
    """Keeps the errors that a server logs."""

    def __init__(self, found: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._found = found

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one."""
        self._found.append(record.getMessage())


def soak(requests: int, clients: int = 16) -> Soak:
    """Soak a server of its own, and return what came of it."""
    errors: list[str] = []
    handler, logger = Errors(errors), logging.getLogger("outrider")
    logger.addHandler(handler)
    try:
        with toy_server(max_waiting=1000) as server, listening(server.app) as url:
            found = asyncio.run(run(url, requests, clients))
            while server.service.running or server.service.waiting:
                sleep(0.01)
            return replace(found, errors=errors, free_slots=server.decoder.slots.free)
    finally:
        logger.removeHandler(handler)


def main() -> None:
    """Soak, and print what came of it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=16)
    asked = parser.parse_args()
    found = soak(asked.requests, asked.clients)
    said = {
        "statuses": dict(sorted(found.statuses.items())),
        "left": found.left,
        "texts": len(found.texts),
        "texts_that_differ": len(found.wrong()),
        "memory_mib": [round(each / 2**20, 1) for each in (found.warm, found.end)],
        "free_slots": found.free_slots,
        "errors_logged": len(found.errors),
    }
    print(json.dumps(said))


if __name__ == "__main__":
    main()
