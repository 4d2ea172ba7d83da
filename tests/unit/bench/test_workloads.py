"""Prompts: built-in kinds, and files of three formats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from outrider.bench.prompt_files import read_prompts
from outrider.bench.records import Workload
from outrider.bench.trial import fitting
from outrider.bench.workloads import mixed
from outrider.errors import InvalidConfigError

from ...support.bench import WORKLOAD, Characters, Talking
from ...support.families import VOCAB

KINDS = ("code", "editing", "json", "chat", "random")


def _parse(folder: Path, *rows: Any) -> Workload:
    lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
    path = folder / "some.jsonl"
    path.write_bytes(b"\n".join(lines))
    return read_prompts([path], Characters())


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_arguments_give_the_same_prompts(kind: str) -> None:
    found = mixed((kind,), Characters(), VOCAB, 5)
    assert mixed((kind,), Characters(), VOCAB, 5) == found
    assert mixed((kind,), Characters(), VOCAB, 3).prompts == found.prompts[:3]
    assert len({prompt.token_ids for prompt in found.prompts}) == 5
    assert len({prompt.name for prompt in found.prompts}) == 5
    for prompt in found.prompts:
        assert all(0 <= token < VOCAB for token in prompt.token_ids)


@pytest.mark.parametrize("kind", ["code", "editing", "json"])
def test_models_that_talk_are_asked(kind: str) -> None:
    for prompt in mixed((kind,), Talking(), VOCAB, 2).prompts:
        text = Talking().decode(prompt.token_ids)
        assert text.startswith("<user>")
        assert text.endswith("```<assistant>")
        assert "alone." in text


def test_a_conversation_ends_with_a_question() -> None:
    text = Talking().decode(mixed(("chat",), Talking(), VOCAB, 1).prompts[0].token_ids)
    assert text.startswith("<user>")
    assert text.count("<assistant>") == 2


def test_kinds_are_taken_in_turn() -> None:
    kinds = [prompt.kind for prompt in mixed(None, Characters(), VOCAB, 5).prompts]
    assert kinds == ["editing", "code", "json", "editing", "code"]
    assert mixed(None, Talking(), VOCAB, 4).prompts[3].kind == "chat"
    # There are eight conversations.
    found = mixed(("chat", "random"), Characters(), VOCAB, 20).prompts
    assert [prompt.kind for prompt in found].count("chat") == 8
    assert [prompt.kind for prompt in found[:2]] == ["chat", "random"]
    with pytest.raises(InvalidConfigError, match="at most 8"):
        mixed(("chat",), Characters(), VOCAB, 9)


def test_code_and_random_are_cut_to_a_length() -> None:
    for prompt in mixed(("random",), Characters(), VOCAB, 2).prompts:
        assert len(prompt.token_ids) == 150
    for prompt in mixed(("code",), Characters(), VOCAB, 20).prompts:
        assert len(prompt.token_ids) == 150


def test_more_prompts_than_there_are_is_refused() -> None:
    with pytest.raises(InvalidConfigError, match="at most 8"):
        mixed(("chat",), Characters(), VOCAB, 9)


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"prompt": "ab"}, "ab"),
        ({"question_id": 1, "category": "math", "turns": ["ab", "c"]}, "ab\n\n"),
        ({"custom_id": "x", "body": {"messages": [{"role": "user", "content": "ab"}]}}, "ab\n\n"),
        ({"body": {"prompt": "ab"}}, "ab"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "ab"}]}]},
            "ab\n\n",
        ),
    ],
)
def test_three_formats_are_read(tmp_path: Path, row: dict[str, Any], text: str) -> None:
    (prompt,) = _parse(tmp_path, row).prompts
    assert prompt.token_ids == tuple(Characters().encode(text))


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (b"{", " is not JSON"),
        (b"[" * 100_000, " is not JSON"),
        ([], "=[] is not allowed: expected an object"),
        ({}, "={} is not allowed: expected rows such as"),
        ({"prompt": []}, ": prompt=[] is not allowed: expected at least one token"),
        (
            {"prompt": [VOCAB]},
            f": prompt={VOCAB} is not allowed: expected an integer in 0..{VOCAB - 1}",
        ),
        ({"prompt": [-1]}, ": prompt=-1 is not allowed"),
        ({"prompt": [True]}, ": prompt=True is not allowed"),
        ({"prompt": "\ud800"}, "half a surrogate pair"),
        ({"turns": []}, ": turns=[] is not allowed: expected a list with at least one entry"),
        ({"messages": [{"content": "a"}]}, ": messages[0].role=None is not allowed"),
    ],
)
def test_a_bad_row_is_refused_by_its_line(tmp_path: Path, row: Any, reason: str) -> None:
    with pytest.raises(InvalidConfigError) as refused:
        _parse(tmp_path, {"prompt": "good"}, row)
    assert str(refused.value).startswith("some.jsonl line 2")
    assert reason in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_that_is_missing_or_empty_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match=r"cannot read .*none: there is no such file"):
        read_prompts([tmp_path / "none"], Characters())
    (tmp_path / "empty").write_text("\n \n")
    with pytest.raises(InvalidConfigError, match="empty is empty; expected a text"):
        read_prompts([tmp_path / "empty"], Characters())
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidConfigError, match="binary: it is not UTF-8 text"):
        read_prompts([tmp_path / "binary"], Characters())


def test_a_byte_order_mark_and_empty_lines_mean_nothing(tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    path.write_bytes(b'\xef\xbb\xbf\n{"prompt": [1]}\r\n\n')
    (prompt,) = read_prompts([path], Characters()).prompts
    assert prompt.name == "some.jsonl line 2"


def test_rows_and_texts_are_prompts_of_one_workload(tmp_path: Path) -> None:
    texts = {
        "a.jsonl": '{"prompt": "x"}\n\n{"turns": ["x"], "category": "math"}',
        "c.json": '{\n  "a": 1\n}',
        "d.py": "def f():\n",
        "e": "some text",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    found = read_prompts([tmp_path / name for name in texts], Characters())
    assert found.name == "4 files"
    assert {prompt.name: prompt.kind for prompt in found.prompts} == {
        "a.jsonl line 1": "a",
        "a.jsonl line 3 (math)": "math",
        "c.json": "json",
        "d.py": "py",
        "e": "e",
    }
    assert found.prompts[-1].token_ids == tuple(Characters().encode("some text"))


def test_prompts_that_do_not_fit_the_context_are_left_out() -> None:
    assert fitting(WORKLOAD, 10, None) == WORKLOAD
    assert fitting(WORKLOAD, 10, 19) == WORKLOAD
    with pytest.raises(InvalidConfigError, match="exceed the context of 18 tokens"):
        fitting(WORKLOAD, 10, 18)
