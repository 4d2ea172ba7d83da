"""A request that fails ends alone, in the server and in batches, as it does in the library."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from outrider import SpeculativeDecoder
from outrider.server.batch import answer_file, in_process
from tests.support.server import TEMPLATE, toy_decoder, toy_server

FAILS = ord("Z")
"""A byte at which the tokenizer fails; the prompt that leads to it asks for it by a bias."""


class Failing:
    """A tokenizer of bytes that cannot decode one of them."""

    def __init__(self, own: Any) -> None:
        self.own = own

    def encode(self, text: str, **options: Any) -> list[int]:
        return list(self.own.encode(text, **options))

    def decode(self, token_ids: list[int], **options: Any) -> str:
        if FAILS in token_ids:
            raise LookupError("no such letter")
        return str(self.own.decode(token_ids, **options))


class FailingAlone(Failing):
    """A tokenizer that decodes texts, and no token by itself as log-probabilities are written."""

    def decode(self, token_ids: list[int], **options: Any) -> str:
        if not options:
            raise LookupError("no such token")
        return super().decode(token_ids, **options)

    def apply_chat_template(self, messages: Any, **options: Any) -> str:
        return str(self.own.apply_chat_template(messages, **options))


def failing(kind: type[Failing] = Failing) -> SpeculativeDecoder:
    decoder = toy_decoder()
    decoder.tokenizer = kind(decoder.tokenizer)
    decoder.tokenizer.chat_template = TEMPLATE
    return decoder


def body(prompt: str, *, fails: bool = False, **more: Any) -> dict[str, Any]:
    bias = {str(FAILS): 100.0 if fails else -100.0}
    return {"prompt": prompt, "max_tokens": 8, "seed": 1, "logit_bias": bias, **more}


@pytest.mark.parametrize("stop", [[], ["zz"]], ids=["no stop strings", "stop strings"])
def test_a_tokenizer_that_fails_ends_its_own_request(stop: list[str]) -> None:
    asked = [body(f"x{i}", fails=i == 1, stop=stop) for i in range(4)]
    with toy_server() as server:
        client = TestClient(server.app)
        expected = [client.post("/v1/completions", json=each).json() for each in asked]
    with toy_server(failing()) as server:
        client = TestClient(server.app)
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda each: client.post("/v1/completions", json=each), asked))
        assert [answer.status_code for answer in found] == [200, 500, 200, 200]
        assert found[1].json()["error"]["code"] == "engine_failed"
        assert "no such letter" in found[1].json()["error"]["message"]
        for index in (0, 2, 3):
            assert found[index].json()["choices"] == expected[index]["choices"]
        assert client.get("/health").status_code == 200


@pytest.mark.parametrize("chats", [False, True], ids=["completions", "chats"])
def test_a_tokenizer_that_fails_on_log_probabilities_ends_its_own_request(
    tmp_path: Path, *, chats: bool
) -> None:
    route = "/v1/chat/completions" if chats else "/v1/completions"
    asked: dict[str, Any] = {"prompt": "x", "logprobs": 1}
    if chats:
        said = [{"role": "user", "content": "x"}]
        asked = {"messages": said, "logprobs": True, "top_logprobs": 1}
    asked |= {"max_tokens": 4, "seed": 1}
    with toy_server(failing(FailingAlone)) as server:
        client = TestClient(server.app, raise_server_exceptions=False)
        whole = client.post(route, json=asked)
        assert whole.status_code == 500
        assert "no such token" in whole.json()["error"]["message"]
        parts = client.post(route, json=asked | {"stream": True}).text.strip().split("\n\n")
        assert json.loads(parts[-2].removeprefix("data: "))["error"]["code"] == "engine_failed"
        assert parts[-1] == "data: [DONE]"
        failures = 'outrider:request_success_total{finished_reason="engine_failed"'
        assert f'{failures},model_name="toy"}} 2.0' in client.get("/metrics").text
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    bodies = [asked, asked | {"logprobs": None, "top_logprobs": None}]
    lines = [{"custom_id": str(i), "url": route, "body": body} for i, body in enumerate(bodies)]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    make = partial(failing, FailingAlone)
    done = answer_file(source, target, in_process(make, "toy", together=2), lambda *_: None)
    assert (done.now, done.failed) == (2, 1)


def test_a_line_that_fails_leaves_the_others_their_answers(tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [
        {"custom_id": f"{i}", "url": "/v1/completions", "body": body(f"x{i}", fails=i == 1)}
        for i in range(4)
    ]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = answer_file(source, target, in_process(failing, "toy", together=3), lambda *_: None)
    assert (done.now, done.failed) == (4, 1)
    answers = [json.loads(line) for line in target.read_text().splitlines()]
    assert [each["response"]["status_code"] for each in answers] == [200, 500, 200, 200]
    assert "sequence" in answers[1]["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_form_that_is_whole_before_min_tokens_ends_by_itself(stream: bool) -> None:
    """Where it is known that no text is long enough, it is refused before anything is decoded."""
    with toy_server() as server:
        client = TestClient(server.app)
        form = {"guided_regex": "(yes|no)", "min_tokens": 50, "max_tokens": 60, "stream": stream}
        answer = client.post("/v1/completions", json={"prompt": "x", "seed": 1, **form})
        assert answer.status_code == 200
        assert '"error"' not in answer.text
        assert '"finish_reason":"stop"' in answer.text.replace(": ", ":")
        form = {"guided_choice": ["yes", "no"], "min_tokens": 50, "max_tokens": 60}
        answer = client.post("/v1/completions", json={"prompt": "x", "stream": stream, **form})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "min_tokens")
