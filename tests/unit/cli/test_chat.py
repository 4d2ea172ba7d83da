"""`outrider chat`: a conversation, its commands, and what it refuses."""

from __future__ import annotations

import io
import sys

import pytest

from outrider import SamplingParams
from outrider.cli.chat import converse
from tests.support.command import Capture, error_of
from tests.support.server import toy_decoder

PARAMS = SamplingParams(max_tokens=12, temperature=0)


def talked(said: list[str], monkeypatch: pytest.MonkeyPatch, params: SamplingParams) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in said)))
    converse(toy_decoder(), params, "abc", colors=False)


def test_an_answer_follows_the_whole_conversation(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = toy_decoder()
    first = decoder.generate("sabcuonea", PARAMS).text
    second = decoder.generate(f"sabcuonea{first}utwoa", PARAMS).text
    talked(["one", "two", "/stats", "", "/other", "/exit", "never"], monkeypatch, PARAMS)
    captured = capsys.readouterr()
    assert captured.out == f"{first}\n{second}\n"
    assert "24 tokens" in captured.err
    assert "commands are /stats, /new and /exit" in captured.err


def test_a_new_conversation_forgets(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = toy_decoder().generate("sabconea".replace("con", "cuon"), PARAMS).text
    talked(["one", "/new", "one"], monkeypatch, PARAMS)
    assert capsys.readouterr().out == f"{expected}\n{expected}\n"


def test_a_conversation_that_fills_the_context_says_so(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    talked(["x" * 170, "one"], monkeypatch, PARAMS)
    captured = capsys.readouterr()
    assert "/new begins anew" in captured.err
    assert captured.out == f"{toy_decoder().generate('sabcuonea', PARAMS).text}\n"


def test_an_answer_takes_no_more_than_the_context_has_left(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    talked(["x" * 100], monkeypatch, SamplingParams(max_tokens=500, temperature=0, ignore_eos=True))
    assert capsys.readouterr().err == ""


def test_a_model_is_asked_for(capsys: Capture) -> None:
    line = error_of(capsys, "chat")
    assert "the demo pair has no chat template" in line
    assert "outrider chat MODEL" in line


def test_a_model_without_a_template_is_refused(capsys: Capture, target: str) -> None:
    line = error_of(capsys, "chat", target)
    assert "a model with a chat template" in line
