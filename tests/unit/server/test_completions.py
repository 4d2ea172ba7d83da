"""What the server answers is what the library decodes, in OpenAI's form."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the server extra is not installed")

from fastapi.testclient import TestClient

from outrider import SamplingParams, StructuredOutput, __version__
from tests.support.families import CONTEXT
from tests.support.server import toy_decoder, toy_server

ROUTES = ("/v1/completions", "/v1/chat/completions")


def asked(client: TestClient, **body: Any) -> dict[str, Any]:
    response = client.post("/v1/completions", json={"prompt": "abc", **body})
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def events(text: str) -> list[dict[str, Any]]:
    """The objects of server-sent events, the closing mark left out."""
    parts = [part.removeprefix("data: ") for part in text.strip().split("\n\n")]
    assert parts[-1] == "[DONE]"
    return [json.loads(part) for part in parts[:-1]]


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "greedy": ({"temperature": 0}, {"temperature": 0.0}),
    "sampled": ({}, {}),
    "filters": (
        {"top_k": 7, "top_p": 0.8, "min_p": 0.02},
        {"top_k": 7, "top_p": 0.8, "min_p": 0.02},
    ),
    "penalties": (
        {"presence_penalty": 1, "frequency_penalty": 0.5, "repetition_penalty": 1.2},
        {"presence_penalty": 1.0, "frequency_penalty": 0.5, "repetition_penalty": 1.2},
    ),
    "bias": ({"logit_bias": {"3": 5, "4": -100}}, {"logit_bias": {3: 5.0, 4: -100.0}}),
    "stop": ({"stop": ["e", "\n"]}, {"stop": ("e", "\n")}),
    "stop tokens": ({"stop_token_ids": [2, 9]}, {"stop_token_ids": (2, 9)}),
    "choices": ({"n": 3}, {"n": 3}),
    "prediction": (
        {"prediction": {"type": "content", "content": [{"type": "text", "text": "abcabc"}]}},
        {"prediction": "abcabc"},
    ),
    "regex": (
        {"guided_regex": "(ab|cd){3}"},
        {"structured_output": StructuredOutput(regex="(ab|cd){3}")},
    ),
    "choice": (
        {"structured_outputs": {"choice": ["abc", "xyz"]}},
        {"structured_output": StructuredOutput(choice=("abc", "xyz"))},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_seeded_text_is_the_librarys(name: str, client: TestClient) -> None:
    body, params = CASES[name]
    found = asked(client, seed=5, max_tokens=24, **body)
    expected = toy_decoder().generate(
        "abc", SamplingParams(**{"seed": 5, "max_tokens": 24} | params)
    )
    choices = sorted(found["choices"], key=lambda choice: choice["index"])
    assert [choice["text"] for choice in choices] == [each.text for each in expected.choices]
    assert [c["finish_reason"] for c in choices] == [
        each.finish_reason for each in expected.choices
    ]
    tokens = sum(len(each.token_ids) for each in expected.choices)
    assert found["usage"]["completion_tokens"] == tokens
    assert found["usage"]["prompt_tokens"] == 3


@pytest.mark.parametrize("name", CASES)
def test_a_stream_joins_to_the_text(name: str, client: TestClient) -> None:
    body = {"prompt": "abc", "seed": 5, "max_tokens": 24, **CASES[name][0]}
    whole = client.post("/v1/completions", json=body).json()
    options = {"stream": True, "stream_options": {"include_usage": True}}
    parts = events(client.post("/v1/completions", json=body | options).text)
    assert parts[-1]["choices"] == []
    assert parts[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    for choice in whole["choices"]:
        own = [c for part in parts for c in part["choices"] if c["index"] == choice["index"]]
        assert "".join(each["text"] for each in own) == choice["text"]
        assert [each["finish_reason"] for each in own if each["finish_reason"]] == [
            choice["finish_reason"]
        ]


def test_a_chat_is_the_templates_text(client: TestClient) -> None:
    messages = [
        {"role": "system", "content": "abc"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "de"}, {"type": "text", "text": "f"}],
        },
    ]
    body = {"messages": messages, "seed": 3, "max_completion_tokens": 12}
    found = client.post("/v1/chat/completions", json=body).json()
    expected = toy_decoder().generate("sabcudefa", SamplingParams(seed=3, max_tokens=12))
    assert found["object"] == "chat.completion"
    assert found["choices"][0]["message"]["content"] == expected.text
    parts = events(client.post("/v1/chat/completions", json=body | {"stream": True}).text)
    deltas = [part["choices"][0]["delta"] for part in parts]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert deltas[-1] == {}
    assert "".join(delta.get("content", "") for delta in deltas) == expected.text
    assert {part["object"] for part in parts} == {"chat.completion.chunk"}


def test_a_chat_without_a_limit_may_fill_the_context(client: TestClient) -> None:
    body = {"messages": [{"role": "user", "content": "abc"}], "temperature": 0}
    found = client.post("/v1/chat/completions", json=body).json()
    total = found["usage"]["total_tokens"]
    assert total == CONTEXT or found["choices"][0]["finish_reason"] == "stop"


def test_several_prompts_are_numbered_on(client: TestClient) -> None:
    found = asked(client, prompt=["abc", "xyz"], n=2, max_tokens=4, temperature=0)
    assert sorted(choice["index"] for choice in found["choices"]) == [0, 1, 2, 3]
    texts = {choice["index"]: choice["text"] for choice in found["choices"]}
    assert texts[0] == texts[1]
    assert (
        texts[2] == asked(client, prompt="xyz", max_tokens=4, temperature=0)["choices"][0]["text"]
    )
    ids = asked(client, prompt=[list(b"abc")], max_tokens=4, temperature=0)
    assert ids["choices"][0]["text"] == texts[0]


def test_log_probabilities_are_reported(client: TestClient) -> None:
    found = asked(client, logprobs=2, max_tokens=6, temperature=0, seed=1)["choices"][0]
    own = found["logprobs"]
    for place, token in zip(own["text_offset"], own["tokens"], strict=True):
        assert token.startswith("bytes:") or found["text"][place:].startswith(token)
    assert all(1 <= len(top) <= 2 for top in own["top_logprobs"])
    body = {"messages": [{"role": "user", "content": "abc"}], "logprobs": True, "top_logprobs": 3}
    chat = client.post("/v1/chat/completions", json=body | {"max_tokens": 5}).json()
    content = chat["choices"][0]["logprobs"]["content"]
    assert len(content) == 5
    assert all(len(each["top_logprobs"]) == 3 for each in content)
    assert all(bytes(each["bytes"]).decode(errors="replace") == each["token"] for each in content)


def test_figures_add_up(client: TestClient) -> None:
    found = asked(client, max_tokens=30, temperature=0, speculation_metrics="detailed")["metrics"]
    own = found["speculative_decoding"]
    assert sum(own["acceptance_histogram"]) == own["num_spec_steps"]
    assert len(own["acceptance_histogram"]) == own["num_spec_tokens"] + 1
    assert sum(own["per_step_accepted"]) == own["num_accepted_draft_tokens"]
    assert sum(own["per_step_drafted"]) == own["num_draft_tokens"]
    assert own["num_accepted_draft_tokens"] + own["num_spec_steps"] == 30
    assert found["time_to_first_token_ms"] > 0


def test_predicted_tokens_are_counted(client: TestClient) -> None:
    text = asked(client, max_tokens=20, temperature=0)["choices"][0]["text"]
    body = {"max_tokens": 20, "temperature": 0, "speculation_metrics": "detailed"}
    found = asked(client, prediction={"type": "content", "content": text}, **body)
    details = found["usage"]["completion_tokens_details"]
    assert found["choices"][0]["text"] == text
    assert details["accepted_prediction_tokens"] > 0


def test_a_request_may_be_decoded_plainly(client: TestClient) -> None:
    found = asked(
        client, max_tokens=20, temperature=0, speculative=False, speculation_metrics="summary"
    )
    assert found["metrics"]["speculative_decoding"]["num_draft_tokens"] == 0
    assert (
        found["choices"][0]["text"]
        == asked(client, max_tokens=20, temperature=0)["choices"][0]["text"]
    )


def test_a_cached_prompt_is_counted(client: TestClient) -> None:
    body = {"prompt": "abcxyzabcxyzabcxyz", "max_tokens": 2, "temperature": 0}
    asked(client, **body)
    found = asked(client, **body)
    assert found["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_the_model_is_named(client: TestClient) -> None:
    (model,) = client.get("/v1/models").json()["data"]
    assert (model["id"], model["root"], model["max_model_len"]) == ("toy", "toy", CONTEXT)
    assert asked(client, model="alias", max_tokens=1)["model"] == "toy"


def test_a_prompt_is_tokenized_as_it_is_read(client: TestClient) -> None:
    found = client.post("/tokenize", json={"prompt": "abcxyz", "model": "toy"}).json()
    assert found["count"] == len(found["tokens"]) == 6
    assert found["max_model_len"] == CONTEXT
    assert asked(client, prompt=found["tokens"], max_tokens=1)["usage"]["prompt_tokens"] == 6
    assert client.get("/version").json() == {"version": __version__}
    assert client.post("/tokenize", json={"prompt": "a", "model": "other"}).status_code == 404
    assert client.post("/tokenize", json={"text": "a"}).status_code == 400


def test_a_request_of_one_round_waited_no_negative_time(client: TestClient) -> None:
    asked(client, max_tokens=1)
    (line,) = (
        line
        for line in client.get("/metrics").text.splitlines()
        if line.startswith("outrider:request_queue_time_seconds_sum")
    )
    assert 0 <= float(line.split()[-1]) < 3600


def test_figures_are_exposed_under_both_names(client: TestClient) -> None:
    asked(client, max_tokens=12, temperature=0)
    text = client.get("/metrics").text
    for prefix in ("outrider:", "vllm:"):
        for name in (
            "spec_decode_num_drafts_total",
            'spec_decode_num_accepted_tokens_per_pos_total{model_name="toy",position="0"}',
            "time_to_first_token_seconds_bucket",
            "request_success_total",
            "num_requests_running",
            "generation_tokens_total",
        ):
            assert f"\n{prefix}{name}" in text


BAD: dict[str, tuple[Any, str | None]] = {
    "no object": ([1], "body"),
    "no prompt": ({}, "prompt"),
    "a prompt of a wrong type": ({"prompt": 3}, "prompt"),
    "an empty prompt": ({"prompt": ""}, "prompt"),
    "a token out of range": ({"prompt": [999]}, "prompt"),
    "a temperature": ({"prompt": "a", "temperature": -1}, "temperature"),
    "a temperature of a wrong type": ({"prompt": "a", "temperature": "hot"}, "temperature"),
    "max_tokens": ({"prompt": "a", "max_tokens": 0}, "max_tokens"),
    "a text that does not fit": ({"prompt": "a" * CONTEXT, "max_tokens": 1}, "prompt"),
    "n": ({"prompt": "a", "n": 1000}, "n"),
    "too many stops": ({"prompt": "a", "stop": list("abcdefghijklmnopq")}, "stop"),
    "a bias": ({"prompt": "a", "logit_bias": {"x": 1}}, "logit_bias.x"),
    "log-probabilities": ({"prompt": "a", "logprobs": 9}, "logprobs"),
    "a form": ({"prompt": "a", "guided_regex": "("}, "guided_regex"),
    "a form of vLLM's": (
        {"prompt": "a", "structured_outputs": {"regex": "("}},
        "structured_outputs.regex",
    ),
    "a schema": (
        {"prompt": "a", "response_format": {"type": "json_object", "schema": {"type": "x"}}},
        "response_format",
    ),
    "a schema in JSON text": ({"prompt": "a", "guided_json": "{"}, "guided_json"),
    "two forms": (
        {"prompt": "a", "guided_regex": "a", "response_format": {"type": "json_object"}},
        "response_format",
    ),
    "echo": ({"prompt": "a", "echo": True}, "echo"),
    "ranking": ({"prompt": "a", "best_of": 3}, "best_of"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_body_is_refused_in_openais_form(name: str, client: TestClient) -> None:
    body, param = BAD[name]
    response = client.post("/v1/completions", json=body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert error["message"]


@pytest.mark.parametrize("route", ROUTES)
def test_what_is_no_json_is_refused(route: str, client: TestClient) -> None:
    for data in (b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 50_000):
        response = client.post(route, content=data)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "body"


def test_other_models_routes_and_methods_are_refused(client: TestClient) -> None:
    response = client.post("/v1/completions", json={"prompt": "a", "model": "other"})
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")
    wrong = client.get("/v1/completions")
    assert (wrong.status_code, wrong.headers["Allow"]) == (405, "POST")
    missing = client.get("/v1/nothing")
    assert (missing.status_code, "error" in missing.json()) == (404, True)
    chat = client.post("/v1/chat/completions", json={"messages": []})
    assert chat.json()["error"]["param"] == "messages"


def test_prompts_read_in_parts_have_the_same_texts() -> None:
    bodies = [
        {"prompt": "a long prompt " * 4 + str(i), "max_tokens": 9, "seed": i} for i in range(4)
    ]
    texts = []
    for chunk in (5, 512):
        with toy_server(prefill_chunk=chunk) as server:
            client = TestClient(server.app)
            with ThreadPoolExecutor(4) as pool:
                asked = [pool.submit(client.post, ROUTES[0], json=body) for body in bodies]
                texts.append([each.result().json()["choices"][0]["text"] for each in asked])
    assert texts[0] == texts[1]


def test_streams_are_ascii(client: TestClient) -> None:
    """Some clients take U+0085 or U+2028 for ends of lines."""
    body = {"prompt": "a", "max_tokens": 8, "stream": True, "guided_regex": "\u2028\u0085"}
    response = client.post(ROUTES[0], json=body)
    assert response.content.isascii()
    assert "\\u2028" in response.text
    assert "\\u0085" in response.text


def test_token_ids_come_with_answers_and_in_the_place_of_names(client: TestClient) -> None:
    body = {"prompt": "ab", "max_tokens": 6, "temperature": 0, "return_token_ids": True}
    named = {"logprobs": 2, "return_tokens_as_token_ids": True}
    (choice,) = client.post("/v1/completions", json=body | named).json()["choices"]
    assert bytes(choice["token_ids"]).decode(errors="replace") == choice["text"]
    assert choice["logprobs"]["tokens"] == [f"token_id:{each}" for each in choice["token_ids"]]
    assert all(len(each) == 2 for each in choice["logprobs"]["top_logprobs"])
    streamed = client.post("/v1/completions", json=body | {"stream": True}).text
    chunks = [
        json.loads(line.removeprefix("data: "))
        for line in streamed.splitlines()
        if line.startswith("data: {")
    ]
    ids = [token for chunk in chunks for token in chunk["choices"][0]["token_ids"]]
    assert ids == choice["token_ids"]
    (plain,) = client.post("/v1/completions", json={"prompt": "ab"}).json()["choices"]
    assert "token_ids" not in plain
