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

from outrider.cli import main
from outrider.cli.ending import terminable

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


def test_the_handler_is_there_for_one_signal() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with terminable() as ending:
        assert ending.status == 130
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) == before
        assert ending.status == 143
    assert signal.getsignal(signal.SIGTERM) == before
