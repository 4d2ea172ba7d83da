"""Pages: self-contained, and true to the figures."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from outrider import SamplingParams, SpeculativeConfig, SpeculativeDecoder
from outrider.bench import Results
from outrider.bench.page import render_report
from outrider.bench.records import PLAIN
from outrider.engine.trace import TraceWriter, read_trace

from ...support.bench import PROMPTS, measured, pair


class Outline(HTMLParser):
    """Reads the heading and whatever points out of the page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.heading = ""
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside = tag == "h1"
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "srcset")]

    def handle_data(self, data: str) -> None:
        self.heading += data * self._inside
        self._inside = False


def _outline(page: str) -> Outline:
    outline = Outline()
    outline.feed(page)
    return outline


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


def test_a_result_is_rendered_as_one_page() -> None:
    fast, slow = measured(), measured(speedup=0.5, temperature=0.8)
    results = Results({"target": "<tiny>"}, (measured(PLAIN, 1.0), fast, slow), missing=("<b>",))
    page = render_report(results)
    outline = _outline(page)
    assert outline.links == []
    assert "<tiny>" not in page
    assert "&lt;b&gt;" in page
    assert outline.heading == "outrider bench: <tiny>"
    assert "turn it off: plain decoding is faster" in page
    assert "1.82–2.20" in page
    assert sorted(map(len, re.findall("█+", page))) == [6, 12, 24]


def test_an_empty_result_is_a_page() -> None:
    assert "interrupted" in render_report(Results({}, (), partial=True))


def test_a_trace_is_rendered_as_one_page(trace: Path) -> None:
    page = render_report(read_trace(trace))
    outline = _outline(page)
    assert outline.links == []
    assert "20 tokens in" in outline.heading
    records = read_trace(trace).records
    assert page.count("█") >= sum(record.depth[0] for record in records)
    assert "&lt;tiny&gt; &amp; random" in page


def test_a_trace_that_was_cut_short_says_so(trace: Path) -> None:
    trace.write_bytes(trace.read_bytes()[:-5])
    assert "cut short" in render_report(read_trace(trace))


def test_a_trace_without_rounds_is_a_page(trace: Path) -> None:
    trace.write_bytes(trace.read_bytes().split(b"\n")[0] + b"\n")
    assert "Nothing was drafted" in render_report(read_trace(trace))
