"""Pages of other origins may ask where `--allow-origin` names them, and see errors too."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the server extra is not installed")

from fastapi.testclient import TestClient

from outrider.cli import main
from outrider.errors import InvalidConfigError
from outrider.server.access import AuthLimits
from tests.support.server import toy_decoder, toy_server

PAGE = "https://chat.example"
OTHER = "http://localhost:3000"
BODY = {"prompt": "abc", "max_tokens": 2, "temperature": 0}
ACCESS = AuthLimits(keys=("one",), longest_body=1000, origins=(PAGE, OTHER))
KEY = {"Authorization": "Bearer one"}
ROUTES = ("/v1/completions", "/v1/chat/completions", "/v1/models", "/v1/stats", "/health")


def preflight(origin: str) -> dict[str, str]:
    return {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization, content-type, x-stainless-os",
    }


@pytest.mark.parametrize("root", ["", "/llm"])
@pytest.mark.parametrize("origin", [PAGE, OTHER])
def test_a_preflight_is_answered_without_a_key(origin: str, root: str) -> None:
    with toy_server(access=ACCESS) as server:
        client = TestClient(server.app, root_path=root)
        for route in ROUTES:
            response = client.options(root + route, headers=preflight(origin))
            assert response.status_code == 200
            assert response.headers["Access-Control-Allow-Origin"] == origin
            assert "POST" in response.headers["Access-Control-Allow-Methods"]
            allowed = response.headers["Access-Control-Allow-Headers"]
            assert {"authorization", "x-stainless-os"} <= set(allowed.split(", "))


def test_answers_streams_and_errors_carry_the_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    with toy_server(access=ACCESS) as server:
        client = TestClient(server.app, headers={"Origin": PAGE})
        asked = [
            (client.post("/v1/completions", json=BODY, headers=KEY), 200),
            (client.post("/v1/completions", json=BODY | {"stream": True}, headers=KEY), 200),
            (client.get("/v1/models", headers=KEY), 200),
            (client.get("/v1/models"), 401),
            (client.post("/v1/completions", json=BODY), 401),
            (client.post("/v1/completions", json={"prompt": 3}, headers=KEY), 400),
            (client.post("/v1/completions", json={"prompt": "a" * 2000}, headers=KEY), 413),
            (client.get("/v1/completions", headers=KEY), 405),
            (client.get("/v1/nothing", headers=KEY), 404),
        ]

        def broken(*_: object) -> None:
            raise RuntimeError("broken")

        monkeypatch.setattr(server.service, "submit", broken)
        asked += [(client.post("/v1/completions", json=BODY, headers=KEY), 500)]
    for response, status in asked:
        assert response.status_code == status
        assert response.headers["Access-Control-Allow-Origin"] == PAGE
        assert "Retry-After" in response.headers["Access-Control-Expose-Headers"]
        assert "Origin" in response.headers["Vary"]
        assert response.headers["X-Content-Type-Options"] == "nosniff"


def test_other_origins_get_no_headers() -> None:
    with toy_server(access=ACCESS) as server:
        client = TestClient(server.app)
        refused = client.options("/v1/completions", headers=preflight("https://other.example"))
        assert refused.status_code == 400
        found = client.get("/health", headers={"Origin": "https://other.example"})
        assert found.status_code == 200
        for response in (refused, found):
            assert "Access-Control-Allow-Origin" not in response.headers


def test_all_origins_may_be_allowed_and_none_is_by_default() -> None:
    for origins, allowed in ((("*",), "*"), ((), None)):
        with toy_server(access=AuthLimits(origins=origins)) as server:
            client = TestClient(server.app)
            response = client.options("/v1/completions", headers=preflight(PAGE))
            assert response.status_code == (200 if origins else 405)
            assert response.headers.get("Access-Control-Allow-Origin") == allowed
            response = client.get("/health", headers={"Origin": PAGE})
            assert response.headers.get("Access-Control-Allow-Origin") == allowed


@pytest.mark.parametrize(
    "origin",
    ["", "chat.example", "https://chat.example/", "https://chat.example/a", "HTTPS://A", "null"],
)
def test_what_is_no_origin_is_refused(origin: str) -> None:
    with pytest.raises(InvalidConfigError, match=r"allow_origin=.*scheme://host\[:port\]"):
        AuthLimits(origins=(PAGE, origin))


def test_the_flag_is_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[Any] = []
    monkeypatch.setattr("outrider.cli.models.load_decoder", lambda *_: toy_decoder())
    monkeypatch.setattr("outrider.server.serving.run", lambda app, *_: served.append(app))
    assert main(["serve", "model", "--allow-origin", PAGE, "--allow-origin", OTHER]) == 0
    assert main(["serve", "model"]) == 0
    assert [each.state.server.access.origins for each in served] == [(PAGE, OTHER), ()]
    for each in served:
        each.state.server.requests.service.close()


def test_the_flag_is_checked_before_a_model_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--allow-origin", PAGE, "--allow-origin", "chat.example"]
    assert main(["serve", "no-such-model", *flags]) == 2
    assert "allow_origin='chat.example' is not allowed" in capsys.readouterr().err
