"""What a server refuses, ends or gives up, and that everything else goes on."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the server extra is not installed")

from fastapi.testclient import TestClient

from outrider import SamplingParams
from outrider.drafters.base import DraftContext, Drafter, nothing_drafted
from outrider.errors import DraftError, InvalidConfigError, OutriderError
from outrider.server.access import AuthLimits
from outrider.server.failures import ClosingError, DeadlineError, QueueFullError
from outrider.server.service import Service, Update
from outrider.types.records import DraftPlan, DraftProposal, Prefix, TargetScores
from tests.support.server import Held, listening, toy_decoder, toy_server, until

BODY = {"prompt": "abc", "max_tokens": 8, "temperature": 0}


class Breaks(Held):
    """A model of which one round fails, once it is set to."""

    broken = False

    def verify(self, prefixes: Sequence[Prefix], proposal: DraftProposal) -> TargetScores:
        if self.broken:
            self.broken = False
            raise RuntimeError("broken")
        return super().verify(prefixes, proposal)


class Received:
    """The updates of one request."""

    def __init__(self) -> None:
        self.updates: list[Update] = []
        self.ended = threading.Event()

    def __call__(self, update: Update) -> None:
        self.updates.append(update)
        if update.done:
            self.ended.set()

    @property
    def error(self) -> OutriderError | None:
        return self.updates[-1].error


def test_keys_are_asked_of_all_but_the_page_and_health() -> None:
    with toy_server(access=AuthLimits(keys=("one", "two"))) as server:
        client = TestClient(server.app)
        for key in ("", "Bearer", "Bearer three", "Basic one", "Bearer ones", "Bearer \u00e9"):
            headers = {"Authorization": key.encode("latin-1")}
            response = client.post("/v1/completions", json=BODY, headers=headers)
            assert response.status_code == 401
            assert response.json()["error"]["code"] == "invalid_api_key"
        for path in ("/v1/models", "/v1/stats", "/metrics"):
            assert client.get(path).status_code == 401
        for key in ("one", "two"):
            headers = {"Authorization": f"Bearer {key}"}
            assert client.post("/v1/completions", json=BODY, headers=headers).status_code == 200
        assert client.get("/health").text == "ok"
        assert client.head("/health").status_code == 200
        assert client.get("/").status_code == 200


@pytest.mark.parametrize("keys", [("",), ("one", " ")])
def test_an_empty_key_opens_nothing(keys: tuple[str, ...]) -> None:
    with pytest.raises(InvalidConfigError, match="a key that is not empty"):
        AuthLimits(keys=keys)


def test_what_a_client_may_not_choose_of_the_template() -> None:
    body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2}
    with toy_server() as server:
        client = TestClient(server.app)
        for name in ("chat_template", "tokenize"):
            asked = body | {"chat_template_kwargs": {name: "{{ 1 }}"}}
            response = client.post("/v1/chat/completions", json=asked)
            assert response.status_code == 400
            assert response.json()["error"]["param"] == "chat_template_kwargs"
        asked = body | {"chat_template_kwargs": {"own": 1}}
        assert client.post("/v1/chat/completions", json=asked).status_code == 400
        server.decoder.tokenizer.chat_template += "{{ own }}"
        assert client.post("/v1/chat/completions", json=asked).status_code == 200


def test_a_body_that_is_too_long_is_refused() -> None:
    with toy_server(access=AuthLimits(longest_body=1000)) as server:
        client = TestClient(server.app)
        response = client.post("/v1/completions", json={"prompt": "a" * 2000})
        assert (response.status_code, response.json()["error"]["code"]) == (413, "body_too_large")
        assert client.post("/v1/completions", json=BODY).status_code == 200


def test_a_full_queue_refuses_and_the_others_go_on() -> None:
    model = Held()
    service = Service(toy_decoder(target=model), max_waiting=2)
    try:
        states = [
            service.decoder.start("abc", SamplingParams(max_tokens=4, temperature=0))
            for _ in range(5)
        ]
        received = [Received() for _ in states]
        jobs = [service.submit([states[0]], received[0])]
        until(lambda: service.running > 0)
        jobs += [service.submit([states[i]], received[i]) for i in (1, 2)]
        with pytest.raises(QueueFullError, match="3 sequences run or wait and 3 may"):
            service.submit([states[3]], received[3])
        service.cancel(jobs[1])
        model.go.set()
        assert received[0].ended.wait(60)
        assert received[2].ended.wait(60)
        assert not received[1].updates
        assert service.submit([states[4]], received[4])
        assert received[4].ended.wait(60)
    finally:
        model.go.set()
        service.close()
        service.join(60)
    assert service.decoder.slots.free == 1


def test_the_queues_error_says_when_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    with toy_server() as server:

        def full(*_: Any) -> None:
            raise QueueFullError("full")

        monkeypatch.setattr(server.service, "submit", full)
        response = TestClient(server.app).post("/v1/completions", json=BODY)
        assert (response.status_code, response.headers["Retry-After"]) == (429, "1")


def test_a_request_past_its_time_is_ended() -> None:
    model = Held()
    service = Service(toy_decoder(target=model), timeout_s=0.0)
    received = Received()
    service.submit([service.decoder.start("abc", SamplingParams(max_tokens=4))], received)
    model.go.set()
    assert received.ended.wait(60)
    assert isinstance(received.error, DeadlineError)
    service.close()
    service.join(60)


@pytest.mark.parametrize(("grace_s", "error"), [(60.0, None), (0.0, ClosingError)])
def test_closing_lets_requests_end_or_ends_them(
    grace_s: float, error: type[OutriderError] | None
) -> None:
    model = Held()
    service = Service(toy_decoder(target=model))
    received = Received()
    service.submit([service.decoder.start("abc", SamplingParams(max_tokens=30))], received)
    until(lambda: service.running > 0)
    service.close(grace_s)
    with pytest.raises(ClosingError):
        service.submit([service.decoder.start("abc", SamplingParams())], Received())
    model.go.set()
    service.join(60)
    assert received.ended.is_set()
    assert received.error is None if error is None else isinstance(received.error, error)
    assert service.decoder.slots.free == 1


def test_an_engine_that_ended_takes_no_more_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("broken")

    with toy_server() as server:
        client = TestClient(server.app)
        assert client.get("/health").status_code == 200
        monkeypatch.setattr("outrider.engine.scheduler.Scheduler.submit", broken)
        for _ in range(2):
            response = client.post("/v1/completions", json=BODY)
            assert (response.status_code, response.json()["error"]["code"]) == (503, "closing")
        assert client.get("/health").status_code == 503


class Fails(Drafter):
    """Raises for sequences whose prompt begins with a certain token."""

    vocab_size = None
    source = "fails"

    def propose(
        self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: DraftContext
    ) -> DraftProposal:
        for prefix in prefixes:
            if prefix.tokens[0] == ord("x"):
                raise DraftError("no", sequence_id=prefix.sequence_id)
        return nothing_drafted(len(prefixes), ctx.device)


@pytest.mark.parametrize("on_error", ["raise", "disable"])
def test_a_drafter_that_fails_concerns_its_own_request_alone(on_error: str) -> None:
    model = Held(max_sequences=3)
    decoder = toy_decoder(target=model, drafter=Fails(), on_draft_error=on_error)
    with toy_server(decoder) as server:
        client = TestClient(server.app)
        answers: dict[str, Any] = {}

        def ask(prompt: str) -> None:
            answers[prompt] = client.post("/v1/completions", json=BODY | {"prompt": prompt})

        threads = [
            threading.Thread(target=ask, args=(prompt,)) for prompt in ("hold", "abc", "xbc")
        ]
        threads[0].start()
        until(lambda: server.service.running == 1)  # its round is held: the others meet in the next
        for thread in threads[1:]:
            thread.start()
        until(lambda: server.service.waiting == 2)
        model.go.set()
        for thread in threads:
            thread.join(60)
    expected = toy_decoder().generate("abc", SamplingParams(max_tokens=8, temperature=0)).text
    assert answers["abc"].json()["choices"][0]["text"] == expected
    assert answers["hold"].status_code == 200
    assert answers["xbc"].status_code == (500 if on_error == "raise" else 200)
    if on_error == "raise":
        assert answers["xbc"].json()["error"]["code"] == "draft_failed"


class Clings(Fails):
    """Cannot let go of a sequence."""

    def propose(
        self, prefixes: Sequence[Prefix], plan: DraftPlan, ctx: DraftContext
    ) -> DraftProposal:
        return nothing_drafted(len(prefixes), ctx.device)

    def release(self, sequence_ids: Iterable[int], *, discard: bool = False) -> None:
        raise RuntimeError("no")


def test_what_cannot_be_released_does_not_end_the_engine() -> None:
    model = Held(max_sequences=2)
    decoder = toy_decoder(target=model, drafter=Clings(), on_draft_error="raise")
    service = Service(decoder)
    received = [Received() for _ in range(4)]
    params = SamplingParams(max_tokens=4, temperature=0)
    jobs = [service.submit([decoder.start("abc", params)], each) for each in received[:2]]
    service.cancel(jobs[0])
    model.go.set()
    assert received[1].ended.wait(60)
    for later in received[2:]:  # in the room that was held
        service.submit([decoder.start("abc", params)], later)
        assert later.ended.wait(60)
    assert not service.closing
    service.close()
    service.join(60)


def test_a_round_that_fails_ends_its_requests_and_the_server_goes_on() -> None:
    model = Breaks(max_sequences=4)
    model.go.set()
    model.broken = True
    with toy_server(toy_decoder(target=model)) as server:
        client = TestClient(server.app)
        response = client.post("/v1/completions", json=BODY)
        assert (response.status_code, response.json()["error"]["code"]) == (500, "engine_failed")
        assert client.post("/v1/completions", json=BODY).status_code == 200
        assert server.decoder.slots.free == 4


def test_a_client_that_goes_away_is_decoded_no_further(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "outrider")
    model = Held(max_sequences=2)
    with toy_server(toy_decoder(target=model)) as server, listening(server.app) as url:
        host, port = url.removeprefix("http://").split(":")
        body = json.dumps(BODY | {"max_tokens": 150, "ignore_eos": True}).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body)
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            connection.sendall(head + body)
            until(lambda: server.service.running == 1)
        until(lambda: "cancelled" in str([vars(record) for record in caplog.records]))
        model.go.set()
        until(lambda: server.decoder.slots.free == 2 and not server.service.waiting)
        assert server.decoder.metrics.rounds <= 1


def chain(count: int) -> dict[str, Any]:
    """A grammar whose rules name one another in a line."""
    rules = "".join(f'r{i}: "x" r{i + 1} | "a"\n' for i in range(count))
    return {"guided_grammar": f'start: r0\n{rules}r{count}: "b"\n'}


def references(count: int) -> dict[str, Any]:
    """A schema whose definitions name one another in a line."""
    named = [{"$ref": f"#/$defs/d{i}"} for i in range(count + 1)]
    objects = {f"d{i}": {"type": "object", "properties": {"a": named[i + 1]}} for i in range(count)}
    return {"guided_json": {**named[0], "$defs": {**objects, f"d{count}": {"type": "null"}}}}


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ({"guided_regex": "(a?){500}a{500}"}, "a simpler one"),
        ({"guided_regex": "((a{1,100}){1,100}){1,100}"}, None),
        ({"guided_regex": "(" * 50_000 + "a" + ")" * 50_000}, "one that llguidance can compile"),
        ({"guided_regex": "(.*a.{20}){3}"}, None),
        ({"guided_regex": "[ab]*a[ab]{5000}"}, None),
        ({"guided_grammar": 'start: s\ns: s s s s | "a" | s s | ""\n'}, None),
        (chain(3000), None),
        (chain(9000), "at most 8192 rules and brackets"),
        (references(1200), None),
        (references(2000), "8192 levels of all that references name"),
    ],
)
def test_a_pathological_form_is_answered(form: dict[str, Any], said: str | None) -> None:
    """What the compiler of forms would run out of stack for is refused."""
    with toy_server() as server:
        response = TestClient(server.app).post("/v1/completions", json=BODY | form)
        if said is None:
            assert response.status_code == 200, response.text
        else:
            assert response.status_code == 400
            assert said in response.json()["error"]["message"]


def test_each_request_is_logged_by_its_figures_and_none_of_its_text(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "outrider")
    with toy_server() as server:
        client = TestClient(server.app)
        prompt = "words of a client\n"
        answer = client.post("/v1/completions", json=BODY | {"prompt": prompt, "n": 2}).json()
        client.post("/v1/completions", json=BODY | {"prompt": prompt, "stream": True})
        client.post("/v1/completions", json=BODY | {"prompt": prompt, "top_p": 7})
    logged = [record for record in caplog.records if "figures" in vars(record)]
    ended = [record.figures for record in logged if record.getMessage() == "a request ended"]
    assert [each["outcome"] for each in ended] == ["length"] * 2
    assert ended[0]["id"] == answer["id"]
    assert (ended[0]["prompt_tokens"], ended[0]["completion_tokens"]) == (len(prompt), 16)
    assert ended[0]["time_to_first_token_ms"] >= 0
    assert [r.figures for r in logged if r.getMessage() == "refused"] == [
        {"status": 400, "path": "/v1/completions", "code": None, "param": "top_p"}
    ]
    written = json.dumps([vars(record) for record in caplog.records], default=str)
    assert "words of a client" not in written


def test_headers_and_paths_put_nothing_into_a_response() -> None:
    """A line break in what a client sends begins no header of the answer."""
    planted = "\r\nX-Planted: 1\r\n"
    asked = (
        ("GET /v1/models%0d%0aX-Planted:%201 HTTP/1.1", "Host: a"),
        ("GET /v1/models HTTP/1.1", f"Host: a{planted}Authorization: Bearer b%0d%0aX-Planted: 1"),
        ("GET /v1/models HTTP/1.1", f"Host: a\r\nX-Request-Id: 1\n X-Planted: 1{planted}"),
        ("GET /\x0bv1/models\nX-Planted: 1 HTTP/1.1", "Host: a"),
        ("POST /v1/completions HTTP/1.1", "Host: a\r\nContent-Length: 5\r\nContent-Length: 9"),
    )
    with toy_server() as server, listening(server.app) as url:
        host, port = url.removeprefix("http://").split(":")
        for line, headers in asked:
            with socket.create_connection((host, int(port)), timeout=60) as connection:
                end = "Connection: close\r\n\r\n"
                connection.sendall(f"{line}\r\n{headers}\r\n{end}hello".encode("latin-1"))
                answer = b"".join(iter(partial(connection.recv, 4096), b""))
            head, _, _ = answer.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 "), line
            assert b"x-planted" not in head.lower(), line
        assert TestClient(server.app).get("/health").text == "ok"


def test_a_client_that_leaves_is_no_error_of_the_server(caplog: pytest.LogCaptureFixture) -> None:
    with toy_server() as server, listening(server.app) as url:
        host, port = url.removeprefix("http://").split(":")
        body = json.dumps(BODY | {"max_tokens": 150, "ignore_eos": True}).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body)
        for sent, wait in ((head + body[:9], False), (head + body, False), (head + body, True)):
            with socket.create_connection((host, int(port)), timeout=60) as connection:
                connection.sendall(sent)
                if wait:
                    until(lambda: server.service.running > 0)
        until(lambda: server.decoder.slots.free == 4 and not server.service.waiting)
        assert TestClient(server.app).post("/v1/completions", json=BODY).status_code == 200
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_the_page_is_plain_and_takes_nothing_from_elsewhere() -> None:
    with toy_server() as server:
        client = TestClient(server.app)
        for path in ("/", "/page.css", "/page.js"):
            response = client.get(path)
            assert response.status_code == 200
            assert "http://" not in response.text
            assert "https://" not in response.text
            assert "default-src 'none'" in response.headers["Content-Security-Policy"]
        assert "innerHTML" not in client.get("/page.js").text
