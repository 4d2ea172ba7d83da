"""Prompts to measure on: built-in kinds, and files of several formats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import outrider_demo as demo
from outrider.bench.records import Workload
from outrider.bench.workload import NAMES, built_in, lines_of, read
from outrider.errors import InvalidConfigError

TOKENIZER = demo.tokenizer()


def write(path: Path, *rows: Any) -> Path:
    """A file of rows: bytes as they are, anything else as JSON."""
    lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
    path.write_bytes(b"\n".join(lines))
    return path


def read_rows(tmp_path: Path, *rows: Any) -> Workload:
    return read(write(tmp_path / "mine.jsonl", *rows), TOKENIZER)


def text_of(workload: Workload) -> list[str]:
    return [TOKENIZER.decode(list(prompt.token_ids)) for prompt in workload.prompts]


def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    """What was read of a file before there was a tokenizer is all that there is to read."""
    path = write(tmp_path / "mine.jsonl", {"prompt": [1, 2]})
    lines = lines_of(path)
    path.write_bytes(b"")
    (prompt,) = read(path, TOKENIZER, lines).prompts
    assert prompt.token_ids == (1, 2)


def test_every_kind_is_made_and_does_not_depend_on_the_others() -> None:
    made = built_in(NAMES, TOKENIZER, 4096, 3, prompt_tokens=40)
    assert [workload.name for workload in made] == list(NAMES)
    for workload in made:
        assert (workload,) == built_in([workload.name], TOKENIZER, 4096, 3, prompt_tokens=40)
        assert len({prompt.token_ids for prompt in workload.prompts}) == 3
        assert len({prompt.name for prompt in workload.prompts}) == 3
        for prompt in workload.prompts:
            assert all(0 <= token < 4096 for token in prompt.token_ids)
            if workload.name in ("code", "random"):
                assert len(prompt.token_ids) == 40


def test_fewer_prompts_are_a_beginning_of_more() -> None:
    for few, many in zip(
        built_in(NAMES, TOKENIZER, 4096, 2), built_in(NAMES, TOKENIZER, 4096, 5), strict=True
    ):
        assert few.prompts == many.prompts[:2]


def test_there_are_prompts_for_some_large_batches() -> None:
    for workload in built_in(("code", "editing"), TOKENIZER, 4096, 64):
        assert len({prompt.token_ids for prompt in workload.prompts}) == 64
        assert len({prompt.name for prompt in workload.prompts}) == 64


def test_kinds_and_counts_that_there_are_not() -> None:
    with pytest.raises(InvalidConfigError, match=r"'poems'.*code, editing"):
        built_in(["code", "poems"], TOKENIZER, 4096, 1)
    with pytest.raises(InvalidConfigError, match=r"count=1000.*at most 12.*chat"):
        built_in(["chat"], TOKENIZER, 4096, 1000)
    with pytest.raises(InvalidConfigError, match="count=0"):
        built_in(["chat"], TOKENIZER, 4096, 0)


def test_plain_rows(tmp_path: Path) -> None:
    found = read_rows(
        tmp_path, {"prompt": "def f(x):"}, b"", {"prompt": [5, 6, 7], "max_tokens": 9}
    )
    assert found.name == "mine"
    assert text_of(found)[0] == "def f(x):"
    assert found.prompts[1].token_ids == (5, 6, 7)
    assert [prompt.name for prompt in found.prompts] == ["line 1", "line 3"]
    assert [prompt.max_tokens for prompt in found.prompts] == [None, 9]
    assert found.skipped == ()


def test_spec_bench_rows(tmp_path: Path) -> None:
    found = read_rows(
        tmp_path, {"question_id": 81, "category": "writing", "turns": ["Write.", "Again."]}
    )
    assert text_of(found) == ["Write.\n\n"]
    assert found.prompts[0].name == "line 1 (writing)"


def test_openai_batch_rows(tmp_path: Path) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Why?"}]},
    ]
    call = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions"}
    found = read_rows(
        tmp_path,
        {**call, "body": {"model": "m", "messages": messages, "max_completion_tokens": 7}},
        {**call, "body": {"model": "m", "prompt": "x =", "max_tokens": 3}},
    )
    assert text_of(found) == ["Be brief.\n\nWhy?\n\n", "x ="]
    assert [prompt.max_tokens for prompt in found.prompts] == [7, 3]


def test_predictions_of_rows(tmp_path: Path) -> None:
    """As a text, as ids, and as OpenAI's API has it, in one piece or several."""
    content = {"type": "content", "content": "x = 1"}
    parts = [{"type": "text", "text": "x ="}, {"type": "text", "text": " 1"}]
    call = {"prompt": "a", "prediction": {"type": "content", "content": parts}}
    found = read_rows(
        tmp_path,
        {"prompt": "a", "prediction": "x = 1"},
        {"prompt": "a", "prediction": [5, 6]},
        {"prompt": "a", "prediction": content},
        {"custom_id": "b", "body": call},
        {"prompt": "a", "prediction": None},
        {"prompt": "a", "prediction": ""},
    )
    ids = tuple(TOKENIZER.encode("x = 1", add_special_tokens=False))
    predictions = [prompt.prediction for prompt in found.prompts]
    assert predictions == [ids, (5, 6), ids, ids, None, ()]


