"""Processes that are told to end while they measure: what was measured is kept."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from outrider.cli import config_file, main
from outrider.cli.ending import Terminated, terminable

pty = pytest.importorskip("pty")

GUARD = 900
"""Seconds after which a process counts as hung."""

FOREVER = ("-m", "6", "--repeats", "100000", "--json")
TUNE = (
    *("tune", "--drafters", "draft_model", "--verifications", "block", "--depths", "2"),
    *("--no-trees", "--temp", "0", "--max-prompts", "1", *FOREVER),
)
BENCH = (
    *("bench", "--workloads", "json", "--prompts-per-workload", "1", "--temps", "0", "-k", "2"),
    *("--drafters", "draft_model", "--peers", "none", *FOREVER),
)


def _heed_interrupts() -> None:
    """A shell may have started the tests with Ctrl-C ignored, which children inherit."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def ended(args: tuple[str, ...], mark: str, number: int, out: Path) -> tuple[int, str, Any]:
    """Send a signal to the command once its progress shows `mark`.

    Returns:
        Its exit status, what it said on its terminal, and the document that it printed.
    """
    terminal, stderr = pty.openpty()
    environment = os.environ | {"COLUMNS": "200", "TERM": "xterm"}
    with out.open("wb") as stdout:
        process = subprocess.Popen(
            [sys.executable, "-m", "outrider", *args],
            stdout=stdout,
            stderr=stderr,
            env=environment,
            preexec_fn=_heed_interrupts,
        )
    os.close(stderr)
    said, sent, start = b"", False, monotonic()
    try:
        while True:
            assert monotonic() - start < GUARD, said
            assert select.select([terminal], [], [], GUARD)[0], said
            try:
                more = os.read(terminal, 65536)
            except OSError:
                break
            if not more:
                break
            said += more
            if not sent and re.search(mark.encode(), said):
                process.send_signal(number)
                sent = True
        status = process.wait(GUARD)
    finally:
        process.kill()
        process.wait()
        os.close(terminal)
    assert sent, said
    return status, said.decode(), json.loads(out.read_text() or "null")


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=["term", "int"]
)
def test_a_tuner_that_is_ended_keeps_its_checks(number: int, status: int, tmp_path: Path) -> None:
    mark = r"[1-9]\d*/100000\D.*checking 2 configurations"
    found, said, document = ended(TUNE, mark, number, tmp_path / "out")
    assert found == status, said
    assert "interrupted; what was measured until then is shown" in said
    assert document["partial"]
    assert {each["label"] for each in document["checks"]} == {
        "outrider draft_model adaptive",
        "outrider draft_model k=2",
    }
    for each in document["checks"]:
        assert 0 < len(each["measured"]["seconds"]) < 100000
        assert each["measured"]["low"] is None
    # One prompt is no reason to speculate, however often it was decoded.
    assert not document["recommendation"]["speculate"]
    assert "too few prompts" in document["recommendation"]["verdict"]


def test_a_benchmark_that_is_ended_keeps_its_stretches(tmp_path: Path) -> None:
    found, said, document = ended(BENCH, r": \d\d+ of 100000", signal.SIGTERM, tmp_path / "out")
    assert found == 143, said
    assert "interrupted; this is what had been measured" in said
    assert document["partial"]
    assert 0 < len(document["measurements"][0]["seconds"]) < 100000


def test_what_is_ended_before_anything_was_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def loaded(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()

    monkeypatch.setattr("outrider.cli.models.load", loaded)
    for args in (TUNE, BENCH):
        assert main(args) == 143
        assert "outrider: error: terminated" in capsys.readouterr().err


def interrupting(number: int, of: Any) -> Any:
    """What a function gives, after a signal."""

    def interrupted(*args: Any, **given: Any) -> Any:
        signal.raise_signal(number)
        return of(*args, **given)

    return interrupted


SHORT_BENCH = (*BENCH[:-5], "-m", "6", "--repeats", "1", "--json")
SHORT_TUNE = (*TUNE[:-5], "-m", "6", "--repeats", "1", "--json")

SIGNALS = pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=["term", "int"]
)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.fixture
def _interruptible(monkeypatch: pytest.MonkeyPatch) -> Any:
    before = signal.getsignal(signal.SIGINT)
    _heed_interrupts()
    monkeypatch.setattr("outrider.bench.run.forward_times", lambda *_: [])
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


