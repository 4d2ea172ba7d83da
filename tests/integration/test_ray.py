"""Batches and the server on a local Ray cluster of two actors."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from time import sleep
from typing import Any

import pytest

pytest.importorskip("ray", reason="ray is not installed")
pytest.importorskip("fastapi", reason="the server extra is not installed")

import ray

from outrider.integrations.ray import application, on_ray
from outrider.server.access import AuthLimits
from outrider.server.batch import Answered, answer_file, in_process

pytestmark = [
    pytest.mark.slow,
    pytest.mark.alone,
    pytest.mark.filterwarnings("ignore::Warning"),
]


def make() -> Any:
    from tests.support.server import toy_decoder

    return toy_decoder()


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    root = str(Path(__file__).parents[2])
    paths = os.pathsep.join([root, f"{root}/src", os.environ.get("PYTHONPATH", "")])
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": paths}},
    )
    yield
    ray.shutdown()


def batch(path: Path, count: int) -> Path:
    lines = [
        {
            "custom_id": f"r{i}",
            "method": "POST",
            "url": "/v1/completions",
            "body": {"prompt": f"line {i}", "max_tokens": 20, "seed": i},
        }
        for i in range(count)
    ]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


def choices(path: Path) -> list[Any]:
    answers = [json.loads(line) for line in path.read_text().splitlines()]
    return [(each["custom_id"], each["response"]["body"]["choices"]) for each in answers]


def answer(source: Path, target: Path, answering: Any, pause_s: float = 0.0) -> Answered:
    return answer_file(source, target, answering, lambda *_: sleep(pause_s))


def alone(source: Path, target: Path) -> list[Any]:
    """The answers of one process."""
    answer(source, target, in_process(make, "toy", together=4))
    return choices(target)


def test_two_actors_answer_as_one_process_does(cluster: None, tmp_path: Path) -> None:
    source = batch(tmp_path / "in.jsonl", 24)
    target = tmp_path / "out.jsonl"
    two = on_ray(make, "toy", actors=2, together=4)
    assert answer(source, target, two) == Answered(0, 24, 0)
    assert choices(target) == alone(source, tmp_path / "alone.jsonl")
    whole = target.read_bytes().splitlines(keepends=True)
    target.write_bytes(b"".join(whole[:9]) + b'{"id": "batch_re')
    assert answer(source, target, two) == Answered(9, 15, 0)
    assert choices(target) == choices(tmp_path / "alone.jsonl")


def test_an_actor_that_is_killed_loses_nothing(cluster: None, tmp_path: Path) -> None:
    source, target = batch(tmp_path / "in.jsonl", 48), tmp_path / "out.jsonl"
    killed: list[int] = []

    def kill() -> None:
        while not target.exists() or target.read_bytes().count(b"\n") < 4:
            sleep(0.01)
        for process in Path("/proc").glob("[0-9]*"):
            name = (process / "cmdline").read_bytes()
            if b"ray::MapWorker" in name and not killed:
                killed.append(int(process.name))
                os.kill(killed[0], signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    answer(source, target, on_ray(make, "toy", actors=2, together=4), 0.02)
    thread.join()
    assert killed
    assert choices(target) == alone(source, tmp_path / "alone.jsonl")


def test_the_server_runs_on_ray_serve_under_a_prefix_and_asks_for_keys(cluster: None) -> None:
    import httpx
    from ray import serve

    from outrider import SamplingParams
    from tests.support.server import toy_decoder

    serve.start(http_options={"port": 8231})
    try:
        access = AuthLimits(keys=("one",))
        served = application(make, "toy", access, ray_actor_options={"num_cpus": 1})
        serve.run(served, name="toy", route_prefix="/llm")
        body = {"prompt": "abc", "max_tokens": 12, "seed": 3}
        expected = toy_decoder().generate("abc", SamplingParams(max_tokens=12, seed=3)).text
        with httpx.Client(base_url="http://127.0.0.1:8231/llm", timeout=60) as client:
            for path in ("/v1/models", "/v1/stats", "/metrics"):
                assert client.get(path).status_code == 401
            assert client.post("/v1/completions", json=body).status_code == 401
            assert client.get("/health").text == "ok"
            assert "<h1>Outrider</h1>" in client.get("/").text
            client.headers["Authorization"] = "Bearer one"
            assert client.get("/v1/models").json()["data"][0]["id"] == "toy"
            response = client.post("/v1/completions", json=body)
            assert response.json()["choices"][0]["text"] == expected
            with client.stream("POST", "/v1/completions", json=body | {"stream": True}) as stream:
                assert list(stream.iter_lines())[-2] == "data: [DONE]"
    finally:
        serve.shutdown()
