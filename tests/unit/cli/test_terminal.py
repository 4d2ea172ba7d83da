"""What is shown of work that goes on: a bar on a terminal, a few lines in a log."""

from __future__ import annotations

import sys

import pytest
from rich.console import Console

from outrider.cli import terminal


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(terminal, "monotonic", lambda: now[0])
    return now


def test_a_log_gets_a_line_for_each_step_but_not_too_many(
    capsys: pytest.CaptureFixture[str], clock: list[float]
) -> None:
    with terminal.progress(terminal.messages(), "racing") as advance:
        for done, (what, seconds) in enumerate(
            [("a", 0), ("b", 1), ("b", 2), ("b", 9), ("c", 2), ("c", 19), ("c", 1)]
        ):
            clock[0] += seconds
            advance(done, 7, what)
    assert capsys.readouterr().err.splitlines() == [
        "outrider: racing: a (0 of 7 done)",
        "outrider: racing: b (2 of 7 done)",
        "outrider: racing: c (4 of 7 done)",
        "outrider: racing: c (6 of 7 done)",
    ]


def test_nothing_is_drawn_anew_in_a_log_even_in_colour(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert Console(stderr=True).is_terminal
    with terminal.progress(Console(stderr=True), "racing", logged=False) as advance:
        advance(0, 1, "a")
    with terminal.messages().status("loading"):
        pass
    assert capsys.readouterr().err == ""


def test_a_terminal_gets_a_bar(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with terminal.progress(terminal.messages(), "racing") as advance:
        advance(1, 2, "this one")
    said = capsys.readouterr().err
    assert "this one" in said
    assert "\x1b" in said
