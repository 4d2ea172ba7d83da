"""Conversions are found again without reading what was converted; never damaged ones."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from outrider.errors import ModelError
from outrider.runtimes import kept
from outrider.runtimes.loading import LoadOptions, load_model, load_tokenizer
from outrider.runtimes.openvino.model import OpenVinoModel
from tests.support.families import random_model
from tests.support.gguf_files import byte_level, gguf_model, write_gguf


@pytest.fixture(autouse=True)
def _caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def _notes(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "cache" / "outrider" / "digests").iterdir())


def test_a_file_that_looks_as_it_did_is_not_read_again(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"one")
    first = kept.fingerprint(file)
    (note,) = _notes(tmp_path)
    note.write_text("0" * len(note.read_text()))
    assert kept.fingerprint(file) != first  # by what was noted, not by the file


@pytest.mark.parametrize("damage", [b"", b"0" * 7, b"\xff" * 128, b"z" * 128, b"0" * 127 + b"\n"])
def test_a_damaged_note_is_made_anew(damage: bytes, tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"one")
    first = kept.fingerprint(file)
    (note,) = _notes(tmp_path)
    true = note.read_bytes()
    note.write_bytes(damage)
    assert kept.fingerprint(file) == first
    assert note.read_bytes() == true


def test_a_file_that_was_touched_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"one")
    before, first = file.stat(), kept.fingerprint(file)
    os.utime(file, ns=(0, 0))
    assert kept.fingerprint(file) == first
    assert len(_notes(tmp_path)) == 2
    other = tmp_path / "another"
    other.write_bytes(b"two")
    os.replace(other, file)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert kept.fingerprint(file) != first


def _written(folder: Path) -> None:
    (folder / "model.bin").write_bytes(b"weights")


@pytest.mark.parametrize("damage", [b"weight", b"weighty", b""])
def test_a_copy_is_found_where_it_is_whole(
    damage: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place, copy = tmp_path / "a", tmp_path / "b"
    assert kept.keep(place, _written)
    shutil.copytree(place, copy)
    assert kept.find(copy)
    (copy / "model.bin").write_bytes(damage)
    assert not kept.find(copy)
    assert "is made anew: its files are not what was written" in caplog.text
    assert kept.find(place)
    assert not copy.exists()


def test_folders_within_a_conversion_are_kept(tmp_path: Path) -> None:
    place = tmp_path / "a"

    def write(folder: Path) -> None:
        (folder / "templates").mkdir()
        (folder / "templates" / "tool.jinja").write_text("{{ tools }}")

    assert kept.keep(place, write)
    assert kept.find(place)
    (place / "templates" / "tool.jinja").write_text("{{ other }}")
    assert not kept.find(place)


@pytest.mark.parametrize("error", [ValueError, OSError, RuntimeError, KeyError])
def test_what_cannot_be_written_costs_a_warning(
    error: type[Exception], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def write(folder: Path) -> None:
        (folder / "half").write_bytes(b"of it")
        raise error("the generation config is invalid")

    assert not kept.keep(tmp_path / "a", write)
    assert "generation config is invalid" in caplog.text
    assert [each.name for each in tmp_path.iterdir()] == []


def _opened(source: Path | str, caplog: pytest.LogCaptureFixture) -> str:
    """Load by OpenVINO, and say what was done once."""
    caplog.clear()
    with caplog.at_level(logging.INFO):
        asked = LoadOptions("openvino", torch.device("cpu"), "auto", None, 2)
        load_model("target", str(source), asked)
    return " ".join(message for message in caplog.messages if "once" in message)


def test_a_folder_is_converted_again_where_its_weights_changed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source, noted = tmp_path / "model", tmp_path / "cache" / "outrider" / "digests"
    random_model("llama").float().save_pretrained(source)
    assert "converting" in _opened(source, caplog)
    first = len(list(noted.iterdir()))
    assert not _opened(source, caplog)
    os.utime(source / "model.safetensors", ns=(0, 0))
    assert not _opened(source, caplog)
    assert len(list(noted.iterdir())) == first + 1
    random_model("llama", seed=1).float().save_pretrained(source)
    assert "converting" in _opened(source, caplog)


def test_a_model_of_the_hub_is_known_by_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither its weights nor its files are hashed."""
    hub = tmp_path / "hub" / "models--outrider--tiny"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(hub.parent))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)

    def hashed(_model: object) -> str:
        raise AssertionError("hashed")

    monkeypatch.setattr("outrider.runtimes.openvino.convert._hashed", hashed)
    (hub / "refs").mkdir(parents=True)
    for seed, commit in enumerate(("a" * 40, "b" * 40)):
        random_model("llama", seed=seed).float().save_pretrained(hub / "snapshots" / commit)
        (hub / "refs" / "main").write_text(commit)
        assert "converting" in _opened("outrider/tiny", caplog)
        assert not _opened("outrider/tiny", caplog)


def test_a_conversion_was_compared_before_it_was_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """So a second start of a folder need not run the model itself."""
    random_model("llama").float().save_pretrained(tmp_path / "model")

    def refuse(*_: object) -> None:
        raise ModelError("other logits")

    monkeypatch.setattr(OpenVinoModel, "_compare", refuse)
    for _ in range(2):
        with pytest.raises(ModelError, match="other logits"):
            _opened(tmp_path / "model", caplog)
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert "converting" in _opened(tmp_path / "model", caplog)
    monkeypatch.setattr(OpenVinoModel, "_compare", refuse)
    assert not _opened(tmp_path / "model", caplog)


def test_a_gguf_file_is_converted_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("accelerate")
    file = write_gguf(gguf_model("llama"), tmp_path / "model.gguf")
    said = _opened(file, caplog)
    assert "model.gguf for transformers" in said
    assert "to OpenVINO" in said
    assert not _opened(file, caplog)
    write_gguf(gguf_model("llama", seed=1), file)
    assert _opened(file, caplog) == said


def test_the_tokenizer_of_a_gguf_file_stays_what_transformers_makes_of_it(
    tmp_path: Path,
) -> None:
    demo = pytest.importorskip("outrider_demo")
    pytest.importorskip("accelerate")
    own, template = demo.tokenizer(), "{{ messages[0]['content'] }}"
    model = gguf_model("llama", vocab_size=len(own))
    file = write_gguf(model, tmp_path / "model.gguf", byte_level(own, template))
    direct = AutoTokenizer.from_pretrained(str(tmp_path), gguf_file=file.name)
    asked = LoadOptions("openvino", torch.device("cpu"), "auto", None, 2)
    for _ in range(2):
        found = load_tokenizer(str(file), asked)
        assert found.get_vocab() == direct.get_vocab()
        assert found.chat_template == direct.chat_template == template
        assert found.all_special_tokens == direct.all_special_tokens
        for text in ("import os", "  na\u00efve \U0001f600\n\tx", own.eos_token):
            assert found.encode(text) == direct.encode(text)
            assert found.decode(found.encode(text)) == direct.decode(direct.encode(text))
