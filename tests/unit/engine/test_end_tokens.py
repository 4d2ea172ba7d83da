"""The token that ends a request is no part of its text, whether or not the tokenizer marks it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from fastapi.testclient import TestClient

from outrider import SamplingParams, SpeculativeConfig, SpeculativeDecoder, StructuredOutput
from outrider.runtimes.base import Capabilities
from outrider.runtimes.tabular import TabularModel, mock_pair
from tests.support.alphabet import alphabet
from tests.support.server import toy_server

TEXTS = (*"yesno[1]", "<|endoftext|>", "<|im_end|>", "\n")
EOS, OTHER, LINE = 8, 9, 10
V = len(TEXTS)


class Ending(TabularModel):
    """A model with two ends, neither of which its tokenizer marks as special."""

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, eos_token_ids=frozenset({EOS, OTHER}))


def decoder_of(**asked: Any) -> SpeculativeDecoder:
    target, draft = mock_pair(V, 2)
    tokenizer = alphabet(TEXTS, end=False)
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    config = SpeculativeConfig(depth="fixed", **asked)
    own = Ending(target.probabilities, V)
    return SpeculativeDecoder(own, draft, tokenizer=tokenizer, config=config)


ONE = {"const": [1], "x-guidance": {"whitespace_flexible": False}}
FORMS: list[tuple[StructuredOutput, list[str]]] = [
    (StructuredOutput(json_schema=ONE), ["[1]"]),
    (StructuredOutput(choice=("yes", "no")), ["yes", "no"]),
    (StructuredOutput(regex="no(yes)?"), ["no", "noyes"]),
    (StructuredOutput(grammar='start: "[" "1"? "]"'), ["[]", "[1]"]),
]
SHAPES: list[dict[str, Any]] = [{"num_speculative_tokens": 0}, {"num_speculative_tokens": 3}]


def texts_of(decoder: SpeculativeDecoder, params: SamplingParams) -> list[str]:
    """The texts of some choices, whole and streamed."""
    outputs = decoder.generate([0], params).choices
    joined = [""] * params.n
    for event in decoder.stream([0], params):
        joined[event.choice] += event.text or ""
    assert joined == [choice.text for choice in outputs]
    for choice in outputs:
        assert choice.finish_reason == "stop"
        assert choice.token_ids[-1] in {EOS, OTHER, *params.stop_token_ids}
    return joined


@pytest.mark.parametrize("asked", SHAPES, ids=str)
@pytest.mark.parametrize(("form", "language"), FORMS, ids=str)
def test_the_end_is_not_in_the_text_of_a_form(
    asked: dict[str, Any], form: StructuredOutput, language: list[str]
) -> None:
    params = SamplingParams(max_tokens=99, n=8, seed=1, structured_output=form)
    assert set(texts_of(decoder_of(**asked), params)) <= set(language)


@pytest.mark.parametrize("asked", SHAPES, ids=str)
@pytest.mark.parametrize(
    "more", [{}, {"stop_token_ids": (LINE,)}, {"stop": ("zz",)}, {"ignore_eos": True}], ids=str
)
def test_no_end_is_in_a_free_text(asked: dict[str, Any], more: dict[str, Any]) -> None:
    if more.get("ignore_eos"):
        more = {"ignore_eos": True, "stop_token_ids": (LINE,)}
    params = SamplingParams(max_tokens=999, n=8, seed=3, **more)
    texts = texts_of(decoder_of(**asked), params)
    ends = [] if more.get("ignore_eos") else [TEXTS[EOS], TEXTS[OTHER]]
    ends += [TEXTS[token] for token in params.stop_token_ids]
    assert not [text for text in texts if any(end in text for end in ends)]
    assert any(texts)
    if params.ignore_eos:
        assert any(TEXTS[EOS] in text for text in texts), "there it is text like any other"


def test_a_stop_string_that_the_end_completes_is_cut_as_ever() -> None:
    params = SamplingParams(max_tokens=999, n=16, seed=3, stop=("1<|",))  # As both ends begin.
    whole = texts_of(decoder_of(), replace(params, stop=()))
    cut = texts_of(decoder_of(), params)
    assert cut == [text.removesuffix("1") if text.endswith("1") else text for text in whole]


def test_a_text_that_does_not_end_by_itself_is_whole() -> None:
    output = decoder_of().generate([0], SamplingParams(max_tokens=2, ignore_eos=True, seed=1))
    assert output.text == "".join(TEXTS[token] for token in output.token_ids)


def test_the_server_answers_without_the_end() -> None:
    with toy_server(decoder_of()) as server:
        client = TestClient(server.app)
        body = {"max_tokens": 99, "seed": 1, "guided_json": ONE}
        found = client.post("/v1/completions", json={"prompt": "no", **body}).json()
        assert (found["choices"][0]["text"], found["choices"][0]["finish_reason"]) == (
            "[1]",
            "stop",
        )
        answer = client.post(
            "/v1/chat/completions",
            json={"messages": [{"role": "user", "content": "no"}], "stream": True, **body},
        )
        events = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
        chunks = [json.loads(event)["choices"][0] for event in events[:-1]]
        assert "".join(chunk["delta"].get("content", "") for chunk in chunks) == "[1]"
