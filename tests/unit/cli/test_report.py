"""`outrider report`: a trace as a page, self-contained and true to the figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outrider import SamplingParams, SpeculativeConfig, SpeculativeDecoder
from outrider.cli import main
from outrider.cli.trace_page import trace_page
from outrider.engine.trace import TraceWriter, read_trace
from tests.support.bench import PROMPTS, pair
from tests.support.engine_answers import of_vllm
from tests.support.pages import outline


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A trace of one short request."""
    given, path = pair(), tmp_path / "trace.jsonl"
    config = SpeculativeConfig(num_speculative_tokens=3, depth="fixed")
    settings = {"target": "<tiny> & random", "draft": "a head", "method": "draft_model"}
    with TraceWriter(path, settings) as writer:
        decoder = SpeculativeDecoder(
            given.target, given.model_drafter, config=config, on_round=writer.write
        )
        params = SamplingParams(max_tokens=20, temperature=0, ignore_eos=True)
        decoder.generate(list(PROMPTS[0].token_ids), params)
    return path


def test_a_trace_is_rendered_as_one_page(trace: Path) -> None:
    page = trace_page(read_trace(trace))
    found = outline(page)
    assert found.links == []
    assert "20 tokens in" in found.heading
    records = read_trace(trace).records
    assert page.count("█") >= sum(record.depth[0] for record in records)
    assert "&lt;tiny&gt; &amp; random" in page


def test_what_drafted_is_named(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(trace)]) == 0
    assert "a trace of <tiny> & random, a head, draft_model" in capsys.readouterr().out


def test_a_trace_that_was_cut_short_says_so(trace: Path) -> None:
    trace.write_bytes(trace.read_bytes()[:-5])
    assert "cut short" in trace_page(read_trace(trace))


def test_a_trace_without_rounds_is_a_page(trace: Path) -> None:
    trace.write_bytes(trace.read_bytes().split(b"\n")[0] + b"\n")
    assert "Nothing was drafted" in trace_page(read_trace(trace))


def test_what_another_engine_recorded_is_shown_with_other_depths(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "answers.jsonl"
    file.write_text(json.dumps(of_vllm()))
    assert main(["report", "--from", "vllm", str(file), "--cost-ratio", "0.5"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "2.70 tokens a round (1 requests, 10 rounds, 17 of 30 drafted" in printed
    assert "depth 1 is the fastest" in printed
    page = (tmp_path / "answers-report" / "index.html").read_text()
    assert outline(page).links == []
    assert main(["report", "--from", "vllm", str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["tokens_per_round"] for each in found["depths"]] == [1, 1.8, 2.3, 2.7]
    assert main(["report", "--from", "llama.cpp", str(file)]) == 2
    assert "timings.draft_n" in capsys.readouterr().err
    assert main(["report", str(file), "--cost-ratio", "0.5"]) == 2
    assert "--from beside it" in capsys.readouterr().err
