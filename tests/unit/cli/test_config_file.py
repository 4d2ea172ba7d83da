"""Settings from a file or a JSON object; the command line overrides both."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from outrider.cli.tune import toml
from tests.support.command import PROMPT, Capture, document, error_of

SETTINGS = {"max-tokens": 7, "temp": 0, "depth": "fixed", "tree-shape": [2, 1], "ignore-eos": True}


@pytest.fixture
def base(target: str, draft: str) -> tuple[str, ...]:
    return ("generate", "-p", PROMPT, "--target", target, "--draft", draft)


@pytest.mark.parametrize("kind", ["toml", "yaml", "YAML"])
def test_a_file_sets_what_the_command_line_does_not(
    capsys: Capture, tmp_path: Path, base: tuple[str, ...], kind: str
) -> None:
    path = tmp_path / f"settings.{kind}"
    path.write_text(toml(SETTINGS) if kind == "toml" else json.dumps(SETTINGS))
    found = document(capsys, *base, "--config", str(path))["config"]
    assert found["sampling"]["max_tokens"] == 7
    assert found["sampling"]["temperature"] == 0
    assert found["sampling"]["ignore_eos"] is True
    assert found["speculation"]["tree_shape"] == [2, 1]
    assert found["speculation"]["depth"] == "fixed"
    found = document(capsys, *base, "--config", str(path), "-m", "3")["config"]
    assert (found["sampling"]["max_tokens"], found["sampling"]["temperature"]) == (3, 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("colour = 'red'", "colour"),
        ("max_tokens = 0", "--max-tokens 0 is not allowed: expected an integer >= 1"),
        ("max-tokens = 2.5", "2.5"),
        ("method = 'x'", '"x"'),
        ("max-tokens", "TOML"),
        ("top-p = 2", "--top-p 2.0 is not allowed: expected a number in (0, 1]"),
    ],
)
def test_a_bad_file_is_refused_as_a_bad_flag_is(
    capsys: Capture, tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(text)
    assert message in error_of(capsys, "generate", "-p", PROMPT, "--config", str(path))


def test_speculative_config_has_the_names_of_vllms(
    capsys: Capture, target: str, draft: str
) -> None:
    base = ("generate", "-p", PROMPT, "--target", target, "-m", "5")
    asked = {"method": "draft_model", "model": draft, "num_speculative_tokens": 3}
    given = ("--speculative-config", json.dumps(asked))
    config = document(capsys, *base, *given)["config"]
    assert (config["method"], config["draft"]) == ("draft_model", draft)
    assert config["speculation"]["num_speculative_tokens"] == 3
    config = document(capsys, *base, *given, "-k", "2")["config"]
    assert config["speculation"]["num_speculative_tokens"] == 2
    assert "tokens" in error_of(capsys, *base, "--speculative-config", '{"tokens": 3}')


def test_written_settings_are_read_back() -> None:
    settings = {"method": "hybrid", "tree-shape": [2, 1], "name": 'a "b" ü', "flag": True, "x": 0.5}
    assert tomllib.loads(toml(settings, ("a\ncomment",))) == settings
