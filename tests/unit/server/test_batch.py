"""A batch is answered in order, gone on with after a kill, and its bad lines are named."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pydantic", reason="the server extra is not installed")

from outrider import SamplingParams
from outrider.errors import InvalidConfigError
from outrider.server.batch import Answered, answer_file, counted, in_process, lines_of
from tests.support.server import toy_decoder

PROMPTS = ["abc", "xyz", "hello", "a", "bcd", "zzz", "q", "what"]


def line(name: str, prompt: str, **body: Any) -> dict[str, Any]:
    asked = {"prompt": prompt, "max_tokens": 6, "seed": 7, **body}
    return {"custom_id": name, "method": "POST", "url": "/v1/completions", "body": asked}


def written(path: Path, lines: list[Any]) -> Path:
    texts = [each if isinstance(each, str) else json.dumps(each) for each in lines]
    path.write_text("\n".join(texts) + "\n")
    return path


def run(source: Path, target: Path) -> tuple[Answered, list[tuple[int, str | None]]]:
    reported: list[tuple[int, str | None]] = []

    def report(done: int, error: str | None) -> None:
        reported.append((done, error))

    answering = in_process(toy_decoder, "toy", together=3)
    return answer_file(source, target, answering, report), reported


def choices(answer: bytes) -> Any:
    return json.loads(answer)["response"]["body"]["choices"]


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(each) for each in path.read_text().splitlines()]


def test_answers_come_in_order_and_are_the_librarys(tmp_path: Path) -> None:
    source = written(tmp_path / "in.jsonl", [line(str(i), p) for i, p in enumerate(PROMPTS)])
    target = tmp_path / "out.jsonl"
    assert run(source, target)[0] == Answered(0, 8, 0)
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
    assert run(source, target)[0] == Answered(kept, 8 - kept, 0)
    again = target.read_bytes().splitlines(keepends=True)
    assert again[:kept] == whole[:kept]
    assert [choices(each) for each in again] == [choices(each) for each in whole]


def test_a_batch_that_is_answered_loads_no_model(tmp_path: Path) -> None:
    source = written(tmp_path / "in.jsonl", [line("a", "abc")])
    run(source, tmp_path / "out.jsonl")

    def make() -> Any:
        raise AssertionError("nothing is left to answer")

    answering = in_process(make, "toy", together=3)
    found = answer_file(source, tmp_path / "out.jsonl", answering, lambda *_: None)
    assert found == Answered(1, 0, 0)


@pytest.mark.skipif(not Path("/dev/fd").is_dir(), reason="open files have no names")
def test_answers_may_go_into_a_pipe(tmp_path: Path) -> None:
    source = written(tmp_path / "in.jsonl", [line("a", "abc"), line("b", "xyz")])
    reader, writer = os.pipe()
    assert run(source, Path(f"/dev/fd/{writer}"))[0] == Answered(0, 2, 0)
    os.close(writer)
    with open(reader) as answers:
        assert [json.loads(each)["custom_id"] for each in answers] == ["a", "b"]


def test_lines_of_one_name_are_refused(tmp_path: Path) -> None:
    lines = [line("a", "abc"), "{", "{", line("b", "abc"), line("a", "xyz")]
    source = written(tmp_path / "in.jsonl", lines)
    with pytest.raises(InvalidConfigError, match=r"lines 1 and 5 have the custom_id 'a'"):
        counted(source)
    assert counted(written(source, lines[:4])) == 4


def test_bad_lines_are_answered_with_their_number(tmp_path: Path) -> None:
    schema = {"type": "json_schema", "json_schema": {"schema": {"const": "\ud800"}}}
    lines = [
        line("good", "abc"),
        "{not json",
        "",
        "[1]",
        {"body": {}},
        line("bad url", "abc") | {"url": "/v1/embeddings"},
        line("no text", "abc") | {"url": ["/v1/completions"]},
        line("bad method", "abc") | {"method": "GET"},
        line("bad field", "abc", temperature=-1),
        line("huge", "abc", logit_bias={"1": 10**400}),
        line("half a character", "abc", response_format=schema),
        line("a field of one", "abc", **{"\ud800": 1}),
        line("\ud800", "abc"),
        line("streamed", "abc", stream=True, stream_options={"include_usage": True}),
    ]
    source, target = written(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    found, reported = run(source, target)
    assert [done for done, _ in reported] == list(range(1, 14))
    assert [done for done, error in reported if error is None] == [1, 12, 13]
    assert found == Answered(0, 13, 10)
    said = [error.partition(":")[0] for _, error in reported if error is not None]
    assert said == [f"line {number}" for number in (2, *range(4, 13))]
    answers = read(target)
    names = [json.loads(each)["custom_id"] for each in map(json.dumps, lines[5:])]
    assert [each["custom_id"] for each in answers] == ["good", None, None, None, *names]
    assert {each["response"]["status_code"] for each in answers} == {200, 400}
    assert answers[7]["response"]["body"]["error"]["param"] == "temperature"
    assert run(source, target)[0] == Answered(13, 0, 10)


@pytest.mark.parametrize(
    "held", ['{"custom_id": "b"}\n', "something else\n", '{"my": "data"}', '{"id": "b"}', "x" * 99]
)
def test_what_is_no_answer_to_the_batch_is_left_alone(held: str, tmp_path: Path) -> None:
    source, target = written(tmp_path / "in.jsonl", [line("a", "abc")]), tmp_path / "out.jsonl"
    target.write_text(held)
    with pytest.raises(InvalidConfigError, match="another --output"):
        run(source, target)
    assert target.read_text() == held


def test_more_answers_than_lines_are_of_another_batch(tmp_path: Path) -> None:
    source, target = written(tmp_path / "in.jsonl", [line("a", "abc")]), tmp_path / "out.jsonl"
    run(source, target)
    target.write_text(target.read_text() * 2)
    with pytest.raises(InvalidConfigError, match="another --output"):
        run(source, target)


def test_lines_are_read_one_by_one(tmp_path: Path) -> None:
    source = written(tmp_path / "in.jsonl", [line("a", "abc"), "{"])
    found = lines_of(source)
    assert next(found).custom_id == "a"
    assert next(found).wrong is not None
