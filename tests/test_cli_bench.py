"""`outrider bench`: what it prints and writes, and what it says to bad input."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outrider.bench import documents
from outrider.bench import run as matrix
from outrider.cli import main
from outrider.runtimes.transformers.model import TransformersModel

SMALL = [
    *("bench", "--workloads", "json", "--prompts-per-workload", "2", "-m", "4", "--temps", "0"),
    *("-k", "2", "--drafters", "draft_model", "--peers", "none"),
]


@pytest.fixture(autouse=True)
def _no_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which takes a while, and has tests of its own."""
    monkeypatch.setattr(matrix, "forward_times", lambda *_: [])


def refused(args: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What is said on one line of stderr, with status 2."""
    try:
        status = main(["bench", *args])
    except SystemExit as end:
        status = end.code
    captured = capsys.readouterr()
    assert status == 2
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("outrider: error: ")
    return line


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--color", "never"]) == 0
    out = capsys.readouterr().out
    assert "json, temperature 0" in out
    assert "outrider plain" in out
    assert "outrider draft_model k=2" in out


def test_several_formats(capsys: pytest.CaptureFixture[str]) -> None:
    trees = ["--trees", "2x1", "--verification", "token", "--batches", "1,2", "--repeats", "2"]
    assert main([*SMALL, *trees, "--json"]) == 0
    found = documents.from_document(json.loads(capsys.readouterr().out))
    assert [
        (each.contender.label, each.batch, len(each.tokens)) for each in found.measurements
    ] == [
        (label, batch, 4 if batch == 1 else 2)
        for batch in (1, 2)
        for label in (
            "outrider plain",
            "outrider draft_model token k=2",
            "outrider draft_model token tree 2x1",
        )
    ]
    assert found.provenance["target"] == "demo"
    assert found.provenance["settings"]["prompts"] == {"json": 2}


def test_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "a" / "b"
    assert main([*SMALL, "--out", str(folder), "--csv"]) == 0
    captured = capsys.readouterr()
    assert (folder / "result.csv").read_text() == captured.out
    assert f"written to {folder}" in captured.err
    found = json.loads((folder / "result.json").read_text())
    assert documents.from_document(found).partial is False
    assert (folder / "result.md").read_text().startswith("# outrider bench")
    assert "<html" in (folder / "index.html").read_text()
    assert list(folder.glob("*.png"))
    assert not list(folder.glob(".*"))
    assert "a new folder, or an empty one" in refused(["--out", str(folder)], capsys)


def test_quick_names_a_folder_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*SMALL, "--quick", "--jsonl"]) == 0
    (folder,) = tmp_path.iterdir()
    assert folder.name.startswith("outrider-bench-")
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_first_layers(capsys: pytest.CaptureFixture[str]) -> None:
    asked = [*SMALL[:-3], "early_exit", "--exit-layers", "4,8", "--peers", "none", "--jsonl"]
    assert main(asked) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["exit_layers"] for row in rows] == [None, 4, 8]
    assert [row["drafter"] for row in rows] == ["none", "early_exit", "early_exit"]
    assert rows[2]["contender"] == "outrider early_exit of 8 k=2"
    assert all(row["identical"] == 2 for row in rows)


def test_predictions_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Which alone give the drafter of that name something to draft."""
    path = tmp_path / "mine.jsonl"
    path.write_text('{"prompt": "def f(x):", "prediction": "\\n    return x"}\n')
    asked = ["--prompts", str(path), "-m", "6", "--temps", "0", "-k", "2", "--peers", "none"]
    assert main(["bench", *asked, "--drafters", "prediction,hybrid", "--md"]) == 0
    assert (
        "mine: prompts with a prediction, which only prediction and hybrid see: 1"
        in capsys.readouterr().out
    )
    assert main(["bench", *asked, "--drafters", "prediction,hybrid", "--jsonl"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["drafter"] for row in rows] == ["none", "prediction", "hybrid"]
    assert all(row["identical"] == 1 for row in rows)
    assert rows[1]["drafted"] > 0
    path.write_bytes(ROWS)
    told = refused([*asked, "--drafters", "prediction"], capsys)
    assert 'mine.jsonl has no row that can be used with a prediction; expected "pred' in told


ROWS = b'{"prompt": "def f(x):"}\n{"prompt": 5}\n{"prompt": "x =", "max_tokens": 3}\n'


def measured_on(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    args = ["bench", "--prompts", str(path), "-m", "5", "--temps", "0", "-k", "2"]
    assert main([*args, "--drafters", "ngram", "--peers", "none", "--md"]) == 0
    return capsys.readouterr().out


def test_prompts_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_bytes(ROWS)
    out = measured_on(path, capsys)
    assert "## mine, temperature 0" in out
    assert "left out: mine, line 2: prompt is neither" in out


def test_prompts_of_a_pipe(
    piped: Callable[[bytes], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Which has nothing left to read the second time."""
    out = measured_on(piped(ROWS), capsys)
    assert "line 2: prompt is neither" in out


@pytest.mark.parametrize("content", ["", "\n"])
def test_an_empty_file(
    content: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is refused before models are loaded, as is one that is not there."""
    monkeypatch.setattr("outrider.cli.models.load", None)
    path = tmp_path / "empty.jsonl"
    path.write_text(content)
    assert "empty.jsonl has no prompt: line 1" in refused(["--prompts", str(path)], capsys)
    assert "No such file" in refused(["--prompts", str(tmp_path / "none.jsonl")], capsys)


def test_a_malformed_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "broken.jsonl"
    path.write_text("\n{broken\n")
    told = refused(["--prompts", str(path)], capsys)
    assert "broken.jsonl has no prompt: line 2: it is not JSON" in told


def test_a_folder_that_cannot_be_written_is_refused_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def loaded(*_: Any, **__: Any) -> None:
        raise AssertionError("models were loaded")

    monkeypatch.setattr("outrider.cli.models.load", loaded)
    (tmp_path / "file").write_text("")
    told = refused(["--out", str(tmp_path / "file" / "folder")], capsys)
    assert "a folder to write to (Not a directory)" in told
    assert "File exists" in refused(["--out", str(tmp_path / "file")], capsys)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--json", "--csv"], "--csv=True is not allowed: expected one format; drop --json"),
        (["-k", "0"], "'0' is not allowed: expected an integer >= 1, or adaptive"),
        (["-k", "2,2"], "each only once"),
        (["--trees", "2x0"], "such as 2x2x1"),
        (["--trees", "2,2,1"], "each only once, and x between the numbers of a shape"),
        (["--trees", "99999"], "at most 1024 nodes"),
        (["--temps", "cold"], "'cold' is not allowed"),
        (["--temps", "-1"], "'-1' is not allowed: expected 0 for greedy"),
        (["--batches", "0"], "'0' is not allowed: expected an integer >= 1"),
        (["--verification", "trust"], "'trust' is not allowed: expected one of block"),
        (["--prompts", "x", "--workloads", "code"], "not allowed with argument"),
        (["--prompts", "x", "--prompts-per-workload", "2"], "none beside --prompts"),
        (["--prompts", "/nowhere/x.jsonl"], "a readable JSONL file (No such file"),
        (["--workloads", "poems"], "'poems' is not allowed: expected one of code, editing"),
        (
            ["--drafters", "oracle"],
            "--drafters: 'oracle' is not allowed: expected one of draft_model",
        ),
        (["--drafters", "early_exit"], "--drafters='early_exit' is not allowed: expected --exit-"),
        (
            ["--drafters", "prediction"],
            "--drafters='prediction' is not allowed: expected --prompts",
        ),
        (["--exit-layers", "4"], "--exit-layers='4' is not allowed: expected --drafters early"),
        (["--drafters", "early_exit", "--exit-layers", "0"], "an integer >= 1"),
        (["--drafters", "early_exit", "--exit-layers", "99"], "exit_layers=99 is not allowed"),
        (["--peers", "vllm"], "'vllm' is not allowed: expected one of transformers, llama.cpp"),
        (["--drafters", "hybrid", "--verification", "typical"], "expected draft_model beside"),
    ],
)
def test_bad_flags(args: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in refused(args, capsys)


def test_an_interrupt_leaves_what_was_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    verify, calls = TransformersModel.verify, 0

    def interrupted(self: TransformersModel, *args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 50:
            raise KeyboardInterrupt
        return verify(self, *args)

    monkeypatch.setattr(TransformersModel, "verify", interrupted)
    args = [*SMALL, "--repeats", "9", "--out", str(tmp_path), "--color", "never"]
    assert main(args) == 130
    captured = capsys.readouterr()
    assert "partial: the run was interrupted" in captured.out
    assert "interrupted; this is what had been measured" in captured.err
    found = documents.from_document(json.loads((tmp_path / "result.json").read_text()))
    assert found.partial
    assert 0 < len(found.measurements[0].tokens) < 18
    assert "interrupted" in (tmp_path / "index.html").read_text()


def test_an_interrupt_before_anything_was_measured_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(TransformersModel, "verify", interrupted)
    assert main([*SMALL, "--out", str(tmp_path / "new")]) == 130
    assert "outrider: error: interrupted before anything was measured" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
