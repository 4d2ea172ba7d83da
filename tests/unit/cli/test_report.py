"""`outrider report`: a trace as a page, self-contained and true to the figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider import SamplingParams, SpeculativeConfig, SpeculativeDecoder
from outrider.cli.trace_page import trace_page
from outrider.engine.trace import TraceWriter, read_trace
from tests.support.bench import PROMPTS, pair
from tests.support.pages import outline


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A trace of one short request."""
    given, path = pair(), tmp_path / "trace.jsonl"
    config = SpeculativeConfig(num_speculative_tokens=3, depth="fixed")
    with TraceWriter(path, {"target": "<tiny> & random"}) as writer:
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


def test_a_trace_that_was_cut_short_says_so(trace: Path) -> None:
    trace.write_bytes(trace.read_bytes()[:-5])
    assert "cut short" in trace_page(read_trace(trace))


def test_a_trace_without_rounds_is_a_page(trace: Path) -> None:
    trace.write_bytes(trace.read_bytes().split(b"\n")[0] + b"\n")
    assert "Nothing was drafted" in trace_page(read_trace(trace))