@SIGNALS
@pytest.mark.usefixtures("_interruptible")
def test_a_signal_waits_until_a_benchmark_is_written(
    number: int, status: int, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from outrider.bench import documents

    monkeypatch.setattr(documents, "as_json", interrupting(number, documents.as_json))
    assert main([*SHORT_BENCH[:-1], "--out", str(tmp_path), "--csv"]) == status
    out = capsys.readouterr().out
    assert names(tmp_path) == {"result.json", "result.md", "result.csv"}
    assert (tmp_path / "result.csv").read_text() == out
    assert not json.loads((tmp_path / "result.json").read_text())["partial"]


@SIGNALS
@pytest.mark.usefixtures("_interruptible")
def test_a_signal_waits_until_a_tuner_has_told(
    number: int, status: int, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from outrider.cli import tune

    monkeypatch.setattr(
        tune.tune_document, "document", interrupting(number, tune.tune_document.document)
    )
    saved = tmp_path / "saved.toml"
    assert main([*SHORT_TUNE, "--out", str(tmp_path), "--save", str(saved)]) == status
    document = json.loads(capsys.readouterr().out)
    assert names(tmp_path) == {"tune.json", "saved.toml"}
    assert json.loads((tmp_path / "tune.json").read_text()) == document
    assert not document["partial"]


@SIGNALS
@pytest.mark.usefixtures("_interruptible")
def test_a_signal_while_pictures_are_drawn_costs_them_alone(
    number: int, status: int, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    from outrider.bench import plots

    monkeypatch.setattr(plots, "pictures", interrupting(number, plots.pictures))
    assert main([*SHORT_BENCH, "--out", str(tmp_path)]) == status
    assert json.loads(capsys.readouterr().out) == json.loads((tmp_path / "result.json").read_text())
    assert names(tmp_path) == {"result.json", "result.md", "result.csv"}


def test_a_file_that_is_not_finished_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        config_file.write(tmp_path / "result.json", b"{}")
    assert names(tmp_path) == set()


@pytest.mark.usefixtures("_interruptible")
def test_a_second_signal_does_not_wait() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with terminable() as ending:
        ending.hold()
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(Terminated):
            signal.raise_signal(signal.SIGTERM)
        assert ending.status == 143
    assert signal.getsignal(signal.SIGTERM) == before
    with terminable() as ending:
        ending.hold()
        ending.release()
        assert ending.status == 130
        ending.hold()
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_that_are_ignored_stay_so(number: int) -> None:
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with terminable() as ending:
            signal.raise_signal(number)
            ending.hold()
            signal.raise_signal(number)
            ending.release()
        assert signal.getsignal(number) is signal.SIG_IGN
    except KeyboardInterrupt:
        pytest.fail("it was not ignored")
    finally:
        signal.signal(number, before)


def test_a_handler_that_is_not_pythons_gives_way_to_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python cannot name it, nor set it again."""
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)

    def unknown(number: int) -> Any:
        handler = signal.getsignal(number)
        return None if handler in before else handler

    monkeypatch.setattr(f"{terminable.__module__}.getsignal", unknown)
    try:
        with pytest.raises(Terminated), terminable():
            signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        with terminable() as ending:
            ending.hold()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before[0])
        signal.signal(signal.SIGINT, before[1])


def test_the_handler_is_there_for_one_signal() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with terminable() as ending:
        assert ending.status == 130
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) == before
        assert ending.status == 143
    assert signal.getsignal(signal.SIGTERM) == before
