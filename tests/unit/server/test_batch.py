"""A batch is answered in order, gone on with after a kill, and its bad lines are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pydantic", reason="the server extra is not installed")

from outrider import SamplingParams
from outrider.errors import InvalidConfigError
from outrider.server.batch import Line, answer_file, in_process, lines_of
from tests.support.server import toy_decoder

PROMPTS = ["abc", "xyz", "hello", "a", "bcd", "zzz", "q", "what"]


def line(name: str, prompt: str, **body: Any) -> dict[str, Any]:
    asked = {"prompt": prompt, "max_tokens": 6, "seed": 7, **body}
    return {"custom_id": name, "method": "POST", "url": "/v1/completions", "body": asked}


def written(path: Path, lines: list[Any]) -> Path:
    texts = [each if isinstance(each, str) else json.dumps(each) for each in lines]
    path.write_text("\n".join(texts) + "\n")
    return path


def run(source: Path, target: Path) -> tuple[int, int, list[tuple[int, int]]]:
    reported: list[tuple[int, int]] = []

    def report(each: Line, status: int) -> None:
        reported.append((each.number, status))

    answering = in_process(toy_decoder, "toy", together=3)
    return (*answer_file(source, target, answering, report), reported)


def choices(answer: bytes) -> Any:
    return json.loads(answer)["response"]["body"]["choices"]


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(each) for each in path.read_text().splitlines()]


def test_answers_come_in_order_and_are_the_librarys(tmp_path: Path) -> None:
    source = written(tmp_path / "in.jsonl", [line(str(i), p) for i, p in enumerate(PROMPTS)])
    target = tmp_path / "out.jsonl"
    assert run(source, target)[:2] == (0, 8)
    answers = read(target)
    assert [each["custom_id"] for each in answers] == [str(i) for i in range(8)]
    decoder = toy_decoder()
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        expected = decoder.generate(prompt, SamplingParams(max_tokens=6, seed=7)).text
        assert answer["response"]["body"]["choices"][0]["text"] == expected
        assert (answer["response"]["status_code"], answer["error"]) == (200, None)


@pytest.mark.parametrize("kept", [0, 1, 7, 8])
@pytest.mark.parametrize("half", [b"", b'{"id": "batch_req_1", "custom_id": "3", "resp'])
def test_a_batch_goes_on_where_a_kill_left_it(kept: int, half: bytes, tmp_path: Path) -> None:
    source = written(tmp_path / "in.jsonl", [line(str(i), p) for i, p in enumerate(PROMPTS)])
    target = tmp_path / "out.jsonl"
    run(source, target)
    whole = target.read_bytes().splitlines(keepends=True)
    target.write_bytes(b"".join(whole[:kept]) + half)
    assert run(source, target)[:2] == (kept, 8 - kept)
    again = target.read_bytes().splitlines(keepends=True)
    assert again[:kept] == whole[:kept]
    assert [choices(each) for each in again] == [choices(each) for each in whole]


def test_bad_lines_are_answered_with_their_number(tmp_path: Path) -> None:
    lines = [
        line("good", "abc"),
        "{not json",
        "",
        "[1]",
        {"body": {}},
        line("bad url", "abc") | {"url": "/v1/embeddings"},
        line("bad field", "abc", temperature=-1),
        line("streamed", "abc", stream=True),
    ]
    source, target = written(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    _, _, reported = run(source, target)
    assert reported == [(1, 200), (2, 400), (4, 400), (5, 400), (6, 400), (7, 400), (8, 200)]
    answers = read(target)
    assert [each["custom_id"] for each in answers] == [
        *("good", None, None, None, "bad url", "bad field", "streamed")
    ]
    assert "line 2" in answers[1]["error"]["message"]
    assert answers[5]["response"]["body"]["error"]["param"] == "temperature"


def test_answers_to_another_batch_are_left_alone(tmp_path: Path) -> None:
    source = written(tmp_path / "in.jsonl", [line("a", "abc")])
    for held in ('{"custom_id": "b"}\n', "something else\n", '{"custom_id": "a"}\n' * 2):
        target = tmp_path / "out.jsonl"
        target.write_text(held)
        with pytest.raises(InvalidConfigError, match="another --output"):
            run(source, target)
        assert target.read_text() == held


def test_lines_are_read_one_by_one(tmp_path: Path) -> None:
    source = written(tmp_path / "in.jsonl", [line("a", "abc"), "{"])
    found = lines_of(source)
    assert next(found).custom_id == "a"
    assert next(found).wrong is not None
