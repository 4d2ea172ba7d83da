"""OpenAI's own client and LangChain's talk to the server over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from time import sleep
from typing import Any, Literal

import pytest

pytest.importorskip("openai", reason="openai is not installed")
pytest.importorskip("fastapi", reason="the server extra is not installed")

import httpx
import openai
from pydantic import BaseModel

from outrider import SamplingParams
from tests.support.server import Held, listening, toy_decoder, toy_server

CHAT: list[Any] = [{"role": "user", "content": "abc"}]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with toy_server() as server, listening(server.app) as url:
        yield f"{url}/v1"


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[Any]:
    with openai.OpenAI(base_url=address, api_key="none", max_retries=0) as made:
        yield made


def test_completions_and_streams(client: Any) -> None:
    expected = toy_decoder().generate("abc", SamplingParams(max_tokens=20, seed=4)).text
    asked = {"model": "toy", "prompt": "abc", "max_tokens": 20, "seed": 4}
    found = client.completions.create(**asked)
    assert found.choices[0].text == expected
    assert found.usage.completion_tokens == 20
    parts = list(client.completions.create(**asked, stream=True))
    assert "".join(part.choices[0].text for part in parts) == expected
    assert parts[-1].choices[0].finish_reason == "length"


def test_chats_and_their_streams(client: Any) -> None:
    expected = toy_decoder().generate("uabca", SamplingParams(max_tokens=20, seed=4)).text
    asked = {"model": "toy", "messages": CHAT, "max_tokens": 20, "seed": 4}
    found = client.chat.completions.create(**asked, logprobs=True, top_logprobs=2)
    assert found.choices[0].message.content == expected
    assert len(found.choices[0].logprobs.content) == 20
    form = {"guided_regex": "[a-z]{12}"}
    with client.chat.completions.stream(
        **asked, stream_options={"include_usage": True}, extra_body=form
    ) as stream:
        text = "".join(event.delta for event in stream if event.type == "content.delta")
        final = stream.get_final_completion()
    assert text == final.choices[0].message.content
    assert (len(text), final.usage.completion_tokens) == (12, 12)


class Answer(BaseModel):
    """A form."""

    verdict: Literal["yes", "no"]


def test_structured_parsing(client: Any) -> None:
    found = client.chat.completions.parse(
        model="toy", messages=CHAT, response_format=Answer, max_tokens=120, temperature=0
    )
    assert found.choices[0].message.parsed.verdict in ("yes", "no")


def test_extensions_and_predictions_are_passed_on(client: Any) -> None:
    found = client.chat.completions.create(
        model="toy",
        messages=CHAT,
        max_tokens=8,
        prediction={"type": "content", "content": "abcabc"},
        extra_body={"top_k": 1, "speculation_metrics": "summary"},
    )
    assert found.usage.completion_tokens_details.accepted_prediction_tokens >= 0
    assert found.metrics["speculative_decoding"]["num_spec_steps"] > 0


def test_errors_are_the_clients_own(client: Any, address: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="toy", prompt="abc", temperature=-1)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="other", prompt="abc")
    assert [model.id for model in client.models.list()] == ["toy"]
    assert client.models.retrieve("toy").id == "toy"


def test_a_stream_that_is_left_frees_its_room(client: Any, address: str) -> None:
    asked = {"model": "toy", "prompt": "abc", "max_tokens": 150, "stream": True}
    for _ in range(12):
        stream = client.completions.create(**asked, extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
    found = client.completions.create(model="toy", prompt="abc", max_tokens=2)
    assert found.usage.completion_tokens == 2


def test_comments_of_a_stream_that_waits_are_skipped() -> None:
    model = Held()
    asked = {"model": "toy", "prompt": "abc", "max_tokens": 12, "seed": 4, "stream": True}
    with (
        toy_server(toy_decoder(target=model), silence_s=0.005) as server,
        listening(server.app) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        try:
            options = {"include_usage": True, "continuous_usage_stats": True}
            stream = client.completions.create(**asked, stream_options=options)
            sleep(0.05)
        finally:
            model.go.set()
        parts = list(stream)
    expected = toy_decoder().generate("abc", SamplingParams(max_tokens=12, seed=4)).text
    assert "".join(part.choices[0].text for part in parts[:-1]) == expected
    assert parts[-2].usage.completion_tokens == parts[-1].usage.completion_tokens


def test_events_have_the_form_of_server_sent_events(address: str) -> None:
    body = {"prompt": "abc", "max_tokens": 5, "stream": True}
    with httpx.stream("POST", f"{address}/completions", json=body) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    assert json.loads(lines[0].removeprefix("data: "))["object"] == "text_completion"


def test_langchain(address: str) -> None:
    langchain = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")
    model = langchain.ChatOpenAI(
        base_url=address, api_key="none", model="toy", max_tokens=12, temperature=0
    )
    expected = toy_decoder().generate("uabca", SamplingParams(max_tokens=12, temperature=0)).text
    assert model.invoke("abc").content == expected
    assert "".join(chunk.content for chunk in model.stream("abc")) == expected
