"""`outrider bench`, `tune` and `report`: options are passed on, results are written whole."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from outrider.bench import BenchOptions, Candidate, Measurement, Results, TuneOptions
from outrider.bench.forecast import Forecast
from outrider.bench.speedup import Speedup, Stretch
from outrider.cli import main
from outrider.cli.signals import Terminated
from tests.support.command import Capture, error_of, printed

Asked = list[Any]
FILES = (__file__, str(Path(__file__).with_name("conftest.py")))


def measurement(drafter: str, **changes: Any) -> Measurement:
    found = Measurement(
        Candidate(drafter, depth=None if drafter == "none" else 4),
        workload="code",
        temperature=0.0,
        batch=1,
        seconds=(1.0, 2.0),
        tokens=(40, 40),
        speedup=Speedup(1.0),
        identical=2,
    )
    return replace(found, **changes)


RESULTS = Results(
    {"outrider": "0"}, (measurement("none"), measurement("ngram", speedup=Speedup(1.5)))
)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Asked]:
    """Makes `outrider bench` measure nothing, and answer with the given results."""

    def install(answer: Results = RESULTS, raised: BaseException | None = None) -> Asked:
        asked: Asked = []

        def run(options: BenchOptions, report: Callable[[int, int, str], object]) -> Results:
            asked.append(options)
            if raised is not None:
                raise raised
            report(0, 1, "something")
            return answer

        monkeypatch.setattr("outrider.bench.run.run_bench", run)
        return asked

    return install


@pytest.fixture(autouse=True)
def _page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.bench.page.render_report", lambda _found: "<html>")


def test_flags_reach_the_benchmark(capsys: Capture, bench: Callable[..., Asked]) -> None:
    asked = bench()
    flags = {
        "target": ("--target", "t"),
        "dtype": ("--dtype", "bfloat16"),
        "workloads": ("--workloads", "code,json"),
        "prompts_per_workload": ("--prompts-per-workload", "2"),
        "max_tokens": ("-m", "9"),
        "drafters": ("--drafters", "ngram,suffix"),
        "verification": ("--verification", "block,token"),
        "k": ("-k", "2,adaptive"),
        "trees": ("--tree-shape", "2x2x1,3"),
        "temps": ("--temperature", "0,0.5"),
        "batches": ("--batch", "1,4"),
        "prompts": ("--prompts", ",".join(FILES)),
        "runtime": ("--runtime", "transformers"),
        "peers": ("--peers", "llama.cpp,openvino-genai"),
    }
    assert main(["bench", *(each for pair in flags.values() for each in pair)]) == 0
    assert capsys.readouterr().err == "outrider: timing: something (0 of 1 done)\n"
    (options,) = asked
    assert type(options) is BenchOptions
    assert options == BenchOptions(
        target="t",
        workloads=("code", "json"),
        prompts_per_workload=2,
        max_tokens=9,
        drafters=("ngram", "suffix"),
        verification=("block", "token"),
        k=(2, "adaptive"),
        trees=("2x2x1", "3"),
        temps=(0.0, 0.5),
        dtype="bfloat16",
        batches=(1, 4),
        prompts=tuple(map(Path, FILES)),
        runtime="transformers",
        peers=("llama.cpp", "openvino-genai"),
    )


def test_earlier_names_of_flags_are_taken(capsys: Capture, bench: Callable[..., Asked]) -> None:
    asked = bench()
    flags = ("--trees", "2x2", "--temps", "0.5", "--batches", "2")
    assert "1.50x" in printed(capsys, "bench", *flags)
    assert asked == [BenchOptions(trees=("2x2",), temps=(0.5,), batches=(2,))]


def test_every_format_can_be_read(capsys: Capture, bench: Callable[..., Asked]) -> None:
    bench()
    assert "1.50x" in printed(capsys, "bench")
    document = json.loads(printed(capsys, "bench", "--json"))
    assert document == json.loads(json.dumps(RESULTS.document()))
    assert document == json.loads(printed(capsys, "bench", "-o", "json"))
    assert printed(capsys, "bench", "-o", "md").startswith("# ")


def test_results_are_written_into_a_new_folder(
    capsys: Capture, bench: Callable[..., Asked], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = bench()
    monkeypatch.chdir(tmp_path)
    printed(capsys, "bench", "--quick")
    assert asked[0].quick
    (folder,) = tmp_path.iterdir()
    assert folder.name.startswith("outrider-bench-")
    assert {each.name for each in folder.iterdir()} == {"result.json", "result.md", "index.html"}
    line = error_of(capsys, "bench", "--out", str(folder))
    assert "a new folder, or an empty one" in line
    assert len(asked) == 1


@pytest.mark.parametrize(("errors", "status"), [(("heapq.py, token 12: id 5",), 1), ((), 0)])
def test_other_tokens_than_plain_decodings_are_status_1_but_for_ties(
    capsys: Capture, bench: Callable[..., Asked], errors: tuple[str, ...], status: int
) -> None:
    other = measurement("ngram", identical=1, errors=errors)
    bench(replace(RESULTS, measurements=(measurement("none"), other)))
    assert main(["bench"]) == status
    said = " ".join(capsys.readouterr().out.split())
    assert "ngram k=4, code, temperature 0: other tokens than plain decoding in 1 of 2" in said
    assert ("heapq.py, token 12: id 5" in said) == bool(status)


def test_what_was_measured_before_an_interrupt_is_shown(
    capsys: Capture, bench: Callable[..., Asked], tmp_path: Path
) -> None:
    bench(replace(RESULTS, partial=True))
    out = tmp_path / "out"
    assert main(["bench", "--json", "--out", str(out)]) == 130
    captured = capsys.readouterr()
    assert json.loads(captured.out)["partial"] is True
    assert "interrupted; this is what had been measured" in captured.err
    assert (out / "result.json").is_file()


@pytest.mark.parametrize(("kind", "status"), [(KeyboardInterrupt, 130), (Terminated, 143)])
def test_an_interrupt_before_anything_leaves_nothing(
    capsys: Capture,
    bench: Callable[..., Asked],
    tmp_path: Path,
    kind: type[BaseException],
    status: int,
) -> None:
    bench(raised=kind())
    out = tmp_path / "out"
    error_of(capsys, "bench", "--out", str(out), status=status)
    assert not out.exists()


IN_A_PROCESS = """
import signal
from outrider.cli.signals import Terminated, terminable

