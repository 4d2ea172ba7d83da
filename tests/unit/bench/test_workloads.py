"""Prompts: built-in kinds, and files of three formats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from outrider.bench.prompt_files import lines_of, parse_lines
from outrider.bench.records import Workload
from outrider.bench.trial import fitting
from outrider.bench.workloads import built_in
from outrider.errors import InvalidConfigError

from ...support.bench import WORKLOAD, Characters
from ...support.families import VOCAB

KINDS = ("code", "editing", "json", "chat", "random")


def _parse(*rows: Any) -> Workload:
    lines = [
        (f"line {number}", row if isinstance(row, bytes) else json.dumps(row).encode())
        for number, row in enumerate(rows, 1)
    ]
    return parse_lines(lines, "some", Characters())


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_arguments_give_the_same_prompts(kind: str) -> None:
    found = built_in(kind, Characters(), VOCAB, 5)
    assert built_in(kind, Characters(), VOCAB, 5) == found
    assert built_in(kind, Characters(), VOCAB, 3).prompts == found.prompts[:3]
    assert len({prompt.token_ids for prompt in found.prompts}) == 5
    assert len({prompt.name for prompt in found.prompts}) == 5
    for prompt in found.prompts:
        assert all(0 <= token < VOCAB for token in prompt.token_ids)


@pytest.mark.parametrize("kind", ["code", "random"])
def test_code_and_random_are_150_tokens_long(kind: str) -> None:
    found = built_in(kind, Characters(), VOCAB, 2)
    assert [len(prompt.token_ids) for prompt in found.prompts] == [150, 150]


def test_more_prompts_than_there_are_is_refused() -> None:
    with pytest.raises(InvalidConfigError, match="at most 8"):
        built_in("chat", Characters(), VOCAB, 9)


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
def test_three_formats_are_read(row: dict[str, Any], text: str) -> None:
    (prompt,) = _parse(row).prompts
    assert prompt.token_ids == tuple(Characters().encode(text))


def test_rows_may_say_how_many_tokens_and_what_is_expected() -> None:
    found = _parse(
        {"prompt": [3, 4], "max_tokens": 7, "prediction": "ab"},
        {"body": {"prompt": "x", "max_completion_tokens": 9, "prediction": {"content": "ab"}}},
        {"prompt": [5], "prediction": [1, 2]},
    )
    expected = tuple(Characters().encode("ab", add_special_tokens=False))
    assert [prompt.max_tokens for prompt in found.prompts] == [7, 9, None]
    assert [prompt.prediction for prompt in found.prompts] == [expected, expected, (1, 2)]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (b"{", "not JSON"),
        (b"\xff", "not UTF-8"),
        (b"[" * 100_000, "not JSON"),
        ([], "expected an object"),
        ({}, "no prompt"),
        ({"prompt": []}, "empty"),
        ({"prompt": [VOCAB]}, "no token id of the vocabulary"),
        ({"prompt": [-1]}, "no token id of the vocabulary"),
        ({"prompt": [True]}, "no token id of the vocabulary"),
        ({"prompt": "\ud800"}, "surrogate"),
        ({"turns": []}, "turns"),
        ({"messages": [{"content": "a"}]}, "role"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "a", "prediction": 3}, "prediction"),
    ],
)
def test_a_bad_row_is_skipped_and_named(row: Any, reason: str) -> None:
    found = _parse({"prompt": "good"}, row)
    assert len(found.prompts) == 1
    (skipped,) = found.skipped
    assert skipped.startswith("line 2: ")
    assert reason in skipped


def test_a_file_without_a_usable_row_is_refused() -> None:
    with pytest.raises(InvalidConfigError, match="1 more rows cannot be used"):
        _parse({}, {})


def test_a_file_that_is_missing_or_empty_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match="readable"):
        lines_of(tmp_path / "none")
    (tmp_path / "empty").write_text("\n \n")
    with pytest.raises(InvalidConfigError, match="no prompt"):
        lines_of(tmp_path / "empty")


def test_a_byte_order_mark_and_empty_lines_mean_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b'\xef\xbb\xbf\n{"prompt": [1]}\r\n\n')
    assert [place for place, _ in lines_of(tmp_path / "file")] == ["line 2"]


def test_prompts_that_do_not_fit_the_context_are_left_out() -> None:
    assert fitting(WORKLOAD, 10, None) == WORKLOAD
    assert fitting(WORKLOAD, 10, 19) == WORKLOAD
    with pytest.raises(InvalidConfigError, match="exceed the context of 18 tokens"):
        fitting(WORKLOAD, 10, 18)
