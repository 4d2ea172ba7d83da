"""`outrider demo`: two lanes on one clock, a table, and an honest verdict."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from outrider.cli.race import Comparison, Side
from tests.support.command import PROMPT, Capture, document, error_of, printed


@pytest.fixture
def base(target: str, draft: str) -> tuple[str, ...]:
    return ("demo", "-p", PROMPT, "--target", target, "--draft", draft, "-m", "6", "-k", "2")


def side(seconds: float, tokens: tuple[int, ...] = (1, 2)) -> Side:
    metrics: Any = SimpleNamespace(lossy=False)
    return Side((tokens,), seconds, metrics)


def test_json_has_both_sides_at_every_temperature(capsys: Capture, base: tuple[str, ...]) -> None:
    found = document(capsys, *base, "--depth", "fixed")
    assert [result["temperature"] for result in found["results"]] == [0.0, 0.8]
    assert found["prompts"] == [PROMPT]
    first = found["results"][0]
    assert first["identical"] == first["prompts"] == 1
    assert first["plain"]["token_ids"] == first["speculative"]["token_ids"]
    for name in ("plain", "speculative"):
        assert first[name]["completion_tokens"] == 6
        assert first[name]["tokens_per_s"] > 0
    assert first["plain"]["speculation"]["drafted"] == 0
    assert first["speculative"]["speculation"]["drafted"] > 0
    assert found["config"]["speculation"]["num_speculative_tokens"] == 2


def test_the_screen_ends_with_the_speedup_and_whether_texts_are_equal(
    capsys: Capture, base: tuple[str, ...]
) -> None:
    lines = printed(capsys, *base, "--temp", "0").splitlines()
    assert max(map(len, lines)) <= 100
    assert re.search(r"\dx as fast at temperature 0", lines[-1])
    text = "\n".join(lines)
    assert "texts equal with and without speculation, 1 of 1 prompts" in text
    assert "plain" in text
    assert "speculative" in text
    assert "accepted draft" in text
    assert "⟨correction⟩" in text
    assert "«bonus»" in text
    assert "\x1b" not in text


def test_colours_take_the_place_of_brackets(capsys: Capture, base: tuple[str, ...]) -> None:
    text = printed(capsys, *base, "--temp", "0", "--color", "always")
    assert "\x1b[" in text
    assert "⟨" not in text


@pytest.mark.parametrize("flags", [("--method", "none"), ("-k", "0"), ("--method", "prediction")])
def test_there_must_be_something_to_compare(capsys: Capture, flags: tuple[str, ...]) -> None:
    assert flags[0] in error_of(capsys, "demo", "-p", PROMPT, *flags)


@pytest.mark.parametrize(
    ("seconds", "verdict"),
    [
        (0.5, "2.00x as fast at temperature 0"),
        (1.01, "0.99x as fast at temperature 0 (no difference)"),
        (
            2.0,
            "0.50x as fast at temperature 0 (slower: use --method none)",
        ),
    ],
)
def test_the_verdict_is_honest(seconds: float, verdict: str) -> None:
    assert Comparison(0.0, side(1.0), side(seconds)).verdict() == verdict


def test_texts_that_differ_are_said_to() -> None:
    said = Comparison(0.0, side(1.0), side(1.0, (1, 3))).sameness()
    assert said.startswith("temperature 0: texts equal for 0 of 1 prompts")
    sampled = Comparison(0.8, side(1.0), side(1.0, (1, 3))).sameness()
    assert "different draws from the same distribution" in sampled
