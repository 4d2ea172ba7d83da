"""Files that commands write."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from outrider.cli.files import check_file, replace_file


def test_a_file_is_replaced_as_a_whole_or_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "found.toml"
    replace_file(place, "one")

    def full(*_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="no space left"):
        replace_file(place, "two")
    assert [each.name for each in tmp_path.iterdir()] == ["found.toml"]
    assert place.read_text() == "one"


def test_a_link_stays_and_what_it_names_is_written(tmp_path: Path) -> None:
    place, link = tmp_path / "found.toml", tmp_path / "link"
    place.write_text("one")
    link.symlink_to(place)
    replace_file(link, "two")
    assert link.is_symlink()
    assert place.read_text() == "two"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names")
def test_a_pipe_or_a_device_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    replace_file(pipe, "text")
    assert pipe.is_fifo()
    assert os.read(reader, 9) == b"text"
    os.close(reader)


@pytest.mark.skipif(not Path("/dev/fd").is_dir(), reason="open files have no names")
def test_a_pipe_without_a_folder_of_its_own_is_written_to() -> None:
    reader, writer = os.pipe()
    check_file("--save", f"/dev/fd/{writer}")
    replace_file(f"/dev/fd/{writer}", "text")
    assert os.read(reader, 9) == b"text"
    os.close(reader)
    os.close(writer)
