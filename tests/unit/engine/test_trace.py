"""Traces: what is written is read back, a killed run leaves its rounds, errors say where."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from outrider import Philox4x32, SamplingParams, SpeculativeConfig, SpeculativeDecoder
from outrider.engine.metrics import Tally
from outrider.engine.trace import Trace, TraceWriter, is_trace, read_trace
from outrider.errors import InvalidConfigError
from outrider.runtimes.tabular import mock_pair
from outrider.types.records import RoundRecord

RECORD = RoundRecord(
    sequence_ids=(2**61, 7),
    drafted=(4, 0),
    depth=(3, 0),
    accepted=(2, 0),
    emitted=(3, 1),
    bonus=(False, True),
    ceiling=(3.25, None),
    draft_failed=False,
    sources=("suffix", "model"),
    confidence=((0.5, 1.0), ()),
    cached=(3, 0),
    draft_s=0.001,
    target_s=0.1 + 0.2,
    total_s=0.4,
    plan_s=0.0625,
)


def written(path: Path, *records: RoundRecord, lossy: bool = False) -> list[str]:
    """The lines of a trace."""
    with TraceWriter(path, {"target": "demo", "shape": (2, 1)}, lossy=lossy) as writer:
        for record in records:
            writer.write(record)
    return path.read_text().splitlines()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.jsonl"


class TestRoundTrip:
    def test_every_field_comes_back_as_it_was(self, path):
        records = (RECORD, replace(RECORD, draft_failed=True, ceiling=(1.0, 2.0)))
        header, *lines = written(path, *records, lossy=True)
        assert json.loads(header)["format"] == "outrider trace"
        for line in lines:
            assert list(json.loads(line)) == [field.name for field in fields(RoundRecord)]
        found = read_trace(path)
        assert found.records == records
        assert found.lossy
        assert not found.truncated
        assert found.settings == {"target": "demo", "shape": [2, 1]}
        assert found.metrics.lossy

    def test_figures_of_a_trace_are_those_of_the_decoder(self, path):
        config = SpeculativeConfig(depth="fixed", num_speculative_tokens=3)
        target, draft = mock_pair(5)
        with TraceWriter(path, {}) as writer:
            decoder = SpeculativeDecoder(target, draft, config=config, on_round=writer.write)
            params = SamplingParams(max_tokens=20, seed=1, n=2)
            decoder.generate([[0], [1, 2]], params)
        found = read_trace(path)
        assert found.metrics == decoder.metrics
        assert found.metrics.drafted > 0
        assert any(len(record.drafted) == 4 for record in found.records)

    def test_a_trace_of_no_rounds_is_a_trace(self, path):
        written(path)
        assert read_trace(path).records == ()
        assert read_trace(path).metrics == Tally().metrics()


def test_rounds_that_metrics_do_not_count_are_not_reported() -> None:
    reported: list[RoundRecord] = []
    target, draft = mock_pair(3)
    config = SpeculativeConfig(depth="fixed")
    decoder = SpeculativeDecoder(target, draft, config=config, on_round=reported.append)
    batch = decoder.pack(decoder.start([0], SamplingParams(max_tokens=9, seed=1)))
    decoder.step(batch, Philox4x32())
    assert reported == []
    step = decoder.step(batch)
    assert reported == [step.record]


class TestKilled:
    def test_every_prefix_of_a_trace_is_read_up_to_its_last_whole_line(self, path):
        records = [replace(RECORD, total_s=float(round)) for round in range(3)]
        written(path, *records)
        whole = path.read_bytes()
        first = whole.index(b"\n") + 1
        last = whole[:-1].rindex(b"\n") + 1
        for end in (*range(first, last - 2, 29), *range(last - 2, last + 3), *range(-3, 1)):
            end = end if end > 0 else len(whole) + end
            path.write_bytes(whole[:end])
            found = read_trace(path)
            count = whole[first:end].count(b"\n")
            assert list(found.records) == records[:count]
            assert found.truncated == (whole[end - 1 : end] != b"\n")

    def test_a_line_is_in_the_file_as_soon_as_it_is_written(self, path):
        with TraceWriter(path, {}) as writer:
            writer.write(RECORD)
            assert read_trace(path).records == (RECORD,)

    def test_an_error_on_the_way_leaves_the_rounds_before_it(self, path):
        with suppress(KeyboardInterrupt), TraceWriter(path, {}) as writer:
            writer.write(RECORD)
            raise KeyboardInterrupt
        assert read_trace(path).records == (RECORD,)


def damaged(path: Path, number: int, text: str | bytes) -> str:
    """What is said of a trace of two rounds with another text on a line."""
    lines: list[Any] = [line.encode() for line in written(path, RECORD, RECORD)]
    lines[number - 1] = text.encode() if isinstance(text, str) else text
    path.write_bytes(b"\n".join(lines) + b"\n")
    with pytest.raises(InvalidConfigError) as error:
        read_trace(path)
    message = str(error.value)
    kind = "header" if number == 1 else "round"
    assert message.startswith(f"{path}: line {number} is no {kind} of format 5 (")
    assert message.endswith("; expected a trace that outrider wrote; record it again with --trace")
    return message


class TestDamage:
    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("", "Expecting value"),
            ("{", "Expecting property name"),
            (b"\xff", "can't decode byte 0xff"),
            ("[" * 100_000, "recursion"),
            ("[1]", "it is [1]"),
        ],
    )
    @pytest.mark.parametrize("number", [1, 2, 3])
    def test_a_line_that_is_no_object(self, path, number, text, said):
        assert said in damaged(path, number, text)

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({"format": "x"}, "format is 'x'"),
            ({"version": 1}, "version is 1"),
            ({"lossy": "no"}, "lossy is 'no'"),
            ({"settings": 1}, "settings is 1"),
        ],
    )
    def test_a_header(self, path, change, said):
        header = json.loads(written(path)[0])
        assert said in damaged(path, 1, json.dumps(header | change))

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({"drafted": 4}, "drafted is 4"),
            ({"drafted": [4]}, "its rows are not equally many"),
            ({"drafted": [4, -1]}, "drafted is [4, -1]"),
            ({"drafted": [4, True]}, "drafted is [4, True]"),
            ({"bonus": [0, 1]}, "bonus is [0, 1]"),
            ({"ceiling": ["1", None]}, "ceiling is ['1', None]"),
            ({"draft_failed": 0}, "draft_failed is 0"),
            ({"total_s": None}, "total_s is None"),
            ({"total_s": -1}, "total_s is -1"),
        ],
    )
    def test_a_round(self, path, change, said):
        values = json.loads(written(path, RECORD)[1])
        assert said in damaged(path, 3, json.dumps(values | change))

    @pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999", "1" + "0" * 400])
    def test_a_number_beyond_all_numbers(self, path, number):
        line = written(path, RECORD)[1].replace('"total_s": 0.4', f'"total_s": {number}')
        damaged(path, 2, line)

    def test_a_field_that_is_not_known_is_left_out(self, path):
        header, line = written(path, RECORD)
        more = json.dumps(json.loads(line) | {"first_ceiling": [None, None]})
        path.write_text(f"{header}\n{more}\n")
        assert read_trace(path).records == (RECORD,)

    def test_a_missing_field(self, path):
        values = json.loads(written(path, RECORD)[1])
        del values["sources"]
        assert "it has no 'sources'" in damaged(path, 2, json.dumps(values))

    @pytest.mark.parametrize("text", ["", "{", '{"format": "outrider trace"}'])
    def test_a_header_cut_short(self, path, text):
        path.write_text(text)
        with pytest.raises(InvalidConfigError, match="line 1 is no header of format 5"):
            read_trace(path)


def test_a_trace_is_known_by_its_first_line(path) -> None:
    written(path, RECORD)
    assert is_trace(path)
    for text in ("", "{", "[]", '{"format": "other"}\n'):
        path.write_text(text)
        assert not is_trace(path)


def test_depths_add_up_to_the_rounds() -> None:
    trace = Trace("0", False, {}, (RECORD, RECORD), False)
    assert trace.metrics.depths == (2, 0, 0, 2)
    assert sum(trace.metrics.depths) == trace.metrics.rounds
    assert Tally().metrics().depths == (0,)
