"""Under any prefix the server answers the same, asks for the same keys and keeps its limits."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import urljoin

import pytest

pytest.importorskip("fastapi", reason="the server extra is not installed")

from fastapi import FastAPI
from fastapi.testclient import TestClient
from starlette.applications import Starlette
from starlette.routing import Mount

from outrider import SamplingParams
from outrider.server.access import AuthLimits
from tests.support.server import toy_decoder, toy_server

BODY = {"prompt": "abc", "max_tokens": 8, "seed": 3}
CHAT = {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 8, "seed": 3}
KEY = {"Authorization": "Bearer one"}
KEYS = AuthLimits(keys=("one",), longest_body=1000)
GUARDED = ("/v1/models", "/v1/models/toy", "/v1/stats", "/metrics")


def in_fastapi(app: FastAPI) -> TestClient:
    parent = FastAPI()
    parent.mount("/llm", app)
    return TestClient(parent)


def in_starlette(app: FastAPI) -> TestClient:
    inner = Starlette(routes=[Mount("/deep", app)])
    return TestClient(Starlette(routes=[Mount("/llm", inner)]))


PLACES: dict[str, tuple[Callable[[FastAPI], TestClient], str]] = {
    "at the root": (TestClient, ""),
    "mounted in FastAPI": (in_fastapi, "/llm"),
    "mounted twice in Starlette": (in_starlette, "/llm/deep"),
    "under a root path, as uvicorn and Ray send it": (
        lambda app: TestClient(app, root_path="/llm"),
        "/llm",
    ),
    "under a root path that a proxy has cut off": (
        lambda app: TestClient(app, root_path="/llm"),
        "",
    ),
    "under a prefix that looks like a route": (
        lambda app: TestClient(app, root_path="/v1/models"),
        "/v1/models",
    ),
}


@pytest.fixture(params=PLACES)
def place(request: Any) -> tuple[Callable[[FastAPI], TestClient], str]:
    return PLACES[request.param]


def test_texts_are_the_librarys_under_any_prefix(place: Any) -> None:
    opened, at = place
    expected = toy_decoder().generate("abc", SamplingParams(seed=3, max_tokens=8)).text
    chatted = toy_decoder().generate("uabca", SamplingParams(seed=3, max_tokens=8)).text
    with toy_server() as server:
        client = opened(server.app)
        found = client.post(f"{at}/v1/completions", json=BODY).json()
        assert found["choices"][0]["text"] == expected
        found = client.post(f"{at}/v1/chat/completions", json=CHAT).json()
        assert found["choices"][0]["message"]["content"] == chatted
        for route, body in (("completions", BODY), ("chat/completions", CHAT)):
            stream = client.post(f"{at}/v1/{route}", json=body | {"stream": True})
            assert stream.headers["content-type"].startswith("text/event-stream")
            assert stream.text.endswith("data: [DONE]\n\n")
        for path in (*GUARDED, "/health", "/"):
            assert client.get(at + path).status_code == 200


def test_a_key_is_asked_for_under_any_prefix(place: Any) -> None:
    opened, at = place
    with toy_server(access=KEYS) as server:
        client = opened(server.app)
        for path in GUARDED:
            refused = client.get(at + path)
            assert refused.status_code == 401
            assert refused.json()["error"]["code"] == "invalid_api_key"
            assert refused.headers["WWW-Authenticate"] == "Bearer"
            assert client.get(at + path, headers=KEY).status_code == 200
        for route, body in (("completions", BODY), ("chat/completions", CHAT)):
            for asked in (body, body | {"stream": True}, {"prompt": "a" * 2000}, {"prompt": 3}):
                assert client.post(f"{at}/v1/{route}", json=asked).status_code == 401
        assert server.decoder.metrics.rounds == 0
        for route, body in (("completions", BODY), ("chat/completions", CHAT)):
            for asked in (body, body | {"stream": True}):
                found = client.post(f"{at}/v1/{route}", json=asked, headers=KEY)
                assert found.status_code == 200
        assert client.get(f"{at}/health").text == "ok"
        assert client.get(f"{at}/").status_code == 200


def test_bodies_and_errors_are_the_same_under_any_prefix(place: Any) -> None:
    opened, at = place
    with toy_server(access=KEYS) as server:
        client = opened(server.app)
        for body, status in (({"prompt": "a" * 2000}, 413), ({"prompt": 3}, 400)):
            refused = client.post(f"{at}/v1/completions", json=body, headers=KEY)
            assert (refused.status_code, set(refused.json())) == (status, {"error"})
        wrong = client.get(f"{at}/v1/nothing", headers=KEY)
        assert wrong.status_code == 404
        assert f"{at}/v1/completions" in wrong.json()["error"]["message"]


def test_the_page_finds_its_parts_under_any_prefix(place: Any) -> None:
    opened, at = place
    with toy_server() as server:
        client = opened(server.app)
        page = client.get(f"{at}/")
        parts = re.findall(r'(?:href|src)="([^":]+)"', page.text)
        parts += re.findall(r'fetch\("([^"]+)"', client.get(f"{at}/page.js").text)
        assert {"page.css", "page.js", "v1/completions", "v1/stats"} == set(parts)
        for part in parts:
            address = urljoin(str(page.url), part)
            assert client.get(address).status_code == (405 if "completions" in part else 200)


def test_the_page_is_found_without_its_slash() -> None:
    with toy_server() as server:
        assert "<h1>Outrider</h1>" in in_fastapi(server.app).get("/llm").text
        assert "<h1>Outrider</h1>" in TestClient(server.app, root_path="/llm").get("/llm").text


def test_what_nothing_foresaw_is_a_500_with_the_applications_form(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, place: Any
) -> None:
    opened, at = place

    def broken(*_: Any) -> None:
        raise RuntimeError("broken")

    with toy_server() as server:
        monkeypatch.setattr(server.service, "submit", broken)
        response = opened(server.app).post(f"{at}/v1/completions", json=BODY)
        assert response.status_code == 500
        assert response.json()["error"]["type"] == "server_error"
        assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert "broken" in caplog.text
