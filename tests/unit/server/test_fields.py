"""Fields that change what is asked are honoured, or refused by their path: none is ignored."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the server extra is not installed")

from fastapi.testclient import TestClient

from outrider import SamplingParams, SpeculativeDecoder
from outrider.server.fields import IGNORED
from tests.support.alphabet import END, alphabet
from tests.support.families import CONTEXT
from tests.support.scripted import scripted
from tests.support.server import toy_decoder, toy_server

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
SAID = [{"role": "user", "content": "abc"}]
SHORT = {"max_tokens": 4, "temperature": 0}


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with toy_server() as server:
        yield TestClient(server.app, raise_server_exceptions=False)


def complete(client: TestClient, **body: Any) -> Any:
    return client.post(COMPLETIONS, json={"prompt": "abc", **SHORT, **body})


def chat(client: TestClient, **body: Any) -> Any:
    return client.post(CHAT, json={"messages": SAID, **SHORT, **body})


def refused(response: Any) -> tuple[str, str]:
    """The field and the message of what is refused."""
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    return error["param"], error["message"]


def text_of(response: Any) -> str:
    assert response.status_code == 200, response.text
    (choice,) = response.json()["choices"]
    found: str = choice["text"] if "text" in choice else choice["message"]["content"]
    return found


UNKNOWN: dict[str, Any] = {
    "max_new_tokens": 8,
    "grammar": "root ::= [a-z]",
    "regex": "a+",
    "json_schema": {"type": "object"},
    "prompt_logprobs": 2,
    "truncate_prompt_tokens": 3,
    "reasoning_effort": "low",
    "tool_choice": "required",
    "skip_special_tokens": False,
    "length_penalty": 2.0,
    "chat_template": "x",
    "anything": 0,
}


@pytest.mark.parametrize("route", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("name", UNKNOWN)
def test_a_field_that_is_not_served_is_refused_by_its_name(
    name: str, route: str, client: TestClient
) -> None:
    body = {"prompt": "a"} if route == COMPLETIONS else {"messages": SAID}
    param, message = refused(client.post(route, json=body | {name: UNKNOWN[name]}))
    assert param == name
    assert message.startswith(f"{name}=")
    assert client.post(route, json=body | {name: None, **SHORT}).status_code == 200


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "contents": "x"}]}, "messages[0].contents"),
        ({"messages": [*SAID, {"role": "user", "content": 3}]}, "messages[1].content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": ""}]}]},
            "messages[0].content[0].type",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "", "x": 1}]}]},
            "messages[0].content[0].x",
        ),
        ({"messages": [*SAID, {"role": "assistant", "prefix": True}]}, "messages[1].prefix"),
        ({"stream_options": {"include": True}}, "stream_options.include"),
        ({"prediction": {"type": "content", "content": "a", "x": 1}}, "prediction.x"),
        ({"structured_outputs": {"regex": "a", "whitespace_pattern": " "}},
         "structured_outputs.whitespace_pattern"),
        (
            {"messages": [{"role": "a", "tool_calls": [{"function": {"name": "f", "x": 1}}]}]},
            "messages[0].tool_calls[0].function.x",
        ),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"bad_words": ["a", [1, "b"]]}, "bad_words[1][1]"),
        ({"bad_words": [""]}, "bad_words"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"top_logprobs": 2, "logprobs": False}, "top_logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": None, "max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_tokens": 4, "max_completion_tokens": 5}, "max_tokens"),
        ({"seed": -2}, "seed"),
        ({"top_k": -2}, "top_k"),
        ({"add_generation_prompt": True, "continue_final_message": True}, "add_generation_prompt"),
        ({"chat_template_kwargs": {"add_generation_prompt": "no"}}, "add_generation_prompt"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"\ud800": False}}, "chat_template_kwargs"),
        ({"messages": [{"role": "user", "\ud800": "x"}]}, "messages[0]"),
        ({"\ud800": "x"}, "body"),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_wrong_within_a_field_is_named_by_its_path(
    body: dict[str, Any], param: str, client: TestClient
) -> None:
    data = json.dumps({"messages": SAID, **SHORT, **body})
    found, message = refused(client.post(CHAT, content=data))
    assert found == param
    assert param in message


def test_fields_that_change_no_answer_are_ignored(client: TestClient) -> None:
    guide = Path(__file__, "../../../../docs/guides/server.md").resolve().read_text()
    listed = guide.partition("Ignored are")[2].partition("\n\n")[0]
    assert set(re.findall("`(.*?)`", listed)) == set(IGNORED)
    given: dict[str, Any] = {name: {"a": "b"} for name in IGNORED}
    assert text_of(complete(client, **given)) == text_of(complete(client))


@pytest.mark.parametrize(
    "body",
    [
        {"seed": -1},
        {"top_k": -1},
        {"top_k": 0, "min_p": 0, "top_p": 1, "repetition_penalty": 1, "frequency_penalty": 0},
        {"stop": []},
        {"stop": ""},
        {"stop": ["", ""]},
        {"stop": None, "seed": None, "logit_bias": {}, "stop_token_ids": [], "bad_words": []},
        {"echo": False, "suffix": "", "best_of": 1, "logprobs": False, "tools": []},
        {"skip_special_tokens": True, "use_beam_search": False, "length_penalty": 1.0},
    ],
    ids=str,
)
def test_what_clients_send_for_none_is_none(body: dict[str, Any], client: TestClient) -> None:
    assert text_of(complete(client, **body)) == text_of(complete(client))


def test_zero_log_probabilities_are_not_none(client: TestClient) -> None:
    found = complete(client, logprobs=0).json()["choices"][0]["logprobs"]
    assert [list(top) for top in found["top_logprobs"]] == [[token] for token in found["tokens"]]


@pytest.mark.parametrize(
    ("route", "body"),
    [
        (CHAT, {"max_completion_tokens": 4096}),
        (CHAT, {"max_tokens": 4096}),
        (CHAT, {"max_tokens": -1}),
        (COMPLETIONS, {"max_tokens": 4096}),
        (COMPLETIONS, {"max_tokens": -1}),
    ],
    ids=str,
)
def test_tokens_beyond_the_context_are_decoded_to_its_end(
    route: str, body: dict[str, Any], client: TestClient
) -> None:
    asked = {"prompt": "abc"} if route == COMPLETIONS else {"messages": SAID}
    found = client.post(route, json=asked | body | {"temperature": 0}).json()
    assert found["choices"][0]["finish_reason"] == "length"
    assert found["usage"]["total_tokens"] == CONTEXT


def test_completions_near_the_end_of_the_context_have_what_room_there_is(
    client: TestClient,
) -> None:
    found = client.post(COMPLETIONS, json={"prompt": "a" * (CONTEXT - 2)}).json()
    assert found["usage"]["completion_tokens"] == 2


def test_sixteen_stop_strings_are_taken(client: TestClient) -> None:
    stops = [f"never {i}" for i in range(16)]
    assert text_of(complete(client, stop=stops)) == text_of(complete(client))
    assert "16" in refused(complete(client, stop=[*stops, "x"]))[1]


def test_an_empty_stop_string_is_none_beside_others(client: TestClient) -> None:
    stop = text_of(complete(client))[2]
    cut = text_of(complete(client, stop=stop))
    assert cut != text_of(complete(client))
    assert text_of(complete(client, stop=["", stop])) == cut


def test_forbidden_and_allowed_tokens_and_kept_stop_strings_are_the_librarys(
    client: TestClient,
) -> None:
    asked = {"seed": 3, "temperature": 1.0, "max_tokens": 20}
    allowed = [*range(60, 70)]
    found = text_of(complete(client, **asked, allowed_token_ids=allowed))
    assert set(found.encode()) <= set(allowed)
    banned = complete(client, **asked, allowed_token_ids=allowed, bad_words=["<", [61]])
    assert not set(text_of(banned)) & {"<", "="}
    stop = found[4:6]
    kept = complete(
        client, **asked, allowed_token_ids=allowed, stop=stop, include_stop_str_in_output=True
    )
    end = found.index(stop) + len(stop)
    assert text_of(kept) == found[:end]
    params = SamplingParams(**asked, allowed_token_ids=allowed, bad_words=((61,), (60,), (32, 60)))
    assert toy_decoder().generate("abc", params).text == text_of(banned)


S = {"type": "array", "items": {"const": 7}, "minItems": 2, "maxItems": 2}
HELD: list[dict[str, Any]] = [
    {"type": "json_object", "schema": S},
    {"type": "json_object", "value": S},
    {"type": "json_object", "json_schema": S},
    {"type": "json_schema", "json_schema": S},
    {"type": "json_schema", "schema": S},
    {"type": "json_schema", "json_schema": {"schema": S}},
    {"type": "json_schema", "json_schema": {"name": "x", "schema": S, "strict": True}},
    {"type": "json_schema", "json_schema": {"name": "x", "schema": S, "description": "an x"}},
    {"type": "json_schema", "name": "x", "schema": S, "strict": True},
]


@pytest.mark.parametrize("form", HELD, ids=str)
def test_a_schema_is_held_to_wherever_it_is(form: dict[str, Any], client: TestClient) -> None:
    found = text_of(complete(client, response_format=form, max_tokens=120, temperature=1, seed=2))
    assert json.loads(found) == [7, 7]


def test_a_schema_without_a_wrapper_is_taken_as_it_is(client: TestClient) -> None:
    form = {"type": "json_schema", "json_schema": {"const": None}}
    assert json.loads(text_of(complete(client, response_format=form, max_tokens=9))) is None


@pytest.mark.parametrize(
    ("form", "param"),
    [
        ({"type": "json_schema"}, "json_schema"),
        *(
            ({"type": "json_schema", "json_schema": wrong}, f"json_schema.{name}")
            for wrong, name in (
                ({}, "schema"),
                ({"name": "x"}, "schema"),
                ({"name": "x", "schema": None}, "schema"),
                ({"name": "x", **S}, "schema"),
                ({"name": "x", "schema": S, "y": 1}, "y"),
                ({"name": "x", "schema": "S"}, "schema"),
                ({"schema": S, "strict": "yes"}, "strict"),
                ({"words": S}, "schema"),
            )
        ),
        ({"type": "json_schema", "json_schema": {"schema": S}, "schema": S}, "schema"),
        ({"type": "json_object", "schema": S, "value": S}, "value"),
        ({"type": "json_object", "schema": "S"}, "schema"),
        ({"type": "json_object", "scheme": S}, "scheme"),
        ({"type": "text", "schema": S}, "schema"),
        ({"type": "regex", "value": "a"}, "type"),
        ({"schema": S}, "type"),
    ],
    ids=str,
)
def test_a_schema_that_is_not_clear_is_refused(
    form: dict[str, Any], param: str, client: TestClient
) -> None:
    found, message = refused(complete(client, response_format=form))
    assert found == f"response_format.{param}"
    assert found in message


IMPOSSIBLE: list[tuple[dict[str, Any], str]] = [
    ({"guided_regex": "abc", "allowed_token_ids": [97, 98]}, "allowed_token_ids"),
    ({"guided_regex": "(abc)+", "bad_words": ["b"]}, "bad_words"),
    ({"guided_choice": ["abc", "xyz"], "bad_words": ["b", [121]], "n": 2}, "bad_words"),
    ({"guided_json": {"type": "object"}, "allowed_token_ids": [123]}, "allowed_token_ids"),
    ({"guided_grammar": 'start: "a" "b"', "bad_words": ["ab"]}, "bad_words"),
    ({"structured_outputs": {"regex": "ab"}, "bad_words": ["b"]}, "bad_words"),
    ({"response_format": {"type": "json_object"}, "bad_words": ["{"]}, "bad_words"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("body", "param"), IMPOSSIBLE, ids=str)
def test_a_form_that_other_fields_leave_no_text_is_refused_before_it_is_decoded(
    body: dict[str, Any], param: str, stream: bool, client: TestClient
) -> None:
    found, message = refused(complete(client, **body, max_tokens=20, stream=stream))
    form = next(iter(body))
    inner = f"{form}.regex" if form == "structured_outputs" else form
    assert (found, message.endswith(f"some that leave {inner} a text")) == (param, True)


def test_a_form_that_leads_nowhere_is_named_as_it_was_asked(client: TestClient) -> None:
    body = {"structured_outputs": {"grammar": 'start: "a" /[ab&&[^ab]]/'}}
    param, message = refused(complete(client, **body))
    assert param == "structured_outputs.grammar"
    assert message.startswith("no token could follow: structured_outputs.grammar='start")
    data = complete(client, **body, stream=True).text.strip().split("\n\n")[-2]
    assert json.loads(data.removeprefix("data: "))["error"]["message"] == message


FORMS: list[tuple[dict[str, Any], str, str]] = [
    ({"structured_outputs": {}}, "structured_outputs", "one of json, json_object, regex"),
    ({"structured_outputs": {"json_object": False}}, "structured_outputs", "one of json"),
    (
        {"structured_outputs": {"regex": "a", "choice": ["b"]}},
        "structured_outputs.choice",
        "none beside structured_outputs.regex",
    ),
    (
        {"structured_outputs": {"json": {}, "json_object": True}},
        "structured_outputs.json_object",
        "none beside structured_outputs.json",
    ),
    ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice", "beside guided_regex"),
    (
        {"guided_regex": "a", "response_format": {"type": "json_object"}},
        "response_format",
        "none beside guided_regex",
    ),
]


@pytest.mark.parametrize(("body", "param", "said"), FORMS, ids=str)
def test_one_form_is_asked_for(
    body: dict[str, Any], param: str, said: str, client: TestClient
) -> None:
    found, message = refused(complete(client, **body))
    assert found == param
    assert said in message
    assert "structured_output " not in message


def test_plain_json_and_text_are_as_they_were(client: TestClient) -> None:
    found = text_of(complete(client, response_format={"type": "text"}))
    assert found == text_of(complete(client))
    form = {"type": "json_object"}
    body = {"response_format": form, "max_tokens": 3, "allowed_token_ids": [123, 125]}
    assert text_of(complete(client, **body)) == "{}"


def test_a_stop_string_that_is_a_special_token_is_found() -> None:
    tokenizer = alphabet(["a", "b", "c"])
    decoder = SpeculativeDecoder(scripted([0, 1, 3, 2], 4), tokenizer=tokenizer)
    with toy_server(decoder) as server:
        client = TestClient(server.app)
        body = {"prompt": "c", "max_tokens": 4, "ignore_eos": True}
        found = client.post(COMPLETIONS, json=body | {"stop": [END]}).json()
        assert found["choices"][0]["text"] == "ab"
        assert found["choices"][0]["finish_reason"] == "stop"
        assert found["usage"]["completion_tokens"] == 3
        param, message = refused(client.post(COMPLETIONS, json=body | {"stop": [f"b{END}"]}))
        assert param == "stop"
        assert f"the special token '{END}' alone" in message
