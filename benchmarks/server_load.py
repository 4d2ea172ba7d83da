"""Load an OpenAI-compatible server with concurrent clients, and print its speed.

    python -m benchmarks.server_load http://127.0.0.1:8000/v1 demo --clients 1,4,16,64

Every client streams one request after another, with prompts that take turns; `--system` puts the
text of a file before each, as a system prompt is. Tokens are counted by the usage that the server
reports.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import Any

import httpx
import numpy as np

import outrider_demo


@dataclass(frozen=True)
class Sample:
    """One request: seconds to its first token, between its chunks, and in all; its tokens."""

    first_s: float
    between_s: tuple[float, ...]
    total_s: float
    tokens: int


async def ask(client: httpx.AsyncClient, url: str, body: dict[str, Any]) -> Sample:
    """Stream one completion."""
    start = last = perf_counter()
    first, between, tokens, chunks = 0.0, [], 0, 0
    async with client.stream("POST", f"{url}/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            chunk, now = json.loads(line.removeprefix("data: ")), perf_counter()
            tokens = (chunk.get("usage") or {}).get("completion_tokens", tokens)
            if chunk.get("choices") and chunk["choices"][0].get("text"):
                chunks += 1
                if first:
                    between.append(now - last)
                first, last = first or now - start, now
    return Sample(first, tuple(between), perf_counter() - start, tokens or chunks)


async def load(
    url: str, clients: int, requests: int, system: str, shared: dict[str, Any]
) -> tuple[float, list[Sample]]:
    """Keep so many clients busy until all requests are answered; return the seconds as well."""
    numbers, samples = count(), []

    async def client_of(client: httpx.AsyncClient) -> None:
        while (number := next(numbers)) < requests:
            prompt = outrider_demo.PROMPTS[number % len(outrider_demo.PROMPTS)]
            body = {
                "prompt": f"{system}# {number}\n{prompt}",
                "seed": number,
                "stream": True,
                "stream_options": {"include_usage": True},
                **shared,
            }
            samples.append(await ask(client, url, body))

    async with httpx.AsyncClient(timeout=600, limits=httpx.Limits(max_connections=None)) as client:
        start = perf_counter()
        await asyncio.gather(*(client_of(client) for _ in range(clients)))
        return perf_counter() - start, samples


def described(clients: int, seconds: float, samples: list[Sample]) -> dict[str, Any]:
    """Reduce samples to the figures of one row; times are in milliseconds."""
    first = [1e3 * sample.first_s for sample in samples]
    between = [1e3 * each for sample in samples for each in sample.between_s] or [0.0]
    per_token = [
        1e3 * (sample.total_s - sample.first_s) / max(1, sample.tokens - 1) for sample in samples
    ]
    row: dict[str, Any] = {"clients": clients, "requests": len(samples)}
    row["tokens_per_s"] = sum(sample.tokens for sample in samples) / seconds
    for name, values in (("ttft", first), ("itl", between), ("tpot", per_token)):
        row[f"{name}_p50_ms"], row[f"{name}_p99_ms"] = np.percentile(values, [50, 99])
    return row


def main() -> None:
    """Print a line of JSON for each number of clients."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("model")
    parser.add_argument("--clients", default="1,4,16,64")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--system", type=Path, help="a file whose text comes before every prompt")
    parser.add_argument("--more", type=json.loads, default={}, help="fields of every body, as JSON")
    asked = parser.parse_args()
    system = asked.system.read_text(encoding="utf-8") if asked.system else ""
    shared = {
        "model": asked.model,
        "max_tokens": asked.tokens,
        "temperature": asked.temperature,
        **asked.more,
    }
    for clients in map(int, asked.clients.split(",")):
        requests = max(asked.requests // 4, 8) if clients == 1 else max(asked.requests, clients)
        seconds, samples = asyncio.run(load(asked.url, clients, requests, system, shared))
        row = described(clients, seconds, samples)
        said = {k: round(v, 1) if isinstance(v, float) else v for k, v in row.items()}
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