before = signal.getsignal(signal.SIGTERM)
with terminable() as interruption:
    assert interruption() == 130
    try:
        signal.raise_signal(signal.SIGTERM)
    except Terminated:
        assert interruption() == 143
    else:
        raise AssertionError("nothing was raised")
assert signal.getsignal(signal.SIGTERM) is before
"""


def test_sigterm_is_an_interrupt_inside_and_what_it_was_outside() -> None:
    """In a process of its own: what else runs in this one may have a say in its signals."""
    subprocess.run([sys.executable, "-c", IN_A_PROCESS], check=True)


def test_progress_bars_of_other_libraries_are_not_shown() -> None:
    program = (
        "from outrider.cli import main; main(['--version']); import tqdm; list(tqdm.tqdm([1, 2]))"
    )
    run = [sys.executable, "-c", program]
    assert subprocess.run(run, check=True, capture_output=True, text=True).stderr == ""


class Found:
    """A recommendation, as far as the command reads it."""

    verdict = ("use n-gram look-ups with 4 tokens a round", "predicted from 8 texts")
    forecasts = (
        Forecast(Candidate("ngram", "block", 4), (Stretch(0.0, "a", "code", 9, 1.5, 1.0),)),
    )
    measurements = RESULTS.measurements
    environment: Mapping[str, str] = MappingProxyType({"target": "demo"})
    skipped = exports = schedule = ()
    partial = False

    def settings(self) -> dict[str, Any]:
        return {"target": "demo", "method": "ngram", "depth": "fixed", "num-speculative-tokens": 4}

    def document(self) -> dict[str, Any]:
        return {"verdict": self.verdict}


def test_tune_recommends_and_saves_what_config_reads(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: Asked = []

    def run(options: TuneOptions, _report: object) -> Found:
        asked.append(options)
        return Found()

    monkeypatch.setattr("outrider.bench.tune.run_tune", run)
    saved, out = tmp_path / "tuned.toml", tmp_path / "out"
    flags = (
        "--temp",
        "0,0.7",
        "-m",
        "32",
        "--depths",
        "2,4",
        "--budget",
        "9",
        "--max-prompts",
        "3",
    )
    text = printed(capsys, "tune", *flags, "--save", str(saved), "--out", str(out))
    assert all(line in text for line in Found.verdict)
    assert "1.50x" in text
    assert asked[0] == TuneOptions(
        temp=(0.0, 0.7), max_tokens=32, depths=(2, 4), budget=9.0, max_prompts=3
    )
    assert json.loads((out / "tune.json").read_text()) == {"verdict": list(Found.verdict)}
    # The file is for every command; tune itself does not ask it what to try.
    assert json.loads(printed(capsys, "tune", "--config", str(saved), "--json"))
    assert asked[1] == TuneOptions()
    line = error_of(capsys, "tune", "--save", str(tmp_path))
    assert "--save" in line
    assert "this is a folder" in line
    assert len(asked) == 2


@pytest.mark.parametrize("content", [None, "", "{}", "[" * 100_000])
def test_report_refuses_what_is_no_trace(
    capsys: Capture, tmp_path: Path, content: str | None
) -> None:
    file = tmp_path / "result.json"
    if content is not None:
        file.write_text(content)
    said = "a trace that --trace wrote; outrider bench writes the page of a result.json beside it"
    assert said in error_of(capsys, "report", str(file))
    assert "is a directory" in error_of(capsys, "report", str(tmp_path))
    assert "FILE" in error_of(capsys, "report")


def test_without_an_answer_nothing_is_saved(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Nothing(Found):
        forecasts = ()

    monkeypatch.setattr("outrider.bench.tune.run_tune", lambda *_: Nothing())
    saved = tmp_path / "tuned.toml"
    assert "outrider generate" not in printed(capsys, "tune", "--save", str(saved))
    assert not saved.exists()
