"""`outrider demo`: two lanes on one clock, a table, and an honest verdict."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outrider.bench.records import Candidate, Measurement
from outrider.cli import main
from outrider.cli.race_screen import sameness
from outrider.engine.trace import read_trace
from tests.support.command import PROMPT, Capture, document, error_of, printed


@pytest.fixture
def base(target: str, draft: str) -> tuple[str, ...]:
    return ("demo", "-p", PROMPT, "--target", target, "--draft", draft, "-m", "6", "-k", "2")


def test_json_has_both_sides_at_every_temperature(capsys: Capture, base: tuple[str, ...]) -> None:
    found = document(capsys, *base, "--depth", "fixed")
    assert [result["temperature"] for result in found["results"]] == [0.0, 0.8]
    assert found["prompts"] == [PROMPT]
    first = found["results"][0]
    assert first["identical"] == first["prompts"] == 1
    for name in ("plain", "speculative"):
        assert first[name]["tokens"] == [6]
        assert first[name]["tokens_per_s"] > 0
    assert first["plain"]["metrics"]["drafted"] == 0
    assert first["speculative"]["metrics"]["drafted"] > 0
    assert found["config"]["speculation"]["num_speculative_tokens"] == 2


def test_a_trace_has_the_rounds_that_were_counted(
    capsys: Capture, base: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "trace.jsonl"
    found = document(capsys, *base, "--temp", "0", "--trace", str(path))
    rounds = found["results"][0]["speculative"]["metrics"]["rounds"]
    assert len(read_trace(path).records) == rounds


def test_the_screen_ends_with_the_speedup_and_whether_texts_are_equal(
    capsys: Capture, base: tuple[str, ...]
) -> None:
    lines = printed(capsys, *base, "--temp", "0").splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[-1] == "temperature 0: 1 of 1 texts equal with and without speculation"
    text = "\n".join(lines)
    assert re.search(r"\dx as fast as plain decoding", " ".join(text.split()))
    assert "plain" in text
    assert "speculative" in text
    assert "accepted draft" in text
    assert "⟨correction⟩" in text
    assert "«bonus»" in text
    assert "\x1b" not in text


def test_colours_take_the_place_of_brackets(capsys: Capture, base: tuple[str, ...]) -> None:
    assert main([*base, "--temp", "0", "--color", "always"]) == 0
    captured = capsys.readouterr()
    assert "\x1b[3" in captured.out
    assert "⟨" not in captured.out
    # Nothing is drawn anew, and the log has a line.
    assert "\x1b[2K" not in captured.out
    assert captured.out.count("tokens/s ─") == 2
    assert captured.err == "outrider: racing: demo, temperature 0 (0 of 1 done)\n"


@pytest.mark.parametrize("flags", [("--method", "none"), ("-k", "0"), ("--method", "prediction")])
def test_there_must_be_something_to_compare(capsys: Capture, flags: tuple[str, ...]) -> None:
    assert flags[0] in error_of(capsys, "demo", "-p", PROMPT, *flags)


LOSSY = Candidate("ngram", "typical")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"identical": 1}, "temperature 0: 1 of 2 texts equal"),
        ({"temperature": 0.8}, "different draws from the same distribution"),
        (
            {"temperature": 0.8, "candidate": Candidate("ngram", "typical")},
            "of another distribution",
        ),
    ],
)
def test_it_is_said_whether_texts_are_equal(changes: dict[str, Any], said: str) -> None:
    seconds = (1.0, 1.0)
    found = Measurement(Candidate("ngram"), "demo", 0.0, 1, seconds, (4, 4), None)
    assert said in sameness(replace(found, **changes))
