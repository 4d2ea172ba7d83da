"""`outrider report` and `--trace`: a run's rounds, summarised from their file."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from outrider.bench.documents import as_json
from outrider.engine.trace import TraceWriter, read_trace

from .test_cli import PROMPT, document, draft, error_of, folder, printed, run, target
from .test_plots import PLAIN, WHOLE, measured, record, result

__all__ = ["draft", "folder", "target"]

PLAIN_ONLY = result(measured(PLAIN, 1.0))
FIXED = ("--depth", "fixed", "-k", "2", "--seed", "3", "-m", "12")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "run.jsonl"
    with TraceWriter(path, {"target": "demo", "sampling": {"temperature": 0.5}}) as writer:
        for number in range(8):
            writer.write(record(2, number % 3))
    return path


class TestTraceFlag:
    def test_a_file_that_is_no_trace_is_left_alone(self, capsys, tmp_path, target):
        path = tmp_path / "prompt.txt"
        path.write_text(PROMPT)
        flags = ("-f", str(path), "--target", target, "--method", "none", "-m", "4")
        assert run("generate", *flags, "--trace", str(path)) == 2
        assert "it holds something else than a trace" in capsys.readouterr().err
        assert path.read_text() == PROMPT

    def test_a_trace_has_the_figures_that_generate_prints(self, capsys, tmp_path, target, draft):
        path = tmp_path / "run.jsonl"
        models = ("--target", target, "--draft", draft, *FIXED, "-p", PROMPT)
        found = document(capsys, "generate", *models, "--trace", str(path))
        told = document(capsys, "report", str(path), "--out", str(tmp_path / "out"))
        assert told["speculation"] == found["speculation"]
        assert told["timing"] == found["timing"]
        assert told["settings"] == found["config"]
        assert sum(told["depths"]) == found["speculation"]["rounds"]
        assert run("generate", *models) == 0
        assert run("generate", *models, "--trace", str(path)) == 0

    def test_demo_writes_the_speculative_rounds(self, capsys, tmp_path, target, draft):
        path = tmp_path / "run.jsonl"
        flags = ("--target", target, "--draft", draft, *FIXED, "-p", PROMPT, "--trace", str(path))
        found = document(capsys, "demo", *flags)
        rounds = [side["speculative"]["speculation"]["rounds"] for side in found["results"]]
        assert len(read_trace(path).records) == sum(rounds)
        assert read_trace(path).settings["temperatures"] == [0.0, 0.8]

    def test_a_lossy_run_has_a_lossy_trace(self, capsys, tmp_path, target, draft):
        path = tmp_path / "run.jsonl"
        lossy = ("--verification", "mixture", "--mixture-budget", "0.5", "-p", PROMPT)
        flags = ("--target", target, *FIXED, *lossy, "--trace", str(path))
        assert run("generate", *flags, "--draft", draft) == 0
        assert read_trace(path).lossy
        plain = (
            "--method",
            "none",
            "-p",
            PROMPT,
            "--target",
            target,
            "-m",
            "12",
            "--trace",
            str(path),
        )
        assert run("generate", *plain) == 0
        assert not read_trace(path).lossy

    @pytest.mark.parametrize("command", ["generate", "demo"])
    @pytest.mark.parametrize("place", ["", "missing/run.jsonl", "file/run.jsonl", "/proc/run"])
    def test_a_bad_path_is_refused_before_models_are_loaded(self, capsys, tmp_path, command, place):
        (tmp_path / "file").write_text("")
        path = place if place.startswith("/") else str(tmp_path / place)
        flags = ("-p", PROMPT, "--target", "no/such/model", "--trace", path)
        method = ("--method", "ngram")
        assert error_of(capsys, command, *flags, *method).startswith(
            f"outrider: error: --trace={path!r} is not allowed: expected a "
        )


class TestReport:
    def test_of_a_trace(self, capsys, trace):
        text = printed(capsys, "report", str(trace))
        for said in (
            *("8, of which 8 drafted", "43.8%", "1.88 tokens a round", "62 25 %", "2: 100%"),
            *("10.00 ms: draft 25%, target 50%, rest 25%", "temperature 0.5"),
        ):
            assert said in text
        out = trace.with_name("run-report")
        assert text.endswith(f"written: 3 plots and {out / 'index.html'}\n")
        assert {path.name for path in out.iterdir()} == {
            *("depth-by-round.png", "time-by-round.png", "acceptance-by-position.png"),
            "index.html",
        }

    def test_of_a_killed_run(self, capsys, trace):
        trace.write_bytes(trace.read_bytes()[:-5])
        text = printed(capsys, "report", str(trace))
        assert "7, of which 7 drafted" in text
        assert "The last line was cut short" in text

    def test_of_a_run_without_rounds(self, capsys, trace):
        assert "no rounds" not in printed(capsys, "report", str(trace))
        trace.write_bytes(trace.read_bytes().split(b"\n")[0] + b"\n")
        assert "no rounds are in it" in printed(capsys, "report", str(trace))

    def test_of_a_result(self, capsys, tmp_path):
        path = tmp_path / "result.json"
        path.write_text(as_json(WHOLE))
        text = printed(capsys, "report", str(path), "--out", str(tmp_path / "new" / "out"))
        assert "40 rounds, 80 tokens drafted, 39 accepted (48.8%), 1.98 emitted" in text
        assert "accepted by position 65 32 %; 10.00 ms: draft 25%" in text
        assert len(list((tmp_path / "new" / "out").iterdir())) == 5

    def test_of_a_result_as_json(self, capsys, tmp_path):
        path = tmp_path / "result.json"
        path.write_text(as_json(PLAIN_ONLY))
        found = document(capsys, "report", str(path))
        assert found["kind"] == "bench"
        assert found["result"] == json.loads(as_json(PLAIN_ONLY))
        assert len(found["files"]) == 2

    def test_without_matplotlib_there_is_a_table_and_a_page(self, capsys, monkeypatch, trace):
        monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
        assert run("report", str(trace)) == 0
        captured = capsys.readouterr()
        assert "8, of which 8 drafted" in captured.out
        assert 'pip install "outrider[bench]"' in captured.err
        assert captured.err.count("\n") == 1
        assert [path.name for path in trace.with_name("run-report").iterdir()] == ["index.html"]

    @pytest.mark.parametrize("text", ["", "{", "[]", "1", "{}", '{"format": "x"}', "[" * 99_999])
    def test_what_is_neither_is_refused(self, capsys, tmp_path, text):
        path = tmp_path / "file.json"
        path.write_text(text)
        said = error_of(capsys, "report", str(path))
        assert f"FILE='{path}' is not allowed: expected a trace that --trace wrote" in said

    def test_a_damaged_trace_names_the_line(self, capsys, trace):
        trace.write_text(trace.read_text().replace("[2]", "[true]", 1))
        assert f"{trace}, line 2: drafted is [True]" in error_of(capsys, "report", str(trace))

    def test_a_file_that_cannot_be_read_and_a_folder_that_cannot_be_made(self, capsys, trace):
        assert "No such file" in error_of(capsys, "report", "missing.jsonl")
        assert "Is a directory" in error_of(capsys, "report", str(trace.parent))
        result = trace.with_name("result.json")
        result.write_text(as_json(PLAIN_ONLY))
        assert f": name {result}" in error_of(capsys, "report", str(trace.parent))
        assert "--out=" in error_of(capsys, "report", str(trace), "--out", str(trace / "out"))