def test_a_chat_template_is_used(tmp_path: Path) -> None:
    tokenizer = demo.tokenizer()
    tokenizer.chat_template = (
        "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    path = write(tmp_path / "chat.jsonl", {"turns": ["Why?"]})
    (prompt,) = read(path, tokenizer).prompts
    assert tokenizer.decode(list(prompt.token_ids)) == "<user>Why?<assistant>"
    tokenizer.chat_template = "{{ raise_exception('no such role') }}"
    with pytest.raises(
        InvalidConfigError, match=r"line 1: the chat template refuses.*no such role"
    ):
        read(path, tokenizer)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (b'{"prompt": "x"', "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"prompt": "\xff"}', "not UTF-8"),
        (b'{"prompt": "\\ud800"}', "half a character"),
        (b'["x"]', "the row is a list"),
        ({"text": "x"}, "no prompt, messages or turns"),
        ({"prompt": ""}, "empty"),
        ({"prompt": []}, "empty"),
        ({"prompt": 3}, "neither a text nor a list"),
        ({"prompt": [1, True]}, "neither a text nor a list"),
        ({"prompt": [1, 4096]}, "token id 4096 is outside the vocabulary, 0..4095"),
        ({"prompt": [-1]}, "token id -1 is outside"),
        ({"prompt": "x", "max_tokens": 0}, "max_tokens=0"),
        ({"prompt": "x", "max_tokens": "9"}, "max_tokens='9'"),
        ({"prompt": "x", "prediction": 5}, "prediction is neither a text nor a list"),
        ({"prompt": "x", "prediction": [1, "a"]}, "prediction is neither a text nor a list"),
        ({"prompt": "x", "prediction": [4096]}, "prediction: token id 4096 is outside"),
        ({"prompt": "x", "prediction": "\ud800"}, "prediction has half a character"),
        ({"prompt": "x", "prediction": {"type": "content"}}, "prediction is not a text"),
        ({"prompt": "x", "prediction": {"content": ["x"]}}, "a part of prediction is a str"),
        ({"turns": []}, "turns is not a list"),
        ({"turns": [7]}, "turns[0] is not a text"),
        ({"body": "x"}, "body is a str"),
        ({"body": {"messages": []}}, "messages is not a list"),
        ({"body": {"messages": ["hello"]}}, "a message is a str"),
        ({"body": {"messages": [{"content": "x"}]}}, "no role"),
        ({"body": {"messages": [{"role": "user", "content": [{"image": 1}]}]}}, "not a text"),
    ],
)
def test_a_bad_row_is_skipped_and_named(tmp_path: Path, row: Any, reason: str) -> None:
    found = read_rows(tmp_path, {"prompt": "a"}, row, {"prompt": "b"})
    assert text_of(found) == ["a", "b"]
    (skipped,) = found.skipped
    assert skipped.startswith("line 2: ")
    assert reason in skipped


@pytest.mark.parametrize("content", [b"", b"\n \n", b"\xef\xbb\xbf"])
def test_an_empty_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_bytes(content)
    with pytest.raises(InvalidConfigError, match=r"empty\.jsonl has no prompt: line 1") as caught:
        read(path, TOKENIZER)
    assert "\n" not in str(caught.value)


def test_a_file_without_a_usable_row(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match=r"mine\.jsonl has no prompt: line 2: .*1 more"):
        read_rows(tmp_path, b"", b"{", {"prompt": ""})


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match=r"missing\.jsonl.*No such file"):
        read(tmp_path / "missing.jsonl", TOKENIZER)
    with pytest.raises(InvalidConfigError, match="Is a directory"):
        read(tmp_path, TOKENIZER)


def test_a_byte_order_mark_means_nothing(tmp_path: Path) -> None:
    assert text_of(read_rows(tmp_path, b'\xef\xbb\xbf{"prompt": "x"}\r')) == ["x"]
