"""A file of settings, as tune saves it and load reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

import outrider
from outrider import SpeculativeConfig, SuffixDrafter
from outrider.config.saved import read_saved
from outrider.errors import InvalidConfigError


def written(folder: Path, text: str) -> Path:
    path = folder / "tuned.toml"
    path.write_text(text)
    return path


def test_models_method_and_config_are_told_apart(tmp_path: Path) -> None:
    text = 'target = "a"\nmethod = "suffix"\ndepth = "fixed"\nnum-speculative-tokens = 3\n'
    models, method, config = read_saved(written(tmp_path, text))
    assert models == {"target": "a"}
    assert method == "suffix"
    assert config == SpeculativeConfig(depth="fixed", num_speculative_tokens=3)


def test_a_tree_is_a_list(tmp_path: Path) -> None:
    _, _, config = read_saved(written(tmp_path, "tree-shape = [2, 1]\n"))
    assert config.tree_shape == (2, 1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("temperature = 1\n", "temperature"),
        ("target = \n", "TOML"),
        ("depth = 'deep'\n", "depth"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InvalidConfigError, match=said):
        read_saved(written(tmp_path, text))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match="no such file"):
        read_saved(tmp_path / "none.toml")


@pytest.mark.integration
def test_load_takes_a_file(tmp_path: Path) -> None:
    text = 'target = "demo"\nmethod = "suffix"\ndepth = "adaptive"\nruntime = "transformers"\n'
    pair = outrider.load(config=written(tmp_path, text), max_sequences=1)
    assert pair.target.name == "transformers"
    assert pair.target.max_sequences == 1
    assert isinstance(pair.drafter, SuffixDrafter)
    assert pair.config == SpeculativeConfig()
