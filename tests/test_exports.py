"""What is found, in other engines' words, and in a file of our own."""

from __future__ import annotations

import json
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
from transformers import GenerationConfig

from outrider.bench.exports import SYSTEMS, Export, export
from outrider.bench.records import Contender
from outrider.cli import _parser, config_file
from outrider.errors import InvalidConfigError

K4 = Contender("outrider", "draft_model", "block", 4)
ADAPTIVE = Contender("outrider", "draft_model", "block")
TREE = Contender("outrider", "draft_model", "token", 2, (2, 2))
NGRAM = Contender("outrider", "ngram", "block", 3)
SUFFIX = Contender("outrider", "suffix", "block", 3)
HYBRID = Contender("outrider", "hybrid", "block", 5)


def exported(system: str, contender: Contender) -> Export:
    depth = contender.num_speculative_tokens or 6
    return export(system, contender, target="org/big", draft="org/small", depth=depth)


def flags(found: Export) -> dict[str, str]:
    words = shlex.split(found.text)
    first = next(place for place, word in enumerate(words) if word.startswith("--spec"))
    return dict(zip(words[first::2], words[first + 1 :: 2], strict=True))


def told(found: Export) -> str:
    return "\n".join(found.notes)


def test_vllm_takes_a_draft_model() -> None:
    found = exported("vllm", K4)
    assert found.settings == {
        "method": "draft_model",
        "model": "org/small",
        "num_speculative_tokens": 4,
        "draft_sample_method": "probabilistic",
        "rejection_sample_method": "block",
    }
    assert json.loads(flags(found)["--speculative-config"]) == found.settings
    assert shlex.split(found.text)[:3] == ["vllm", "serve", "org/big"]
    token = Contender("outrider", "draft_model", "token", 4)
    assert exported("vllm", token).settings["rejection_sample_method"] == "standard"


def test_vllm_looks_up() -> None:
    assert exported("vllm", NGRAM).settings == {
        "method": "ngram",
        "num_speculative_tokens": 3,
        "prompt_lookup_max": 5,
        "prompt_lookup_min": 1,
    }
    suffix = exported("vllm", SUFFIX)
    assert suffix.settings["method"] == "suffix"
    assert "start empty" in told(suffix)


def test_sglang_drafts_one_token_fewer_than_it_verifies() -> None:
    assert flags(exported("sglang", K4)) == {
        "--speculative-algorithm": "STANDALONE",
        "--speculative-draft-model-path": "org/small",
        "--speculative-num-steps": "4",
        "--speculative-eagle-topk": "1",
        "--speculative-num-draft-tokens": "5",
    }
    tree = exported("sglang", TREE)
    assert tree.settings["speculative-eagle-topk"] == 2
    assert tree.settings["speculative-num-draft-tokens"] == 7
    assert "shape does not carry over" in told(tree)
    assert "block" not in told(tree)
    assert exported("sglang", NGRAM).settings["speculative-algorithm"] == "NGRAM"


def test_llama_cpp() -> None:
    assert flags(exported("llama.cpp", K4)) == {
        "--spec-type": "draft-simple",
        "--spec-draft-model": "org/small.gguf",
        "--spec-draft-n-max": "4",
        "--spec-draft-n-min": "0",
        "--spec-draft-p-min": "0",
    }
    lookup = exported("llama.cpp", NGRAM)
    assert flags(lookup)["--spec-type"] == "ngram-simple"
    assert flags(lookup)["--spec-ngram-simple-size-m"] == "3"
    assert "GGUF" in told(lookup)


def test_transformers_knows_every_name() -> None:
    for contender in (K4, NGRAM):
        settings = exported("transformers", contender).settings
        made = GenerationConfig(**settings)
        assert {name: getattr(made, name) for name in settings} == settings
    assert exported("transformers", K4).settings["num_assistant_tokens"] == 4
    assert "org/small" in told(exported("transformers", K4))
    assert exported("transformers", NGRAM).settings["prompt_lookup_num_tokens"] == 3


