"""`outrider inspect`: a head with mistakes, each of which is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from outrider import Pair, TransformersModel
from outrider.cli import main
from outrider.drafters.heads.checkpoint import read_config, read_tensors
from outrider.drafters.heads.inspect import measured
from outrider.drafters.heads.loading import misfits
from outrider.errors import ModelError
from tests.support.bench import Characters
from tests.support.families import random_model
from tests.support.heads import head_checkpoint, trained


def changed(folder: Path, **fields: Any) -> Path:
    given = json.loads((folder / "config.json").read_text()) | fields
    (folder / "config.json").write_text(json.dumps(given))
    return folder


def problems(folder: Path, model: Any = None) -> list[str]:
    return list(misfits(read_config(folder), read_tensors(folder), model))


@pytest.fixture(scope="module")
def target() -> TransformersModel:
    return TransformersModel(random_model("llama", num_hidden_layers=4), max_sequences=2)


def test_five_mistakes_of_one_checkpoint_are_named(
    target: TransformersModel, tmp_path: Path
) -> None:
    folder = head_checkpoint(tmp_path, target.hf_model, reduced=23)
    file = folder / "model.safetensors"
    found = load_file(file)
    found["d2t"] = found["t2d"].nonzero().flatten()
    del found["norm.weight"]
    found["extra.weight"] = torch.ones(2)
    save_file(found, file)
    changed(folder, eagle_aux_hidden_state_layer_ids=[1, 2, 9], target_hidden_size=64)
    said = "\n".join(problems(folder, target.hf_model))
    for mistake in (
        "d2t holds ids where offsets are expected",
        "norm.weight missing",
        "no place for extra.weight",
        "layer 9, and the target has 4 layers",
        "states of width 64, and the target's are 32 wide",
    ):
        assert mistake in said


def test_a_sound_checkpoint_has_no_problems(target: TransformersModel, tmp_path: Path) -> None:
    for kind in ("eagle3", "dspark"):
        folder = head_checkpoint(tmp_path / kind, target.hf_model, kind, reduced=23)
        assert problems(folder, target.hf_model) == []


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"norm_before_fc": True, "fc_norm": True}, "norm_before_fc and fc_norm are both set"),
        ({"draft_vocab_size": 23}, "draft_vocab_size is 23, and d2t is missing"),
    ],
)
def test_contradictions(
    fields: dict[str, Any], said: str, target: TransformersModel, tmp_path: Path
) -> None:
    folder = changed(head_checkpoint(tmp_path, target.hf_model), **fields)
    assert any(said in each for each in problems(folder))


def test_a_mask_token_outside_the_vocabulary(target: TransformersModel, tmp_path: Path) -> None:
    folder = head_checkpoint(tmp_path, target.hf_model, "dflash", mask_token_id=61)
    assert "mask_token_id 61 is no token of 61" in problems(folder)


@pytest.mark.parametrize(
    ("fields", "right"),
    [
        ({"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}, "states of layers 1, 2, 3"),
        ({"norm_before_residual": True}, "norm_before_residual false"),
    ],
)
def test_what_is_kept_finds_the_right_reading(
    fields: dict[str, Any], right: str, target: TransformersModel, tmp_path: Path
) -> None:
    folder = head_checkpoint(tmp_path, target.hf_model)
    texts = trained(folder, target.hf_model)
    sound = list(measured(folder, target, texts))
    assert max(sound, key=lambda each: sum(each.kept)) is sound[0]
    wrong = list(measured(changed(folder, **fields), target, texts))
    best = max(wrong, key=lambda each: sum(each.kept))
    assert best.said == right
    assert best.kept[0] == pytest.approx(sound[0].kept[0])
    assert best.kept[0] > wrong[0].kept[0] + 0.1


def test_texts_that_are_too_short(target: TransformersModel, tmp_path: Path) -> None:
    folder = head_checkpoint(tmp_path, target.hf_model)
    with pytest.raises(ModelError, match="no text has more than 6 tokens"):
        list(measured(folder, target, [[1, 2, 3]]))


def test_the_command(
    target: TransformersModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("outrider.load", lambda *_, **__: Pair(target, None, Characters()))
    folder = head_checkpoint(tmp_path / "head", target.hf_model)
    texts = trained(folder, target.hf_model)
    file = tmp_path / "texts.jsonl"
    file.write_text("\n".join(json.dumps({"prompt": text}) for text in texts))
    command = ["inspect", str(folder), "--target", "any", "--measure", str(file)]
    assert main(command) == 0
    printed = capsys.readouterr()
    assert "nothing looks wrong" in printed.out
    assert f"loading: {folder}" in printed.err
    changed(folder, eagle_aux_hidden_state_layer_ids=[0, 1, 2])
    assert main([*command, "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["problems"][0].startswith("the configuration is wrong: by states of layers 1, 2, 3")
    assert len(said["kept"]) > 2
    assert main(["inspect", str(tmp_path)]) == 2
    assert "has no config.json" in capsys.readouterr().err
    assert main(["inspect", str(tmp_path / "none")]) == 2
    assert "HEAD" in capsys.readouterr().err
    assert main(["inspect", str(folder), "--measure", str(file)]) == 2
    assert "expected --target MODEL beside it" in capsys.readouterr().err
