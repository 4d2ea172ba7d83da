"""Processes that are ended: a server under load by SIGTERM, a batch by SIGKILL."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from time import sleep
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the server extra is not installed")

import httpx

from tests.support.command import save_model

pytestmark = [pytest.mark.slow, pytest.mark.alone]

RUN = (sys.executable, "-m", "outrider")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_model(tmp_path_factory.mktemp("model") / "target")


def started(model: str, *flags: str) -> tuple[subprocess.Popen[bytes], str]:
    """A server, and its address once it serves."""
    command = (*RUN, "serve", model, "--runtime", "transformers", "--port", "0", *flags)
    log = log_of(model)
    with log.open("w") as file:
        process = subprocess.Popen(command, stderr=file)
    while not (found := re.search(r"http://[\d.]+:\d+", log.read_text())):
        assert process.poll() is None, log.read_text()
        sleep(0.05)
    return process, found[0]


def log_of(model: str) -> Path:
    """Where a server of a model logs."""
    return Path(model).with_name("log")


def test_sigterm_lets_running_requests_end(model: str) -> None:
    process, address = started(model)
    answers: list[httpx.Response] = []

    def ask() -> None:
        body = {"prompt": "secret words", "max_tokens": 40, "ignore_eos": True}
        answers.append(httpx.post(f"{address}/v1/completions", json=body, timeout=60))

    threads = [threading.Thread(target=ask) for _ in range(24)]
    for thread in threads:
        thread.start()
    while not answers:
        sleep(0.005)
    process.send_signal(signal.SIGTERM)
    for thread in threads:
        thread.join(60)
    assert process.wait(60) == 0
    statuses = {answer.status_code for answer in answers}
    assert statuses <= {200, 503}
    whole = [each.json() for each in answers if each.status_code == 200]
    assert all(each["usage"]["completion_tokens"] == 40 for each in whole)
    logged = log_of(model).read_text()
    assert all(isinstance(json.loads(line), dict) for line in logged.splitlines())
    assert "secret" not in logged


def test_a_second_signal_ends_them(model: str) -> None:
    process, address = started(model, "--grace", "600")
    body = {"prompt": "a", "max_tokens": 60, "n": 100, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{address}/v1/completions", json=body, timeout=60) as stream:
        events = stream.iter_lines()
        next(events)
        process.send_signal(signal.SIGTERM)
        sleep(0.2)
        process.send_signal(signal.SIGTERM)
        rest = "".join(events)
    assert '"code": "closing"' in rest or "[DONE]" in rest
    assert process.wait(60) == 0


def test_a_batch_that_is_killed_again_and_again_loses_and_repeats_nothing(
    model: str, tmp_path: Path
) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [
        {
            "custom_id": f"r{i}",
            "method": "POST",
            "url": "/v1/completions",
            "body": {"prompt": f"line {i}", "max_tokens": 30, "seed": i, "ignore_eos": True},
        }
        for i in range(60)
    ]
    source.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    command = (*RUN, "run-batch", "-i", str(source), "-o", str(target), "--model", model)
    own: dict[str, Any] = {"stderr": subprocess.DEVNULL}
    for least in (3, 20):
        process = subprocess.Popen((*command, "--runtime", "transformers"), **own)
        while not target.exists() or target.read_bytes().count(b"\n") < least:
            assert process.poll() is None
            sleep(0.005)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert subprocess.run((*command, "--runtime", "transformers"), **own).returncode == 0
    answers = [json.loads(line) for line in target.read_text().splitlines()]
    assert [answer["custom_id"] for answer in answers] == [line["custom_id"] for line in lines]
    again = tmp_path / "again.jsonl"
    command = (*RUN, "run-batch", "-i", str(source), "-o", str(again), "--model", model)
    assert subprocess.run((*command, "--runtime", "transformers"), **own).returncode == 0
    texts = [
        [json.loads(line)["response"]["body"]["choices"] for line in path.read_text().splitlines()]
        for path in (target, again)
    ]
    assert texts[0] == texts[1]