@pytest.mark.parametrize("system", SYSTEMS)
def test_what_does_not_carry_over_is_said(system: str) -> None:
    adaptive = exported(system, ADAPTIVE)
    assert "adaptive depth does not carry over: k = 6" in told(adaptive)
    assert "6" in adaptive.text
    assert "hybrid drafter does not carry over" in told(exported(system, HYBRID))
    alone = export(system, HYBRID, target="org/big", draft="org/small", depth=2)
    assert "k = 2 is the best fixed depth predicted for the draft model, where 5" in told(alone)
    assert "is the best fixed depth" not in told(exported(system, HYBRID))
    assert "2" in alone.text
    assert "does not carry over" in told(exported(system, TREE))
    assert "block verification" in told(exported(system, K4))
    assert "measured with Outrider" in told(exported(system, K4))
    plain = exported(system, Contender("outrider", "none"))
    assert plain.settings == {}
    assert "do not speculate" in told(plain)


def test_paths_are_quoted() -> None:
    found = export("vllm", K4, target="/a b/t", draft="/a b/d", depth=1)
    assert shlex.split(found.text)[2] == "/a b/t"
    assert found.settings["model"] == "/a b/d"


def test_an_unknown_engine() -> None:
    with pytest.raises(InvalidConfigError, match="vllm, sglang"):
        exported("magic", K4)


def parsed(command: str, *args: str) -> dict[str, Any]:
    argv = [command, *args]
    return vars(_parser(argv).parse(argv))


def refused(capsys: Any, *args: str) -> str:
    with pytest.raises(SystemExit) as caught:
        parsed(*args)
    assert caught.value.code == 2
    error: str = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


@pytest.fixture
def tuned(tmp_path: Path) -> Path:
    path = tmp_path / "tuned.toml"
    settings = {
        "target": 'a "quoted" päth\\t',
        "method": "hybrid",
        "depth": "fixed",
        "verification": "token",
        "num-speculative-tokens": 2,
        "tree-shape": [2, 1],
    }
    config_file.write(path, config_file.written(settings, ["two\nlines"]).encode())
    return path


def test_a_file_comes_back_as_flags(tuned: Path) -> None:
    assert tuned.read_text().startswith("# two lines\n")
    assert tomllib.loads(tuned.read_text())["tree-shape"] == [2, 1]
    for command in ("generate", "demo"):
        found = parsed(command, "--config", str(tuned))
        assert found["target"] == 'a "quoted" päth\\t'
        assert found["method"] == "hybrid"
        assert found["depth"] == "fixed"
        assert found["verification"] == "token"
        assert found["num_speculative_tokens"] == 2
        assert found["tree_shape"] == (2, 1)


def test_the_command_line_overrides_the_file(tuned: Path) -> None:
    """Wherever it stands, and with a flag's own default as well."""
    before = parsed("generate", "--depth", "adaptive", "-k", "3", "--config", str(tuned))
    after = parsed("generate", "--config", str(tuned), "--depth", "adaptive", "-k", "3")
    for found in (before, after):
        assert found["depth"] == "adaptive"
        assert found["num_speculative_tokens"] == 3
        assert found["verification"] == "token"


def test_tune_takes_the_models_alone(tuned: Path) -> None:
    found = parsed("tune", "--config", str(tuned), "--batch", "2")
    assert found["target"] == 'a "quoted" päth\\t'
    assert found["method"] is None
    assert found["batch"] == 2


def test_flags_without_a_value(tmp_path: Path) -> None:
    path = tmp_path / "some.toml"
    path.write_text("json = true\ndebug = false\ntop_p = 0.5\n")
    found = parsed("generate", "--config", str(path))
    assert found["json"] is True
    assert found["debug"] is False
    assert found["top_p"] == 0.5


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("magic = 1\n", "unknown setting 'magic'"),
        ("num-speculative-tokens = -1\n", "integer >= 0"),
        ("method = ", "a TOML file"),
        ("[table]\nmethod = 'ngram'\n", "a text, a number"),
        ("method = []\n", "a text, a number"),
    ],
)
def test_bad_files(capsys: Any, tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "some.toml"
    path.write_text(text)
    assert expected in refused(capsys, "generate", "--config", str(path))


def test_no_file(capsys: Any, tmp_path: Path) -> None:
    assert "readable file" in refused(capsys, "demo", "--config", str(tmp_path / "none"))


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "some.toml"
    path.write_text("old")
    config_file.write(path, b"new\n")
    assert path.read_text() == "new\n"
    assert list(tmp_path.iterdir()) == [path]


def test_unwritable_places(tmp_path: Path) -> None:
    config_file.check_writable("--save", str(tmp_path / "new.toml"))
    for path in (tmp_path, tmp_path / "no" / "where.toml"):
        with pytest.raises(InvalidConfigError, match="--save"):
            config_file.check_writable("--save", str(path))
    assert list(tmp_path.iterdir()) == []
