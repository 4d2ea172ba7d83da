"""What `load` is given is checked before anything is loaded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from outrider import load
from outrider.errors import InvalidConfigError, ModelError
from outrider.runtimes.loading import LoadOptions, load_model
from tests.support.families import random_model


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
        ({"runtime": "onnx"}, "runtime='onnx' .*auto.*llama_cpp"),
        (
            {"runtime": "llama_cpp"},
            "runtime='llama_cpp' .*llama.cpp takes files such as model.gguf",
        ),
        ({"runtime": "openvino", "dtype": "float64"}, "runtime='openvino' .*transformers"),
        ({"weights": "int2"}, "weights='int2'"),
        ({"weights": "int8"}, "weights='int8' .*runtime='openvino' .* beside it"),
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


def test_a_model_runs_on_what_suits_it(caplog: pytest.LogCaptureFixture) -> None:
    pair = load("demo")
    assert (pair.target.name, pair.target.precision) == ("openvino", "float32")
    assert not caplog.text
    assert load("demo", dtype="float64").target.name == "transformers"
    assert load("demo", runtime="transformers").target.name == "transformers"


@pytest.mark.slow
def test_a_model_that_does_not_convert_runs_on_transformers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    random_model("gpt_oss").float().save_pretrained(tmp_path)
    auto = LoadOptions("auto", torch.device("cpu"), "float32", None, 2)
    model = load_model("target", str(tmp_path), auto)
    assert (model.name, model.max_sequences) == ("transformers", 2)
    (warning,) = caplog.messages
    assert f"{tmp_path} runs on transformers: GptOssForCausalLM cannot be converted" in warning
    with pytest.raises(ModelError, match="cannot be converted to OpenVINO"):
        load_model("target", str(tmp_path), replace(auto, runtime="openvino"))


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
    (tmp_path / "config.json").write_text('{"model_type": "qwen3_next"}')
    with pytest.raises(ModelError, match=r"it has no token of a text; expected a folder with tok"):
        load(tmp_path)
