"""What `load` is given is checked before anything is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from outrider import load
from outrider.errors import InvalidConfigError, ModelError


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"target": None}, "target=None .*a path or a hub id"),
        ({"target": 5}, "target=5 .*a path or a hub id"),
        ({"target": ""}, "target='' .*a path or a hub id"),
        ({"target": "\ud800"}, "target=.*text that UTF-8 can write"),
        ({"draft": []}, r"draft=\[\] .*a path or a hub id"),
        ({"draft": ""}, "draft='' .*a path or a hub id"),
        ({"device": []}, r"device=\[\] .*a device torch can use"),
        ({"device": "tpu9"}, "device='tpu9'"),
        ({"dtype": "int8"}, "dtype='int8'"),
        ({"dtype": None}, "dtype=None"),
        ({"max_sequences": 0}, "max_sequences=0"),
        ({"max_sequences": "8"}, "max_sequences='8'"),
    ],
    ids=str,
)
def test_arguments_of_the_wrong_type_are_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfigError, match=message):
        load(**given)


def test_the_demo_pair_comes_with_its_tokenizer() -> None:
    pair = load("demo")
    assert pair.tokenizer.decode(pair.tokenizer.encode("import os")) == "import os"
    assert pair.target.vocab_size == len(pair.tokenizer)


def test_what_is_not_there_is_refused_before_the_hub_is_asked(tmp_path: Path) -> None:
    missing = tmp_path / "no" / "model"
    with pytest.raises(ModelError, match=f"there is no model at '{missing}'"):
        load(missing)
    for path in ("./nosuch", "nosuch/", "a\\nosuch", Path("nosuch")):
        with pytest.raises(ModelError, match=r"there is no model at '.*nosuch/?'"):
            load(path)
    for path in ("a" * 5000, "/" + "a" * 5000, "a\0b"):
        with pytest.raises(ModelError, match="cannot be a path"):
            load(path)
        with pytest.raises(ModelError, match="cannot be a path"):
            load("demo", path)
    file = tmp_path / "model.bin"
    file.touch()
    with pytest.raises(ModelError, match="is a file"):
        load(file)
    with pytest.raises(ModelError, match=r"has no config\.json"):
        load(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"cannot load the tokenizer of"):
        load(tmp_path)
