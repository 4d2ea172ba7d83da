"""Streams: their usage, their headers while they wait, and how they end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the server extra is not installed")

import httpx
from fastapi.testclient import TestClient

from tests.support.server import Held, Server, listening, toy_decoder, toy_server, until

COMPLETION = ("/v1/completions", {"prompt": "abc", "max_tokens": 12, "seed": 3})
CHAT = (
    "/v1/chat/completions",
    {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 12, "seed": 3},
)
ASKED = [COMPLETION, CHAT]


def streamed(client: TestClient, route: str, body: dict[str, Any], **options: Any) -> list[Any]:
    """The chunks of a stream."""
    response = client.post(route, json=body | {"stream": True} | options)
    assert response.status_code == 200, response.text
    parts = [part.removeprefix("data: ") for part in response.text.strip().split("\n\n")]
    assert parts[-1] == "[DONE]"
    return [json.loads(part) for part in parts[:-1]]


@pytest.mark.parametrize(("route", "body"), ASKED)
def test_usage_is_null_until_the_last_chunk(route: str, body: Any, client: TestClient) -> None:
    parts = streamed(client, route, body, stream_options={"include_usage": True})
    assert [part["usage"] for part in parts[:-1]] == [None] * (len(parts) - 1)
    assert parts[-1]["choices"] == []
    assert parts[-1]["usage"] == client.post(route, json=body).json()["usage"] | {
        "prompt_tokens_details": parts[-1]["usage"]["prompt_tokens_details"]
    }


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": None}])
@pytest.mark.parametrize(("route", "body"), ASKED)
def test_usage_is_not_named_where_it_is_not_asked_for(
    route: str, body: Any, options: Any, client: TestClient
) -> None:
    parts = streamed(client, route, body, stream_options=options)
    assert not any("usage" in part for part in parts)
    assert all(part["choices"] for part in parts)


@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize(("route", "body"), ASKED)
def test_usage_is_counted_on_in_each_chunk(
    route: str, body: Any, n: int, ends: bool, client: TestClient
) -> None:
    options = {"continuous_usage_stats": True, "include_usage": ends}
    detailed = {"speculation_metrics": "detailed", "n": n}
    parts = streamed(client, route, body, stream_options=options, **detailed)
    counts = [part["usage"]["completion_tokens"] for part in parts]
    assert counts == sorted(counts)
    emitted = sum(len(part.get("speculation", {}).get("tokens", ())) for part in parts)
    assert counts[-1] == emitted
    if n == 1:
        so_far = 0
        for part in parts:
            new = len(part.get("speculation", {}).get("tokens", ()))
            so_far += new
            assert not new or part["usage"]["completion_tokens"] == so_far
    for part in parts:
        usage = part["usage"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


@pytest.mark.parametrize(("route", "body"), ASKED)
def test_a_usage_so_far_adds_no_chunk(route: str, body: Any, client: TestClient) -> None:
    parts = streamed(client, route, body, stream_options={"continuous_usage_stats": True})
    assert all(part["choices"] and part["usage"] for part in parts)


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"stream_options": {}}, "stream_options", "stream: true"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "stream: true"),
    ({"stream": False, "stream_options": {"include_usage": True}}, "stream_options", "stream"),
    ({"stream": True, "stream_options": {"usage": 1}}, "stream_options.usage", "no such field"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage", "1"),
    (
        {"stream": True, "stream_options": {"include_obfuscation": True}},
        "stream_options.include_obfuscation",
        "include_obfuscation=True",
    ),
    ({"stream": True, "stream_options": [1]}, "stream_options", "a JSON object"),
]


@pytest.mark.parametrize(("options", "param", "said"), WRONG)
@pytest.mark.parametrize(("route", "body"), ASKED)
def test_options_that_are_not_known_are_refused_by_name(
    route: str, body: Any, options: dict[str, Any], param: str, said: str, client: TestClient
) -> None:
    response = client.post(route, json=body | options)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param)
    assert said in error["message"]


@contextmanager
def busy(**options: Any) -> Iterator[tuple[Server, Held, httpx.Client]]:
    """A server of one sequence whose first stream is held in its first round; and a client."""
    model, (route, body) = Held(), COMPLETION
    with (
        toy_server(toy_decoder(target=model), **options) as server,
        listening(server.app) as url,
        httpx.Client(base_url=url, timeout=60) as client,
    ):
        try:
            with client.stream("POST", route, json=body | {"stream": True}) as first:
                assert first.status_code == 200
                until(lambda: server.service.running > 0)
                yield server, model, client
        finally:
            model.go.set()


@pytest.mark.parametrize(("route", "body"), ASKED)
def test_a_stream_that_waits_sends_headers_at_once_and_comments(route: str, body: Any) -> None:
    asked = {"json": body | {"stream": True, "speculation_metrics": "detailed"}}
    with (
        busy(silence_s=0.02) as (server, model, client),
        client.stream("POST", route, **asked) as stream,
    ):
        assert stream.status_code == 200
        assert stream.headers["content-type"].startswith("text/event-stream")
        lines = stream.iter_lines()
        waited = [next(lines) for _ in range(6)]
        assert server.service.waiting == 1
        assert all(line.startswith(":") for line in waited[::2])
        assert not any(waited[1::2])
        model.go.set()
        rest = [line for line in lines if line and not line.startswith(":")]
    assert rest[-1] == "data: [DONE]"
    chunks = [json.loads(line.removeprefix("data: ")) for line in rest[:-1]]
    tokens = [token for each in chunks for token in each.get("speculation", {}).get("tokens", ())]
    with toy_server() as server:
        (whole,) = TestClient(server.app).post(route, json=body).json()["choices"]
    text = whole["text"] if "text" in whole else whole["message"]["content"]
    assert "".join(token["text"] for token in tokens) == text


def test_what_is_known_before_has_a_status_also_in_a_stream() -> None:
    route, body = COMPLETION
    asked = body | {"stream": True}
    with busy(max_waiting=1) as (server, model, client):
        with client.stream("POST", route, json=asked) as waits:
            assert waits.status_code == 200
            full = client.post(route, json=asked)
            assert (full.status_code, full.headers["Retry-After"]) == (429, "1")
            assert full.json()["error"]["code"] == "queue_full"
            for wrong, status in (
                ({"temperature": -1}, 400),
                ({"prompt": [999]}, 400),
                ({"model": "other"}, 404),
            ):
                assert client.post(route, json=asked | wrong).status_code == status
        model.go.set()
        until(lambda: server.decoder.slots.free == 1 and not server.service.waiting)
        server.service.close(60)
        assert client.post(route, json=asked).status_code == 503


def test_a_stream_that_is_left_while_it_waits_is_decoded_no_further() -> None:
    route, body = COMPLETION
    with busy() as (server, model, client):
        with client.stream("POST", route, json=body | {"stream": True}):
            assert server.service.waiting == 1
        figures = TestClient(server.app)
        until(lambda: 'finished_reason="cancelled"' in figures.get("/metrics").text)
        model.go.set()
        until(lambda: server.decoder.slots.free == 1 and not server.service.waiting)
        assert server.decoder.metrics.emitted <= 12


@pytest.mark.parametrize("version", ["2.3", "2.4"])
@pytest.mark.parametrize("sent", [0, 1])
def test_a_stream_whose_client_cannot_be_written_to_is_decoded_no_further(
    version: str, sent: int
) -> None:
    """Not even where its headers could not be sent; and it is no error that a log would show."""
    route, body = COMPLETION
    data = json.dumps(body | {"stream": True, "max_tokens": 150, "ignore_eos": True}).encode()
    parts = [{"type": "http.request", "body": data, "more_body": False}]
    left = [None] * sent

    async def receive() -> Any:
        if parts:
            return parts.pop()
        return await asyncio.Event().wait()

    async def send(message: Any) -> None:
        if not left:
            raise OSError("the connection is lost")
        left.pop()

    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": version},
        "method": "POST",
        "path": route,
        "raw_path": route.encode(),
        "query_string": b"",
        "headers": [],
    }
    with toy_server() as server:
        asyncio.run(server.app(scope, receive, send))
        until(lambda: server.decoder.slots.free == 4 and not server.service.waiting)
        assert server.decoder.metrics.emitted < 150


def test_an_error_midway_is_the_last_event() -> None:
    class Breaks(Held):
        def verify(self, prefixes: Any, proposal: Any) -> Any:
            if max(len(prefix.tokens) for prefix in prefixes) > 12:
                raise RuntimeError("broken")
            return super().verify(prefixes, proposal)

    model = Breaks(max_sequences=4)
    model.go.set()
    route, body = COMPLETION
    with toy_server(toy_decoder(target=model)) as server:
        asked = body | {"max_tokens": 100, "ignore_eos": True}
        parts = streamed(TestClient(server.app), route, asked)
    assert parts[0]["choices"]
    assert parts[-1]["error"]["code"] == "engine_failed"
