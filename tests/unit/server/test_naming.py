"""A field that is missing or wrong is named by its whole path."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the server extra is not installed")

from fastapi.testclient import TestClient

USER = {"role": "user", "content": "a"}


MISSING: list[tuple[dict[str, Any], str]] = [
    ({}, "messages"),
    ({"messages": [{"content": "x"}]}, "messages[0].role"),
    ({"messages": [USER, USER, {"content": "x"}]}, "messages[2].role"),
    ({"messages": [{"content": 3}, {}]}, "messages[0].role"),
    (
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        "messages[0].content[0].text",
    ),
    (
        {"messages": [USER, {"role": "user", "content": [{"type": "text", "text": ""}, {}]}]},
        "messages[1].content[1].type",
    ),
    ({"messages": [USER], "prediction": {"type": "content"}}, "prediction.content"),
    (
        {"messages": [USER], "prediction": {"type": "content", "content": [{"type": "text"}]}},
        "prediction.content[0].text",
    ),
    ({"messages": [USER], "response_format": {}}, "response_format.type"),
]


@pytest.mark.parametrize(("body", "name"), MISSING)
def test_a_missing_field_is_named(body: dict[str, Any], name: str, client: TestClient) -> None:
    response = client.post("/v1/chat/completions", json=body)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, name)
    assert error["message"] == f"{name} is missing; expected a value"


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"messages": "a"}, "messages", "'a' is not allowed: expected a valid list"),
    ({"messages": ["a"]}, "messages[0]", "'a' is not allowed: expected a JSON object"),
    ({"messages": [{"role": 3, "content": "x"}]}, "messages[0].role", "=3 is not allowed"),
    ({"messages": [USER | {"content": 3}]}, "messages[0].content", "=3 is not allowed"),
    (
        {"messages": [USER | {"content": [{"type": "image_url", "image_url": {}}]}]},
        "messages[0].content[0].type",
        "expected 'text'",
    ),
    ({"messages": [USER | {"content": ["a"]}]}, "messages[0].content[0]", "a JSON object"),
    ({"messages": [USER], "stop": ["a", 3]}, "stop[1]", "=3 is not allowed"),
    ({"messages": [USER], "stop_token_ids": [1, "a"]}, "stop_token_ids[1]", "a valid integer"),
    ({"messages": [USER], "logit_bias": {"1": "a"}}, "logit_bias.1", "a valid number"),
    ({"messages": [USER], "temperature": "hot"}, "temperature", "expected a valid number"),
    ({"messages": [USER], "response_format": "json"}, "response_format", "a JSON object"),
    ({"messages": [USER], "response_format": {"type": "x"}}, "response_format.type", "'x'"),
    (
        {
            "messages": [USER],
            "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": 3}},
        },
        "response_format.json_schema.schema",
        "=3 is not allowed",
    ),
    ({"messages": []}, "messages", "expected at least 1 of them"),
    ({"messages": [USER], "stop": ["a"] * 17}, "stop", "expected at most 16 of them"),
    ({"messages": [USER], "logit_bias": {"a": 1}}, "logit_bias.a", "expected an integer"),
    ({"messages": [USER], "logprobs": True, "top_logprobs": 21}, "top_logprobs", "a number <= 20"),
    (
        {"messages": [{"role": "a", "tool_calls": [{"function": {"name": "f", "arguments": 3}}]}]},
        "messages[0].tool_calls[0].function.arguments",
        "expected a JSON object",
    ),
    (
        {
            "messages": [
                {"role": "a", "tool_calls": [{"function": {"name": "f", "arguments": "x"}}]}
            ]
        },
        "messages[0].tool_calls[0].function.arguments",
        "expected JSON text of an object, or an object",
    ),
    (
        {"messages": [USER | {"content": "a" * 900}]},
        "messages",
        "messages of 902 tokens cannot fit",
    ),
]


@pytest.mark.parametrize(("body", "name", "said"), WRONG, ids=range(len(WRONG)))
def test_a_wrong_field_is_named(
    body: dict[str, Any], name: str, said: str, client: TestClient
) -> None:
    response = client.post("/v1/chat/completions", json=body)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, name)
    assert said in error["message"]
    assert error["message"].startswith(name)


@pytest.mark.parametrize(
    ("prompt", "name"),
    [
        (3, "prompt"),
        ({"a": 1}, "prompt"),
        (["a", 3], "prompt[1]"),
        (["a", ""], "prompt[1]"),
        ([[97], []], "prompt[1]"),
        ([[97], [999]], "prompt[1]"),
        (["a", "b" * 999], "prompt[1]"),
        (["a", "\ud800"], "prompt[1]"),
        ([], "prompt"),
        ([999], "prompt"),
        ([1, "a"], "prompt[0]"),
        ([[1, 2], [3, "a"]], "prompt[1][1]"),
        ([None], "prompt[0]"),
    ],
)
def test_an_element_of_a_prompt_is_named(prompt: Any, name: str, client: TestClient) -> None:
    response = client.post("/v1/completions", content=json.dumps({"prompt": prompt}))
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, name)
    assert error["message"].startswith(name)


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ({"stop_token_ids": [1, 999]}, "stop_token_ids"),
        ({"logit_bias": {"999": 1}}, "logit_bias"),
        ({"allowed_token_ids": [999]}, "allowed_token_ids"),
        ({"bad_words": [[1, 999]]}, "bad_words"),
    ],
)
def test_a_field_with_a_token_outside_the_vocabulary_is_named(
    body: dict[str, Any], name: str, client: TestClient
) -> None:
    response = client.post("/v1/completions", json={"prompt": "a", **body})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, name)
    assert error["message"].startswith(f"{name} has token id 999")


@pytest.mark.parametrize(("key", "shown"), [("x" * 10_000, "xxx"), ("\u00e9", "\u00e9"), ("", "")])
def test_any_key_can_be_named(key: str, shown: str, client: TestClient) -> None:
    body = {"prompt": "a", "stream": True, "stream_options": {key: 1}}
    response = client.post("/v1/completions", content=json.dumps(body))
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith(f"stream_options.{shown}")
    assert len(response.content) < 1000
